"""ONNX graphs of a model in one or several precisions: `zoo.export`. It checks its arguments before torch is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import ZooError
from zoo.models.names import find_model
from zoo.models.onnx_runtime import GRAPH_FILES, check_precision
from zoo.models.registry import ModelLike, model_text
from zoo.paths import expand

if TYPE_CHECKING:
    from exports.parity import Parity

ALL = "all"
"""Stands for every precision."""


@dataclass(frozen=True, repr=False)
class ExportedModel:
    """The result of an export.

    Attributes:
        folder: The model's folder with the graphs; of a model that must not be written to, its copy in the local zoo.
        fingerprint: The fingerprint of the model.
        parity: The difference between each graph and torch, by precision.
        resizing: The difference between each graph that resizes and Pillow, by precision.
        dropped: Graphs that were removed, since they were made from graphs that have been replaced.
        notes: Remarks about the images on which a precision's cost was measured.
    """

    folder: Path
    fingerprint: str
    parity: Mapping[str, Parity] = field(default_factory=dict)
    resizing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        graphs = ", ".join(f"{name} (cosine {proof.min_cosine:.5f})" for name, proof in self.parity.items())
        return f"ExportedModel({str(self.folder)!r}: {graphs})"


def export(
    model: ModelLike,
    precision: str | Iterable[str] = "fp32",
    *,
    calibration: str | None = None,
    data: str | os.PathLike[str] | None = None,
    resize: bool = False,
    cost: bool = True,
    force: bool = False,
    failed: MutableMapping[str, ZooError] | None = None,
) -> ExportedModel:
    """Write ONNX graphs of a model, and prove that they give the torch model's embeddings.

    >>> exported = zoo.export("mine")
    >>> model = zoo.load("mine", runtime="onnx")

    Args:
        model: The model: a name, a folder, or what `zoo.train` and `zoo.finetune` return.
        precision: fp32, fp16, int8, several of them, or "all".
        calibration: For int8: a data set whose training images calibrate it, or a folder or table of images.
        data: The folder of that data set.
        resize: Also write graphs that take images of any height and width.
        cost: Measure what fp16 and int8 cost in retrieval, where the images are available.
        force: Also write a graph that departs too far from torch.
        failed: Receives the errors by precision, and the other precisions are exported. Without this argument the
            first error is raised.

    Raises:
        ModelNotFoundError: If there is no such model.
        UsageError: If a precision is unknown, or a shipped model has the graph already.
        ExportError: If an embedding differs from torch's by more than the precision's floor allows.
    """
    precisions = list(dict.fromkeys([precision] if isinstance(precision, str) else precision))
    if precisions == [ALL]:
        precisions = list(GRAPH_FILES)
    for name in precisions:
        check_precision(name)
    source = find_model(model)
    from exports.export import Exporter, output_folder

    folder = output_folder(source, precisions, model_text(model))
    own = (folder / "card.json").exists()
    exporter = Exporter(
        folder if own else source, calibration, None if data is None else expand(data), force, cost, into=folder
    )
    parity: dict[str, Parity] = {}
    resizing: dict[str, Mapping[str, Any]] = {}
    dropped: list[str] = []
    for name in precisions:
        try:
            parity[name] = exporter.export(name)
            dropped += [] if resize else exporter.dropped
            if resize:
                resizing[name] = exporter.export_resizing(name)
        except ZooError as error:
            if failed is None:
                raise
            failed[name] = error
    return ExportedModel(folder, exporter.card.fingerprint, parity, resizing, tuple(dropped), exporter.notes)
