"""A model folder's network as an ONNX graph: uint8 pixels in, unit float32 embeddings out, any batch size."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import torch

from zoo.cards import Card
from zoo.errors import ExportError
from zoo.network import PixelNetwork, load_network
from zoo.onnx_runtime import INPUT, OUTPUT

OPSET = 20


def write_graph(folder: Path, card: Card, path: Path) -> None:
    """Write the fp32 graph of the model in `folder` to `path`. Raises `ExportError` where torch cannot export it."""
    model = PixelNetwork(load_network(card, folder), card.preprocessing).eval()
    example = torch.zeros((2, *card.preprocessing.shape), dtype=torch.uint8)
    try:
        program = _export(model, example)
    except Exception as error:  # the exporter raises a family of its own
        raise ExportError(f"{card.name} cannot be exported to ONNX: {error}") from None
    program.save(path)


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
