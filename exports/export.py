"""Exports of a model folder to ONNX: graphs, proof of parity with torch, hashes in the card.

A model that must not be written to, because it is shipped or in the Hub's cache, is copied into the local zoo first.
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

from exports.parity import (
    CALIBRATION_COUNT,
    CalibrationImages,
    EmbedPixels,
    Parity,
    ReferenceRetrieval,
    draw_calibration_images,
    images_folder,
    measure_parity,
    noise_images,
    pattern_images,
    reference_retrieval,
)
from exports.precision import store_in_half, write_fp16
from exports.quantize import write_int8
from exports.resizing import compare_resizing, write_resizing_graph
from zoo import paths
from zoo.errors import ExportError, ModelFolderError, UsageError, ZooError, command
from zoo.files import atomic_folder, atomic_path, locked, read_object, sha256_of, write_json
from zoo.hub.download import cached_model_name
from zoo.models import torch_runtime
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files, is_stored_in_half
from zoo.models.golden import golden_pixels
from zoo.models.graph import write_graph
from zoo.models.onnx_runtime import (
    FINGERPRINT,
    GRAPH_FILES,
    PRECISION,
    RESIZING_FILES,
    check_precision,
    open_graph,
)
from zoo.models.registry import reference
from zoo.models.results import PARITY_FILE, entry_mismatch


def output_folder(folder: Path, precisions: Sequence[str], name: str | None = None) -> Path:
    """Return the folder that variants of a model are written to, without writing anything.

    That is the model's own folder. If it is shipped with the package or in the Hub's cache, it is a folder in the local
    zoo with the name that loads the model. A name is looked up in the local zoo first, so it finds the copy from then
    on.

    Args:
        folder: The model folder.
        precisions: The variants.
        name: The name that the model was loaded by, as `org/name@revision`.

    Raises:
        UsageError: If only fp32 is wanted of a shipped model that has it; or the copy's name is another model's.
    """
    shipped = _is_shipped(folder)
    if shipped and list(precisions) == ["fp32"] and (folder / GRAPH_FILES["fp32"]).exists():
        message = f"{folder.name} is shipped with the package, and so is its ONNX graph; there is nothing to export."
        raise UsageError(message, code="option-without-effect")
    if not shipped and not _in_hub_cache(folder):
        return folder
    card = read_card(folder)
    own_name = None if name is None or (paths.expand(name) / "card.json").exists() else name.removeprefix("hf-hub:")
    copy = paths.local_models() / (own_name or cached_model_name(folder) or card.name)
    if (copy / "card.json").exists() and read_card(copy).fingerprint != card.fingerprint:
        message = f"{copy} is another model of the same name as {folder}; rename or remove one of them."
        raise UsageError(message, code="already-exists")
    return copy


def writable_folder(folder: Path, precisions: Sequence[str], name: str | None = None) -> Path:
    """Return `output_folder`, with a copy of the model in it. Arguments and errors are those of the two functions."""
    target = output_folder(folder, precisions, name)
    if target != folder:
        copy_model(folder, target)
    return target


def copy_model(folder: Path, target: Path) -> None:
    """Copy a model folder to `target`, unless a model is there.

    Raises:
        ModelFolderError: If the model folder is damaged.
    """
    if (target / "card.json").exists():
        return
    check_files(folder, read_card(folder))
    with atomic_folder(target) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)  # links into the cache's blobs become files


def _is_shipped(folder: Path) -> bool:
    return folder.resolve().is_relative_to(paths.SHIPPED.resolve())


def _in_hub_cache(folder: Path) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return folder.resolve().is_relative_to(Path(HF_HUB_CACHE).resolve())


class Exporter:
    """Exports of one model folder, one precision after another; images and reference are made once.

    Args:
        folder: The model folder.
        calibration, data, count: The images that calibrate int8; see `draw_calibration_images`. The cost is measured
            on the data set in `data`; without it, see `images_folder`.
        force: Write a variant that misses its floor as well.
        cost: Measure the cost of fp16 and int8 in retrieval where the data set is available.
        into: The folder that variants are written to (default: `folder`). The model is copied there with the first one.

    Attributes:
        dropped: The graphs that the last export removed, because they were made from the graph that it replaced.

    Raises:
        UsageError: If the folder is shipped with the package, and `into` is not given.
        ModelFolderError: If the model folder is damaged.
    """

    def __init__(
        self,
        folder: Path,
        calibration: str | None = None,
        data: Path | None = None,
        force: bool = False,
        cost: bool = True,
        count: int = CALIBRATION_COUNT,
        into: Path | None = None,
    ) -> None:
        if into is None and _is_shipped(folder):
            message = f"{folder.name} is shipped with the package, and nothing is written there."
            raise UsageError(message, code="not-available")
        self.folder, self.card = folder, read_card(folder)
        self.calibration, self.data, self.force, self.measures_cost, self.count = calibration, data, force, cost, count
        self.measured_images = data or images_folder(self.card, calibration)
        self.into = into or folder
        self.dropped: list[str] = []
        self._reference: ReferenceRetrieval | None = None
        self._not_measured: str | None = None
        check_files(folder, self.card)

    def export(self, precision: str) -> Parity:
        """Write the graph, its entry in onnx/parity.json and its SHA-256 in the card.

        A graph that resizes and was made from the replaced graph is removed. An error leaves the folder unchanged.

        Raises:
            UsageError: If the precision is unknown.
            ExportError: If an embedding differs from torch's by more than the floor allows.
        """
        check_precision(precision)
        with tempfile.TemporaryDirectory() as scratch:
            graph = Path(scratch) / "model.onnx"
            base = None if precision == "fp32" else self._fp32_graph(Path(scratch) / "fp32.onnx")
            pixels = self._compared_pixels(precision)
            details = self._write(precision, base, pixels, graph)
            write_metadata(graph, self.card, precision)
            parity = dataclasses.replace(self._parity(graph, pixels, precision), details=details)
            if not parity.holds and not self.force:
                raise self._below_floor(parity)
            parity = dataclasses.replace(parity, forced=not parity.holds, cost=self._cost(graph, base, precision))
            self._add(GRAPH_FILES[precision], graph, precision, parity.to_json())
        return parity

    def export_resizing(self, precision: str) -> dict[str, Any]:
        """Write the precision's graph with resizing in front of it into a file of its own.

        Returns:
            The entry in onnx/parity.json; see `compare_resizing`.

        Raises:
            ExportError: If an embedding differs by more than `RESIZE_FLOOR` allows. Nothing is written then.
        """
        preprocessing, source = self.card.preprocessing, self.folder / GRAPH_FILES[precision]
        with tempfile.TemporaryDirectory() as scratch:
            graph = Path(scratch) / "model.onnx"
            write_resizing_graph(source, preprocessing, graph)
            write_metadata(graph, self.card, precision)
            run, _ = open_graph(source, self.card, precision=precision)
            entry = compare_resizing(graph, run, pattern_images(preprocessing), preprocessing)
            if not entry["holds"] and not self.force:
                raise ExportError(
                    f"resizing inside the {precision} graph of {self.card.name} differs from Pillow's: least cosine "
                    f"{entry['min_cosine_to_pillow']:.4f}, floor {entry['floor']}; it was not written.",
                    code="below-floor",
                )
            entry["forced"] = not entry["holds"]
            self._add(RESIZING_FILES[precision], graph, f"{precision}-resize", entry)
        return entry

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks about the images that costs were measured on."""
        return self._reference.notes if self._reference else ()

    def _add(self, file: str, graph: Path, variant: str, entry: dict[str, Any]) -> None:
        if self.folder != self.into:
            copy_model(self.folder, self.into)
            self.folder = self.into
        entry = {"fingerprint": self.card.fingerprint, **entry}
        self.dropped = add_graph(self.folder, file, graph, {variant: entry})

    def _write(self, precision: str, base: Path | None, pixels: np.ndarray, graph: Path) -> dict[str, Any]:
        if base is None:
            write_graph(self.folder, self.card, graph)
            if is_stored_in_half(self.folder, self.card):
                store_in_half(graph, self.folder, self.card)
            return {}
        if precision == "fp16":
            return write_fp16(base, pixels, graph)
        images = self._calibration_images
        return {**write_int8(base, images.calibration, graph), "calibrated_on": images.source}

    def _fp32_graph(self, temporary: Path) -> Path:
        """Return the folder's fp32 graph; if it is missing, damaged or stored in float16, write a temporary one."""
        file, card = GRAPH_FILES["fp32"], read_card(self.folder)
        try:
            check_files(self.folder, card, [file])
            open_graph(self.folder / file, card, precision="fp32")
            usable = not is_stored_in_half(self.folder, card)
        except ModelFolderError:
            usable = False
        if usable:
            return self.folder / file
        write_graph(self.folder, self.card, temporary)
        return temporary

    @cached_property
    def _calibration_images(self) -> CalibrationImages:
        return draw_calibration_images(self.card, self.calibration, self.data, self.count, self.folder)

    @cached_property
    def _torch(self) -> EmbedPixels:
        return torch_runtime.open_model(self.folder, self.card, device="cpu")[0]

    def _parity(self, graph: Path, pixels: np.ndarray, precision: str) -> Parity:
        expected = np.concatenate([self._torch(pixels[i : i + 32]) for i in range(0, len(pixels), 32)])
        run, _ = open_graph(graph, self.card)
        return measure_parity(expected, run, pixels, precision)

    def _compared_pixels(self, precision: str) -> np.ndarray:
        """Return the pixels on which a graph is compared with torch."""
        # int8's ranges are those of training images; noise exceeds them and says nothing about int8 in use.
        other_pixels = (
            self._calibration_images.held_out if precision == "int8" else noise_images(self.card.preprocessing)
        )
        return np.concatenate([golden_pixels(self.folder, self.card), other_pixels])

    def _cost(self, graph: Path, base: Path | None, precision: str) -> dict[str, Any] | None:
        """Return the precision's cost, or the reason why it was not measured: {"not_measured": ...}."""
        if base is None or not self.measures_cost:
            return None
        if self._reference is None and self._not_measured is None:
            run, _ = open_graph(base, self.card)
            try:
                self._reference = reference_retrieval(self.folder, self.card, run, self.measured_images)
            except ZooError as error:
                self._not_measured = str(error)
        if self._reference is None:
            return {"not_measured": self._not_measured}
        run, _ = open_graph(graph, self.card)
        return self._reference.cost(self.folder, self.card, run, precision)

    def _below_floor(self, parity: Parity) -> ExportError:
        options = (("--calibration", self.calibration), ("--data", self.data))
        images = [word for option, value in options if value is not None for word in (option, value)]
        again = command("export", reference(self.folder), "--precision", parity.variant, *images, "--force")
        return ExportError(
            f"the {parity.variant} graph of {self.card.name} differs from torch: least cosine "
            f"{parity.min_cosine:.7f}, floor {parity.floor}; nothing was written. To write it nevertheless: {again}",
            code="below-floor",
        )


def export(
    folder: Path, precision: str = "fp32", calibration: str | None = None, data: Path | None = None, force: bool = False
) -> Parity:
    """Export a model folder in one precision.

    Args:
        folder: The model folder.
        precision: The precision of the graph.
        calibration: The images that calibrate int8; see `draw_calibration_images`.
        data: The folder of data sets, for calibration and for the cost in retrieval.
        force: Whether a graph that misses its floor is written as well.

    Returns:
        The difference between the graph's embeddings and torch's.

    Raises:
        ZooError: If `Exporter` or its `export` would raise it.
    """
    return Exporter(folder, calibration, data, force).export(precision)


def write_metadata(path: Path, card: Card, precision: str) -> None:
    """Write the model's fingerprint and the precision into a graph, so that it never runs as another model's."""
    model = onnx.load(path)
    # ONNX Runtime's optimiser lists every domain that it knows; other readers may know fewer.
    used = {node.domain for node in model.graph.node} | {""}
    domains = {entry.domain: entry.version for entry in model.opset_import if entry.domain in used}
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(domain, number) for domain, number in domains.items())
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {FINGERPRINT: card.fingerprint, PRECISION: precision})
    onnx.save(model, path)


def add_graph(folder: Path, file: str, graph: Path, entries: dict[str, Any]) -> list[str]:
    """Put a finished graph into a model folder, with its entries in parity.json and its hash in the card.

    All three are written under temporary names and then renamed, the card last: a graph without its hash in the card is
    never used.

    Args:
        folder: The model folder.
        file: The graph's path in the folder.
        graph: The finished graph.
        entries: The new entries in onnx/parity.json by variant.

    Returns:
        The removed graphs: those that resize and were made from the replaced graph.
    """
    stale = {f"{p}-resize": RESIZING_FILES[p] for p, name in GRAPH_FILES.items() if name == file}
    with locked(folder):
        with ExitStack() as stack:
            card = read_card(folder)
            new_card = stack.enter_context(atomic_path(folder / "card.json"))
            parity = stack.enter_context(atomic_path(folder / PARITY_FILE))
            final = stack.enter_context(atomic_path(folder / file))
            shutil.copyfile(graph, final)
            write_json(parity, {**_without(_parity_entries(folder, card), stale), **entries})
            files = {**_without(card.files, stale.values()), file: sha256_of(final)}
            write_json(new_card, dataclasses.replace(card, files=files).to_json())
        dropped = [name for name in stale.values() if (folder / name).exists()]
        for name in dropped:
            (folder / name).unlink()
    return dropped


def _parity_entries(folder: Path, card: Card) -> dict[str, Any]:
    """Read the entries in parity.json of this model's graphs; an unreadable file has none."""
    return {
        variant: entry
        for variant, entry in read_object(folder / PARITY_FILE).items()
        if isinstance(entry, dict) and not entry_mismatch(entry, variant, card)
    }


def _without(entries: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key not in left_out}
