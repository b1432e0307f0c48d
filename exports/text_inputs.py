"""Which inputs of a text graph are the tokens and the mask, and which of its outputs is the embedding."""

from __future__ import annotations

from onnx import GraphProto, TensorProto, ValueInfoProto

from zoo.errors import ExportError, UsageError, nearest
from zoo.models.text_tower import MASK, TOKENS

PREFERRED = ("embeddings", "text_embeds", "text_features", "sentence_embedding", "pooler_output")
"""What exporters call the embedding, the joint space's first; of several outputs the first of these is taken."""

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def chosen_inputs(graph: GraphProto, length: int) -> dict[str, str]:
    """The graph's names of the inputs, by ours. Raises `ExportError` where it takes anything else than tokens."""
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [each for each in graph.input if each.name not in constants]
    masks = [each for each in inputs if "mask" in each.name]
    tokens = [each for each in inputs if each not in masks]
    odd = [each.name for each in inputs if not _takes_tokens(each, length)]
    if len(tokens) != 1 or len(masks) > 1 or odd:
        found = ", ".join(f"{each.name} {_shape(each)}" for each in inputs) or "nothing"
        raise ExportError(
            f"the graph takes {found}; expected token ids int64 [n, {length}] of any n, and perhaps an attention mask "
            "alike. A graph of both towers has to be exported as one of texts alone."
        )
    return {TOKENS: tokens[0].name} | ({MASK: masks[0].name} if masks else {})


def chosen_output(graph: GraphProto, dim: int, wanted: str | None = None) -> ValueInfoProto:
    """The output with one row of `dim` numbers a text. Raises `ExportError` where there is none, `UsageError` where
    there are several.
    """
    outputs = {each.name: each for each in graph.output}
    if wanted is not None and wanted not in outputs:
        raise UsageError(f"the graph has no output {wanted!r}.{nearest(wanted, outputs)} It has {', '.join(outputs)}.")
    fitting = {name: each for name, each in outputs.items() if wanted in (None, name) and _is_row(each, dim)}
    if not fitting:
        found = ", ".join(f"{name} {_shape(each)}" for name, each in outputs.items())
        raise ExportError(
            f"the graph gives {found}; the model's images have {dim} numbers, so a text needs floats [n, {dim}]. A "
            "plain backbone of CLIP's lacks the projection into the texts' space: zoo baseline NAME --as OWN --joint"
        )
    first = next((name for name in PREFERRED if name in fitting), None)
    if first is None and len(fitting) > 1:
        raise UsageError(f"{', '.join(fitting)} could each be the embedding; name it with --output.")
    return fitting[first or next(iter(fitting))]


def _takes_tokens(value: ValueInfoProto, length: int) -> bool:
    kind, shape = value.type.tensor_type.elem_type, _shape(value)
    any_number = len(shape) == 2 and not isinstance(shape[0], int)
    return kind == TensorProto.INT64 and any_number and (not isinstance(shape[1], int) or shape[1] == length)


def _is_row(value: ValueInfoProto, dim: int) -> bool:
    shape = _shape(value)
    return (
        value.type.tensor_type.elem_type in _FLOATS
        and len(shape) == 2
        and (not isinstance(shape[1], int) or shape[1] == dim)
    )


def _shape(value: ValueInfoProto) -> list[int | str]:
    """Of a tensor: a number for each fixed size, a name for each other."""
    return [
        size.dim_value if size.HasField("dim_value") else size.dim_param or "?"
        for size in value.type.tensor_type.shape.dim
    ]
