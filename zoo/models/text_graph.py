"""Text towers of model folders: a published ONNX graph and its tokenizer, adapted to our inputs and outputs.

The graph's inputs are found by their types, and its embedding by its name and shape.
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

from zoo.errors import ExportError, ModelFolderError, UsageError, unknown
from zoo.files import atomic_path, locked, sha256_of, write_json
from zoo.models.card import Card, TextSettings, read_card
from zoo.models.results import GOLDEN_FLOORS
from zoo.models.text_tower import (
    GOLDEN_TEXT_FILE,
    MASK,
    OUTPUT,
    TEXT_GRAPH,
    TOKENIZER_FILE,
    TOKENS,
    load_tokenizer,
    open_text_tower,
    write_golden_text,
)

PREFERRED_OUTPUTS = ("embeddings", "text_embeds", "text_features", "sentence_embedding", "pooler_output")
"""Exporters' names of the embedding, the joint space's first. Of several outputs the first of these is taken."""

GOLDEN_TEXTS = (
    "a red chair",
    "a photo of a dog on the beach",
    "two people ride bicycles in the rain",
    "a chair " * 200,
)

MAX_GRAPH_BYTES = 2**31 - 1
"""The largest ONNX file; a larger graph would need a second file."""

_NORM_TOLERANCE = 1e-3
_LEAST_DIFFERENCE = 1e-6
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def attach_text_tower(
    folder: Path,
    graph: Path,
    tokenizer: Path,
    length: int | None = None,
    padding: str | None = None,
    lowercase: bool = False,
    output: str | None = None,
) -> Card:
    """Write a text tower into a model folder; it replaces an earlier one.

    Args:
        folder: The model folder.
        graph: The ONNX graph from token ids int64 [n, t], and perhaps an attention mask, to one row per text. The rows
            are normalised to unit length here.
        tokenizer: Its tokenizer.json.
        length: The number of tokens per text; by default the tokenizer's.
        padding: The token (its text or id) that fills a text up; by default the tokenizer's.
        lowercase: Convert texts to lower case first.
        output: The graph's output, needed if several could be the embedding.

    Returns:
        The new card.

    Raises:
        ExportError: If the graph does not fit the model.
        UsageError: If an argument is missing or unknown.
        ModelFolderError: If a file cannot be read. In all cases nothing is written.
    """
    card = read_card(folder)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        text = _text_settings(tokenizer, length, padding, lowercase)
        _write_text_graph(graph, scratch / TEXT_GRAPH, card.dim, text.length, output)
        shutil.copyfile(tokenizer, scratch / TOKENIZER_FILE)
        files = {file: sha256_of(scratch / file) for file in (TEXT_GRAPH, TOKENIZER_FILE)}
        card = dataclasses.replace(card, text=text, files={**card.files, **files})
        write_golden_text(scratch, GOLDEN_TEXTS, _golden_rows(scratch, card))
        return _add_files(folder, scratch, card)


def _write_text_graph(source: Path, path: Path, dim: int, length: int, output: str | None = None) -> None:
    """Write a text graph with our names of inputs and output, and its rows at unit length.

    Args:
        source: The published graph.
        path: The new graph.
        dim: The dimension of the model's embeddings.
        length: The number of tokens per text.
        output: The output's name, needed if several could be the embedding.

    Raises:
        ExportError: If the graph does not fit, or is larger than one ONNX file may be.
        UsageError: If the output is unknown or missing.
        ModelFolderError: If the graph cannot be read.
    """
    model = _read_graph(source)
    inputs = _find_inputs(model.graph, length)
    embedding = _find_output(model.graph, dim, output)
    is_float32 = embedding.type.tensor_type.elem_type == TensorProto.FLOAT
    model = compose.add_prefix(model, "tower/")  # so that none of its names is one of ours
    renamed = [helper.make_node("Identity", [ours], [f"tower/{theirs}"]) for ours, theirs in inputs.items()]
    rows, rows32 = f"tower/{embedding.name}", "tower/row"
    if is_float32:
        normalised = [helper.make_node("LpNormalization", [rows], [OUTPUT], axis=1, p=2)]
    else:
        normalised = [
            helper.make_node("Cast", [rows], [rows32], to=TensorProto.FLOAT),
            helper.make_node("LpNormalization", [rows32], [OUTPUT], axis=1, p=2),
        ]
    nodes = [*renamed, *model.graph.node, *normalised]
    del model.graph.node[:], model.graph.input[:], model.graph.output[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT64, ["n", length]) for name in inputs)
    model.graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", dim]))
    if model.ByteSize() > MAX_GRAPH_BYTES:
        message = f"{source} has more than 2 GiB, which one ONNX file cannot hold; take it in half precision."
        raise ExportError(message, code="too-large")
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def _find_inputs(graph: GraphProto, length: int) -> dict[str, str]:
    """Return the graph's names of its inputs by our names.

    Raises:
        ExportError: If the graph takes something other than token ids and an attention mask.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    masks = [value for value in inputs if "mask" in value.name]
    tokens = [value for value in inputs if value not in masks]
    if len(tokens) != 1 or len(masks) > 1 or not all(_takes_tokens(value, length) for value in inputs):
        signature = ", ".join(f"{value.name} {_shape(value)}" for value in inputs) or "nothing"
        raise ExportError(
            f"the graph takes {signature}; expected token ids int64 [n, {length}] of any n, and perhaps an attention "
            "mask of the same shape. Export a graph of both towers again as a graph of texts only.",
            code="unsupported-graph",
        )
    return {TOKENS: tokens[0].name} | ({MASK: masks[0].name} if masks else {})


def _find_output(graph: GraphProto, dim: int, wanted: str | None = None) -> ValueInfoProto:
    """Return the output with one row of `dim` numbers per text.

    Raises:
        ExportError: If no output has this shape.
        UsageError: If several have it, or there is no output `wanted`.
    """
    outputs = {value.name: value for value in graph.output}
    if wanted is not None and wanted not in outputs:
        raise unknown("output of the graph", wanted, outputs)
    fitting = {name: value for name, value in outputs.items() if wanted in (None, name) and _is_row(value, dim)}
    if not fitting:
        signature = ", ".join(f"{name} {_shape(value)}" for name, value in outputs.items())
        raise ExportError(
            f"the graph gives {signature}; the model's images have {dim} numbers, so a text needs floats [n, {dim}]. A "
            "plain CLIP backbone lacks the projection into the texts' space: zoo baseline NAME --as OWN --joint",
            code="unsupported-graph",
        )
    preferred = next((name for name in PREFERRED_OUTPUTS if name in fitting), None)
    if preferred is None and len(fitting) > 1:
        message = f"{', '.join(fitting)} could each be the embedding; name it with --output."
        raise UsageError(message, code="conflicting-options")
    return fitting[preferred or next(iter(fitting))]


def _takes_tokens(value: ValueInfoProto, length: int) -> bool:
    kind, shape = value.type.tensor_type.elem_type, _shape(value)
    any_number = len(shape) == 2 and not isinstance(shape[0], int)
    return kind == TensorProto.INT64 and any_number and (not isinstance(shape[1], int) or shape[1] == length)


def _is_row(value: ValueInfoProto, dim: int) -> bool:
    kind, shape = value.type.tensor_type.elem_type, _shape(value)
    return kind in _FLOATS and len(shape) == 2 and (not isinstance(shape[1], int) or shape[1] == dim)


def _shape(value: ValueInfoProto) -> list[int | str]:
    """Return a tensor's shape: a number for each fixed size, a name for every other."""
    return [
        size.dim_value if size.HasField("dim_value") else size.dim_param or "?"
        for size in value.type.tensor_type.shape.dim
    ]


def _read_graph(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path)
    except FileNotFoundError as error:
        raise ModelFolderError(f"there is no file {error.filename or path}.", code="missing-file") from None
    except Exception as error:  # onnx and protobuf raise families of their own
        raise ModelFolderError(f"{path} cannot be read as an ONNX graph: {error}", code="damaged-file") from None


def _text_settings(path: Path, length: int | None, padding: str | None, lowercase: bool) -> TextSettings:
    if not path.is_file():
        message = f"there is no file {path}; expected a tokenizer.json of Hugging Face's tokenizers."
        raise ModelFolderError(message, code="missing-file")
    tokenizer = load_tokenizer(path)
    own_padding, truncation = tokenizer.padding or {}, tokenizer.truncation or {}
    if length is None:
        length = own_padding.get("length") or truncation.get("max_length")
    if length is None:
        message = f"{path} does not say how many tokens a text has; say it with --length (CLIP: 77)."
        raise UsageError(message, code="unknown-name")
    token = own_padding.get("pad_id") if padding is None else _token_id(tokenizer, padding)
    if token is None:
        reason = f"{path} names no padding token" if padding is None else f"{path} has no token {padding!r}"
        message = f"{reason}; name the token that fills a text up by its id or text: --padding"
        raise UsageError(message, code="unknown-name")
    return TextSettings(length, token, lowercase)


def _token_id(tokenizer: Any, padding: str) -> int | None:
    token_id: int | None = tokenizer.token_to_id(padding)
    if token_id is None and padding.isdecimal() and int(padding) < tokenizer.get_vocab_size():
        return int(padding)
    return token_id


def _golden_rows(scratch: Path, card: Card) -> np.ndarray:
    """Embed the golden texts, and check that texts can be searched by such rows.

    Raises:
        ExportError: If they cannot.
    """
    tower = open_text_tower(scratch, card)
    try:
        rows = tower.embed(tower.tokens(GOLDEN_TEXTS))
        single_rows = np.concatenate([tower.embed(tower.tokens([text])) for text in GOLDEN_TEXTS])
    except Exception as error:  # onnxruntime raises a family of its own
        message = f"the graph cannot be run on texts of {tower.text.length} tokens: {error}"
        raise ExportError(message, code="unsupported-graph") from None
    if rows.shape != (len(GOLDEN_TEXTS), card.dim):
        message = f"the graph gives {list(rows.shape)} for {len(GOLDEN_TEXTS)} texts; expected rows of {card.dim}."
        raise ExportError(message, code="unsupported-graph")
    if not (np.abs(np.linalg.norm(rows, axis=1) - 1) < _NORM_TOLERANCE).all():
        raise ExportError("the graph gives rows without a direction: zeros, NaN or infinity.", code="unsupported-graph")
    if np.abs(rows - rows[0]).max() < _LEAST_DIFFERENCE:
        message = "the graph gives all texts the same row. Check its tokenizer, --length and --padding."
        raise ExportError(message, code="unsupported-graph")
    if ((rows * single_rows).sum(1) < GOLDEN_FLOORS["int8"]).any():
        raise ExportError("the graph gives a text another row in a batch than alone.", code="unsupported-graph")
    return rows


def _add_files(folder: Path, scratch: Path, card: Card) -> Card:
    """Move the files into the folder: under temporary names first, then renamed, the card last."""
    with locked(folder), ExitStack() as stack:
        current = read_card(folder)
        hashes = {file: card.files[file] for file in (TEXT_GRAPH, TOKENIZER_FILE)}
        card = dataclasses.replace(current, text=card.text, files={**current.files, **hashes})
        new_card = stack.enter_context(atomic_path(folder / "card.json"))
        for file in (TEXT_GRAPH, TOKENIZER_FILE, GOLDEN_TEXT_FILE):
            shutil.copyfile(scratch / file, stack.enter_context(atomic_path(folder / file)))
        write_json(new_card, card.to_json())
    return card
