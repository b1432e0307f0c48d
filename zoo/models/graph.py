"""ONNX graphs of torch models: pixels in, unit embeddings out; or a trunk alone, images in and pooled features out."""

from __future__ import annotations

import contextlib
import io
import warnings
from keyword import iskeyword
from pathlib import Path

import numpy as np
import onnx
import onnxscript  # noqa: F401  torch's exporter needs it, and would report its absence late
import torch
from torch import nn

from zoo.errors import ExportError
from zoo.models.card import Card
from zoo.models.network import PixelNetwork, load_network
from zoo.models.onnx_runtime import FEATURES, IMAGES, INPUT, OUTPUT

OPSET = 20
LOWEST = "lowest"
"""The name of the least float32; clipping at it changes no value."""


def write_graph(folder: Path, card: Card, path: Path) -> None:
    """Write the fp32 graph of a model, from uint8 pixels [n, crop, crop, c] to unit float32 embeddings.

    Args:
        folder: The model folder.
        card: Its card.
        path: The new graph.

    Raises:
        ExportError: If torch cannot export the model (`export`).
    """
    model = PixelNetwork(load_network(card, folder), card.preprocessing).eval()
    example = torch.zeros((2, *card.preprocessing.shape), dtype=torch.uint8)
    _write(model, example, (INPUT, OUTPUT), card.name, path)


def write_trunk_graph(trunk: nn.Module, card: Card, path: Path) -> None:
    """Write the fp32 graph of a trunk, from normalised float32 images [n, c, crop, crop] to pooled features.

    Args:
        trunk: The trunk of the card's model.
        card: The card.
        path: The new graph.

    Raises:
        ExportError: If torch cannot export the trunk (`export`).
    """
    crop = card.preprocessing.crop
    example = torch.zeros((2, card.preprocessing.channels, crop, crop))
    _write(trunk.eval(), example, (IMAGES, FEATURES), card.name, path)


def _write(model: nn.Module, example: torch.Tensor, names: tuple[str, str], title: str, path: Path) -> None:
    """Write a graph of any batch size; names: of its input and output."""
    _rename_keyword_heads(model)
    try:
        program = _export(model, example, names)
    except Exception as error:  # the exporter raises a family of its own
        raise ExportError(f"{title} cannot be exported to ONNX: {error}") from None
    graph = program.model_proto
    _remove_traces(graph)
    keep_padding(graph)
    onnx.save(graph, path)


def _rename_keyword_heads(model: nn.Module) -> None:
    """Rename heads with the name of a Python keyword, as MIC's `class`; the exporter writes names into Python code."""
    for module in model.modules():
        if isinstance(module, nn.ModuleDict):
            heads = [(f"{name}_" if iskeyword(name) else name, head) for name, head in module.items()]
            module.clear()
            module.update(dict(heads))


def _remove_traces(model: onnx.ModelProto) -> None:
    """Remove the exporter's stack traces, which contain paths of this machine."""
    for holder in (model.graph, *model.functions):
        del holder.metadata_props[:]
        holder.doc_string = ""
        for part in (*holder.node, *holder.value_info):
            del part.metadata_props[:]
            part.doc_string = ""
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
        value.doc_string = ""


def keep_padding(model: onnx.ModelProto) -> None:
    """Put a node between each padding and a max pooling of it, so that the padding's zeros count.

    ONNX Runtime (1.31, its optimiser "PadFusion") would merge such a padding into MaxPool, whose own padding never is
    the maximum. Zeros at the border would then be lost where all other values are negative, as in hgnetv2's stem.
    """
    nodes: list[onnx.NodeProto] = []
    padded = {node.output[0] for node in model.graph.node if node.op_type == "Pad"}
    for node in model.graph.node:
        if node.op_type == "MaxPool" and node.input[0] in padded:
            name = f"{node.input[0]}_of_{node.output[0]}"
            nodes.append(onnx.helper.make_node("Clip", [node.input[0], LOWEST], [name], name=name))
            node.input[0] = name
        nodes.append(node)
    if len(nodes) > len(model.graph.node):
        lowest = np.array(np.finfo(np.float32).min)
        model.graph.initializer.append(onnx.numpy_helper.from_array(lowest, LOWEST))
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def _export(model: nn.Module, example: torch.Tensor, names: tuple[str, str]):  # type: ignore[no-untyped-def]
    batch = torch.export.Dim("n", min=1)
    # The exporter reports its steps on standard output, which is for the command's own answer.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            input_names=names[:1],
            output_names=names[1:],
            dynamic_shapes=({0: batch},),
            opset_version=OPSET,
            verbose=False,
        )
