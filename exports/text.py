"""Text towers.

Which inputs of a text graph are the tokens and the mask, and which of its outputs is the embedding.

A text tower for a model folder: a published ONNX graph and its tokenizer, brought to the folder's own signature.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, TensorProto, ValueInfoProto, compose, helper

from zoo.errors import ExportError, ModelFolderError, UsageError, nearest
from zoo.files import atomic_path, locked, sha256_of, write_json
from zoo.models import text_tower
from zoo.models.card import Card, TextSettings, read_card
from zoo.models.results import GOLDEN_FLOORS
from zoo.models.text_tower import MASK, TOKENS

PREFERRED_OUTPUTS = ("embeddings", "text_embeds", "text_features", "sentence_embedding", "pooler_output")
"""What exporters call the embedding, the joint space's first; of several outputs the first of these is taken."""

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def find_inputs(graph: GraphProto, length: int) -> dict[str, str]:
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


def find_output(graph: GraphProto, dim: int, wanted: str | None = None) -> ValueInfoProto:
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
    first = next((name for name in PREFERRED_OUTPUTS if name in fitting), None)
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


GOLDEN_TEXTS = (
    "a red chair",
    "a photo of a dog on the beach",
    "two people ride bicycles in the rain",
    "a chair " * 200,
)
MAX_GRAPH_BYTES = 2**31 - 1
"""Bytes of one ONNX file; what is larger would need a second one beside it."""

_UNIT, _SAME = 1e-3, 1e-6


def attach_text_tower(
    folder: Path,
    graph: Path,
    tokenizer: Path,
    length: int | None = None,
    padding: str | None = None,
    lowercase: bool = False,
    output: str | None = None,
) -> Card:
    """Write a text tower into a model folder, in place of the one it has; the card that names it.

    graph: token ids int64 [n, t], and an attention mask where it asks for one, to one row a text; normalised to unit
    length here. length, padding: the tokens of a text, and the token (its text or id) that fills them up; by default
    what tokenizer.json says of padding. output: of the graph's results, where several could be the embedding.

    Raises `ExportError` for a graph that does not fit the model, `UsageError` for what has to be said, and
    `ModelFolderError` for files that cannot be read; nothing is written then.
    """
    card = read_card(folder)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        text = _settings(tokenizer, length, padding, lowercase)
        write_text_graph(graph, made / text_tower.TEXT_GRAPH, card.dim, text.length, output)
        shutil.copyfile(tokenizer, made / text_tower.TOKENIZER_FILE)
        files = {file: sha256_of(made / file) for file in (text_tower.TEXT_GRAPH, text_tower.TOKENIZER_FILE)}
        card = dataclasses.replace(card, text=text, files={**card.files, **files})
        text_tower.write_golden_text(made, GOLDEN_TEXTS, _golden_rows(made, card))
        return _publish(folder, made, card)


def write_text_graph(source: Path, out: Path, dim: int, length: int, output: str | None = None) -> None:
    """The graph with our names for what goes in and comes out, its rows brought to unit length."""
    model = _read(source)
    inputs = find_inputs(model.graph, length)
    result = find_output(model.graph, dim, output)
    kind = result.type.tensor_type.elem_type
    model = compose.add_prefix(model, "tower/")  # none of its own names is one of ours then
    renamed = [helper.make_node("Identity", [ours], [f"tower/{theirs}"]) for ours, theirs in inputs.items()]
    names = [f"tower/{result.name}", "tower/row", text_tower.OUTPUT]
    last = [
        helper.make_node("Cast", names[:1], names[1:2], to=TensorProto.FLOAT),
        helper.make_node("LpNormalization", names[1:2], names[2:], axis=1, p=2),
    ]
    if kind == TensorProto.FLOAT:
        last = [helper.make_node("LpNormalization", names[:1], names[2:], axis=1, p=2)]
    nodes = [*renamed, *model.graph.node, *last]
    del model.graph.node[:], model.graph.input[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT64, ["n", length]) for name in inputs)
    model.graph.output.append(helper.make_tensor_value_info(text_tower.OUTPUT, TensorProto.FLOAT, ["n", dim]))
    if model.ByteSize() > MAX_GRAPH_BYTES:
        raise ExportError(f"{source} has more than 2 GiB, which one ONNX file cannot hold; take it in half precision.")
    out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, out)


def _read(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path)
    except FileNotFoundError as error:
        raise ModelFolderError(f"{error.filename or path} is not there.") from None
    except Exception as error:  # onnx and protobuf raise families of their own
        raise ModelFolderError(f"{path} cannot be read as an ONNX graph: {error}") from None


def _settings(path: Path, length: int | None, padding: str | None, lowercase: bool) -> TextSettings:
    if not path.is_file():
        raise ModelFolderError(f"{path} is not there; expected a tokenizer.json of Hugging Face's tokenizers.")
    tokenizer = text_tower.load_tokenizer(path)
    said, cut = tokenizer.padding or {}, tokenizer.truncation or {}
    length = said.get("length") or cut.get("max_length") if length is None else length
    if length is None:
        raise UsageError(f"{path} does not say how many tokens a text has; say it with --length (CLIP: 77).")
    token = said.get("pad_id") if padding is None else _id_of(tokenizer, padding)
    if token is None:
        what = f"{path} does not say" if padding is None else f"{padding!r} is no token of {path}; it has to be said"
        raise UsageError(f"{what} which token fills a text up: --padding, as its id or its text.")
    return TextSettings(length, token, lowercase)


def _id_of(tokenizer: Any, padding: str) -> int | None:
    known: int | None = tokenizer.token_to_id(padding)
    if known is None and padding.isdecimal() and int(padding) < tokenizer.get_vocab_size():
        return int(padding)
    return known


def _golden_rows(made: Path, card: Card) -> np.ndarray:
    """The golden texts' embeddings. Raises `ExportError` where they are none that a text can be searched by."""
    opened = text_tower.open_text_tower(made, card)
    try:
        tokens = opened.tokens(GOLDEN_TEXTS)
        rows = opened.embed(tokens)
        alone = np.concatenate([opened.embed(opened.tokens([text])) for text in GOLDEN_TEXTS])
    except Exception as error:  # onnxruntime raises a family of its own
        raise ExportError(f"the graph cannot be run on texts of {opened.text.length} tokens: {error}") from None
    if rows.shape != (len(GOLDEN_TEXTS), card.dim):
        raise ExportError(
            f"the graph gives {list(rows.shape)} for {len(GOLDEN_TEXTS)} texts; expected rows of {card.dim}."
        )
    if not (np.abs(np.linalg.norm(rows, axis=1) - 1) < _UNIT).all():
        raise ExportError("the graph gives rows that have no direction: zeros, or numbers that are none.")
    if np.abs(rows - rows[0]).max() < _SAME:
        raise ExportError("the graph gives all texts the same row. Are its tokenizer, length and padding these?")
    if ((rows * alone).sum(1) < GOLDEN_FLOORS["int8"]).any():
        raise ExportError("the graph gives a text another row beside others than alone.")
    return rows


def _publish(folder: Path, made: Path, card: Card) -> Card:
    """All files into the folder under temporary names, then renamed, the card last: it vouches for the others."""
    with locked(folder), ExitStack() as stack:
        now = read_card(folder)
        ours = {file: card.files[file] for file in (text_tower.TEXT_GRAPH, text_tower.TOKENIZER_FILE)}
        card = dataclasses.replace(now, text=card.text, files={**now.files, **ours})
        own_card = stack.enter_context(atomic_path(folder / "card.json"))
        for file in (text_tower.TEXT_GRAPH, text_tower.TOKENIZER_FILE, text_tower.GOLDEN_TEXT_FILE):
            shutil.copyfile(made / file, stack.enter_context(atomic_path(folder / file)))
        write_json(own_card, card.to_json())
    return card
