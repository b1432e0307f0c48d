"""A model folder's network as an ONNX graph: uint8 pixels in, unit float32 embeddings out, any batch size."""

from __future__ import annotations

import contextlib
import io
import warnings
from keyword import iskeyword
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from zoo.errors import ExportError
from zoo.models.card import Card
from zoo.models.network import PixelNetwork, load_network
from zoo.models.onnx_runtime import INPUT, OUTPUT

OPSET = 20
LOWEST = "lowest"
"""The name of the least float32: what is clipped at it stays as it is."""


def write_graph(folder: Path, card: Card, path: Path) -> None:
    """Write the fp32 graph of the model in `folder` to `path`. Raises `ExportError` where torch cannot export it."""
    model = PixelNetwork(load_network(card, folder), card.preprocessing).eval()
    _without_keywords(model)
    example = torch.zeros((2, *card.preprocessing.shape), dtype=torch.uint8)
    try:
        program = _export(model, example)
    except Exception as error:  # the exporter raises a family of its own
        raise ExportError(f"{card.name} cannot be exported to ONNX: {error}") from None
    onnx.save(keep_padding(_anonymous(program.model_proto)), path)


def _without_keywords(model: nn.Module) -> None:
    """Rename heads whose names, as MIC's `class`, cannot be variables of the Python code that the exporter writes."""
    for module in model.modules():
        if isinstance(module, nn.ModuleDict):
            heads = [(f"{name}_" if iskeyword(name) else name, head) for name, head in module.items()]
            module.clear()
            module.update(dict(heads))


def _anonymous(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph without the exporter's stack traces, which hold the paths of the machine that made it."""
    for holder in (model.graph, *model.functions):
        del holder.metadata_props[:]
        holder.doc_string = ""
        for part in (*holder.node, *holder.value_info):
            del part.metadata_props[:]
            part.doc_string = ""
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
        value.doc_string = ""
    return model


def keep_padding(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with something between each padding and the maximum that is taken of what was padded.

    ONNX Runtime (1.31, its optimiser "PadFusion") leaves such a padding to MaxPool, whose own counts for nothing: zeros
    at the border are then no longer the largest where all else is negative, as in hgnetv2's stem.
    """
    nodes, kept = list(model.graph.node), []
    padded = {node.output[0] for node in nodes if node.op_type == "Pad"}
    for node in nodes:
        if node.op_type == "MaxPool" and node.input[0] in padded:
            apart = f"{node.input[0]}_of_{node.output[0]}"
            kept.append(onnx.helper.make_node("Clip", [node.input[0], LOWEST], [apart], name=apart))
            node.input[0] = apart
        kept.append(node)
    if len(kept) > len(nodes):
        lowest = np.array(np.finfo(np.float32).min)
        model.graph.initializer.append(onnx.numpy_helper.from_array(lowest, LOWEST))
        del model.graph.node[:]
        model.graph.node.extend(kept)
    return model


def _export(model: PixelNetwork, example: torch.Tensor):  # type: ignore[no-untyped-def]
    batch = torch.export.Dim("n", min=1)
    # The exporter reports its steps on standard output, which belongs to the command's own answer.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={"pixels": {0: batch}},
            opset_version=OPSET,
            verbose=False,
        )
