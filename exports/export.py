"""Export a model folder: graph, proof of parity, hash in the card."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from exports.graph import write_graph
from exports.parity import Parity, measure
from zoo import onnx_runtime, paths
from zoo.cards import read_card
from zoo.errors import ExportError, UsageError
from zoo.files import atomic_path, sha256_of, write_json
from zoo.loading import check_files

PARITY = "onnx/parity.json"


def export(folder: Path, precision: str = "fp32") -> Parity:
    """Write `onnx/model.onnx` and `onnx/parity.json` into the model folder and the graph's SHA-256 into its card.

    Raises `ExportError`, leaving the folder as it was, where an embedding is less equal to torch's than the floor.
    """
    if precision != "fp32":
        raise UsageError(f"models are exported in fp32 so far, not {precision!r}.")
    if folder.resolve().is_relative_to(paths.SHIPPED.resolve()):
        raise UsageError(f"{folder.name} is shipped with the package, its ONNX graph too; there is nothing to export.")
    card = read_card(folder)
    check_files(folder, card)
    name = onnx_runtime.FILES[precision]
    with atomic_path(folder / name) as temporary:
        write_graph(folder, card, temporary)
        run, _ = onnx_runtime.open_file(temporary, card)
        parity = measure(folder, card, run, precision)
        if not parity.holds:
            raise ExportError(
                f"the {precision} graph of {card.name} departs from torch: least cosine {parity.min_cosine:.7f}, "
                f"floor {parity.floor}; nothing was written."
            )
    write_json(folder / PARITY, {precision: parity.to_json()})
    dataclasses.replace(card, files={**card.files, name: sha256_of(folder / name)}).write(folder)
    return parity
