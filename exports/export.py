"""Zoo export: graphs, parity, hashes.

Where what is made of a model is written: its folder, or a copy of a shipped or downloaded one in the local zoo.

The precisions that models are exported in.

Export a model folder: graphs, proof of parity, hashes in the card.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from exports import parity as images
from exports.graph import write_graph
from exports.parity import EmbedPixels, Parity, ReferenceRetrieval, measure_parity, reference_retrieval
from exports.precision import write_fp16
from zoo import paths
from zoo.errors import ExportError, ModelFolderError, UsageError
from zoo.files import atomic_folder, atomic_path, locked, read_object, sha256_of, write_json
from zoo.hub.download import cached_model_name
from zoo.models import onnx_runtime, torch_runtime
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files
from zoo.models.onnx_runtime import check_precision
from zoo.models.results import PARITY_FILE, entry_mismatch


def output_folder(folder: Path, precisions: Sequence[str], name: str | None = None) -> Path:
    """Where variants of the model are to be written; nothing is written yet.

    The model's folder; for one that is shipped with the package or lies in the Hub's cache, the folder in the local zoo
    of the name that loads it, `name` where it was asked for by one (as `org/name@revision`). A name is looked up in the
    local zoo before either, so that from then on it finds the copy with its new variants.

    Raises `UsageError` where fp32 is asked of a shipped model, which has it, or another model has the copy's name.
    """
    shipped = folder.resolve().is_relative_to(paths.SHIPPED.resolve())
    if shipped and list(precisions) == ["fp32"]:
        raise UsageError(f"{folder.name} is shipped with the package, its ONNX graph too; there is nothing to export.")
    if not shipped and not _in_hub_cache(folder):
        return folder
    card = read_card(folder)
    asked = None if name is None or (paths.expand(name) / "card.json").exists() else name.removeprefix("hf-hub:")
    copy = paths.local_models() / (asked or cached_model_name(folder) or card.name)
    if (copy / "card.json").exists() and read_card(copy).fingerprint != card.fingerprint:
        raise UsageError(f"{copy} is another model of the same name as {folder}; rename or remove one of them.")
    return copy


def copy_model(folder: Path, place: Path) -> None:
    """Copy a model folder to its place, where it is not there yet. Raises `ModelFolderError` for one that is spoilt."""
    if (place / "card.json").exists():
        return
    check_files(folder, read_card(folder))
    with atomic_folder(place) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)  # links into the cache's blobs become files


def writable_folder(folder: Path, precisions: Sequence[str], name: str | None = None) -> Path:
    """The place of `place_of`, and what both functions above raise; the copy is there afterwards."""
    place = output_folder(folder, precisions, name)
    if place != folder:
        copy_model(folder, place)
    return place


def _in_hub_cache(folder: Path) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return folder.resolve().is_relative_to(Path(HF_HUB_CACHE).resolve())


class Exporter:
    """Exports of one model folder, one precision after another; what they share is made once.

    Args:
        folder: The model folder.
        calibration, data, count: The images that calibrate int8; see `draw_calibration_images`. `data` also holds the
            data set that the cost is measured on.
        force: Write a variant that misses its floor as well.
        cost: Measure the cost of fp16 and int8 in retrieval where the data set is available.
        into: The folder that variants are written to (default: `folder`). The model is copied there with the first one.
    """

    def __init__(
        self,
        folder: Path,
        calibration: str | None = None,
        data: Path | None = None,
        force: bool = False,
        cost: bool = True,
        count: int = images.CALIBRATION_COUNT,
        into: Path | None = None,
    ) -> None:
        if into is None and folder.resolve().is_relative_to(paths.SHIPPED.resolve()):
            raise UsageError(f"{folder.name} is shipped with the package, and nothing is written there.")
        self.folder, self.card = folder, read_card(folder)
        self.calibration, self.data, self.force, self.measures_cost, self.count = calibration, data, force, cost, count
        self.into = into or folder
        self.dropped: list[str] = []
        """The graphs that the last export took away, because they were made of the one that it replaced."""
        self._baseline: ReferenceRetrieval | str = ""
        check_files(folder, self.card)

    def export(self, precision: str) -> Parity:
        """Write the graph, its entry of `onnx/parity.json` and its SHA-256 in the card.

        The graph that resizes, which was made of the one before, goes.

        Raises `ExportError` where an embedding is less equal to torch's than the floor; it and every other failure
        leave the folder as it was.
        """
        check_precision(precision)
        with tempfile.TemporaryDirectory() as name:
            graph = Path(name) / "model.onnx"
            base = None if precision == "fp32" else self._base(Path(name) / "fp32.onnx")
            pixels = self._compared(precision)
            details = self._write(precision, base, pixels, graph)
            write_metadata(graph, self.card, precision)
            parity = dataclasses.replace(self._parity(graph, pixels, precision), details=details)
            if not parity.holds and not self.force:
                raise ExportError(_refusal(self.card, parity))
            parity = dataclasses.replace(parity, forced=not parity.holds, cost=self._cost(graph, base, precision))
            self._publish(onnx_runtime.GRAPH_FILES[precision], graph, {precision: parity.to_json()})
        return parity

    def export_resizing(self, precision: str) -> dict[str, Any]:
        """Write the precision's graph with resizing in front of it, in a file of its own; how far it is from Pillow's.

        Raises `ExportError` where an embedding is less equal than `RESIZE_FLOOR`; nothing is written then.
        """
        from exports.graph import compare_resizing, write_resizing_graph

        how, source = self.card.preprocessing, self.folder / onnx_runtime.GRAPH_FILES[precision]
        with tempfile.TemporaryDirectory() as name:
            graph = Path(name) / "model.onnx"
            write_resizing_graph(source, how, graph)
            write_metadata(graph, self.card, precision)
            run, _ = onnx_runtime.open_graph(source, self.card, precision=precision)
            row = compare_resizing(graph, run, images.pattern_images(how), how)
            if not row["holds"] and not self.force:
                raise ExportError(
                    f"resizing inside the {precision} graph of {self.card.name} departs from Pillow's: least cosine "
                    f"{row['min_cosine_to_pillow']:.4f}, floor {row['floor']}; it was not written."
                )
            row["forced"] = not row["holds"]
            self._publish(onnx_runtime.RESIZING_FILES[precision], graph, {f"{precision}-resize": row})
        return row

    def _publish(self, name: str, graph: Path, entries: dict[str, Any]) -> None:
        if self.folder != self.into:
            copy_model(self.folder, self.into)
            self.folder = self.into
        of = {"fingerprint": self.card.fingerprint}
        self.dropped = add_graph(self.folder, name, graph, {variant: of | said for variant, said in entries.items()})

    def _write(self, precision: str, base: Path | None, pixels: np.ndarray, graph: Path) -> dict[str, Any]:
        if base is None:
            write_graph(self.folder, self.card, graph)
            return {}
        if precision == "fp16":
            return write_fp16(base, pixels, graph)
        from exports.quantize import write_int8

        return {**write_int8(base, self._sample.calibration, graph), "calibrated_on": self._sample.source}

    def _base(self, made: Path) -> Path:
        """The folder's fp32 graph, or one that is made for the occasion."""
        name, card = onnx_runtime.GRAPH_FILES["fp32"], read_card(self.folder)
        try:
            check_files(self.folder, card, [name])
            onnx_runtime.open_graph(self.folder / name, card, precision="fp32")
        except ModelFolderError:
            write_graph(self.folder, self.card, made)
            return made
        return self.folder / name

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the images that costs were measured on, in words."""
        return self._baseline.notes if isinstance(self._baseline, ReferenceRetrieval) else ()

    @cached_property
    def _sample(self) -> images.CalibrationImages:
        return images.draw_calibration_images(self.card, self.calibration, self.data, self.count, self.folder)

    @cached_property
    def _torch(self) -> EmbedPixels:
        return torch_runtime.open_model(self.folder, self.card, device="cpu")[0]

    def _parity(self, graph: Path, pixels: np.ndarray, precision: str) -> Parity:
        expected = np.concatenate([self._torch(pixels[i : i + 32]) for i in range(0, len(pixels), 32)])
        run, _ = onnx_runtime.open_graph(graph, self.card)
        return measure_parity(expected, run, pixels, precision)

    def _compared(self, precision: str) -> np.ndarray:
        """The pixels on which a graph is compared with torch."""
        # int8's ranges are those of training images: noise, which lies outside them, says nothing of its use.
        others = self._sample.held_out if precision == "int8" else images.noise_images(self.card.preprocessing)
        return np.concatenate([images.golden_pixels(self.folder, self.card), others])

    def _cost(self, graph: Path, base: Path | None, precision: str) -> dict[str, Any] | None:
        """What the precision costs, or why that was not measured: {"not_measured": ...}."""
        if base is None or not self.measures_cost:
            return None
        if not self._baseline:
            run, _ = onnx_runtime.open_graph(base, self.card)
            self._baseline = reference_retrieval(self.folder, self.card, run, self.data)
        if isinstance(self._baseline, str):
            return {"not_measured": self._baseline}
        run, _ = onnx_runtime.open_graph(graph, self.card)
        return self._baseline.cost(self.folder, self.card, run, precision)


def export(
    folder: Path, precision: str = "fp32", calibration: str | None = None, data: Path | None = None, force: bool = False
) -> Parity:
    """Export a model folder in one precision. Arguments and errors are those of `Exporter`."""
    return Exporter(folder, calibration, data, force).export(precision)


def write_metadata(path: Path, card: Card, precision: str) -> None:
    """Write into a graph which model it is of, so that it is never run as another's."""
    model = onnx.load(path)
    # ONNX Runtime's optimiser lists every domain that it knows; other readers may know fewer.
    used = {node.domain for node in model.graph.node} | {""}
    domains = {entry.domain: entry.version for entry in model.opset_import if entry.domain in used}
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, number) for domain, number in domains.items())
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {onnx_runtime.FINGERPRINT: card.fingerprint, onnx_runtime.PRECISION: precision})
    onnx.save(model, path)


def add_graph(folder: Path, name: str, graph: Path, entries: dict[str, Any]) -> list[str]:
    """Put a finished graph into the folder, with its entries in parity.json and its hash in the card; what was dropped.

    All three are written under temporary names first and then renamed, the card last: a graph without its hash in the
    card is never used. The graph that resizes was made of the one that is replaced, and goes with it.
    """
    stale = {
        f"{p}-resize": onnx_runtime.RESIZING_FILES[p] for p, file in onnx_runtime.GRAPH_FILES.items() if file == name
    }
    with locked(folder):
        with ExitStack() as stack:
            card = read_card(folder)
            own_card = stack.enter_context(atomic_path(folder / "card.json"))
            parity = stack.enter_context(atomic_path(folder / PARITY_FILE))
            final = stack.enter_context(atomic_path(folder / name))
            shutil.copyfile(graph, final)
            write_json(parity, {**_without(_said(folder, card), stale), **entries})
            files = {**_without(card.files, stale.values()), name: sha256_of(final)}
            write_json(own_card, dataclasses.replace(card, files=files).to_json())
        dropped = [file for file in stale.values() if (folder / file).exists()]
        for file in dropped:
            (folder / file).unlink()
    return dropped


def _said(folder: Path, card: Card) -> dict[str, Any]:
    """What parity.json says of this model's graphs. A file that cannot be read is made anew."""
    graphs = [variant for variant, file in onnx_runtime.VARIANT_FILES.items() if file in card.files]
    said = {variant: entry for variant, entry in read_object(folder / PARITY_FILE).items() if isinstance(entry, dict)}
    return {variant: entry for variant, entry in said.items() if not entry_mismatch(entry, variant, card, graphs)}


def _without(entries: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key not in left_out}


def _refusal(card: Card, parity: Parity) -> str:
    return (
        f"the {parity.variant} graph of {card.name} departs from torch: least cosine {parity.min_cosine:.7f}, "
        f"floor {parity.floor}; nothing was written. To have it nevertheless: "
        f"zoo export {card.name} --precision {parity.variant} --force"
    )
