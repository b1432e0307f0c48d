"""Results of trainings: of a recipe, and of a distillation. Their names need no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.console import count, interval_text
from zoo.data.dataset import FOLDER
from zoo.data.folder import has_test_split
from zoo.errors import command
from zoo.evaluation.evaluate import METRICS
from zoo.evaluation.selection import MetricChange, Selection, change_table, changes
from zoo.evaluation.split import default_dataset
from zoo.evaluation.statistics import ONE_SEED
from zoo.models.card import Card, read_card
from zoo.models.results import Evaluation, data_title, few_classes_note, origin_text

if TYPE_CHECKING:
    from training.distillation.fidelity import Fidelity
    from training.distillation.images import StudentImages


@dataclass(frozen=True, repr=False)
class FinishedRun:
    """A finished training run.

    Attributes:
        name: The model's name.
        folder: Its model folder.
        seconds: The time of training and validation.
        epochs: The number of epochs.
        steps: The batches of all epochs and members.
        images: The images of these batches, each as often as it was in one.
        best_epoch: The epoch that was kept by validation, 0 for the start; None without validation.
        validation: The scores of that epoch on held-out training classes.
        validation_classes: The number of these classes.
        skipped: The number of images that could not be read.
        evaluation: The measurement on the test split, as in results.json, or None.
        not_evaluated: The reason why a wanted evaluation is missing.
    """

    name: str
    folder: Path
    seconds: float
    epochs: int
    steps: int
    images: int
    best_epoch: int | None
    validation: dict[str, float]
    skipped: int = 0
    validation_classes: int = 0
    evaluation: Evaluation | None = None
    not_evaluated: str | None = None

    def __repr__(self) -> str:
        metrics = {} if self.evaluation is None else self.evaluation.metrics
        scores = "".join(f", {name} {value:.4f}" for name, value in metrics.items() if name in METRICS)
        return f"FinishedRun({self.name!r}: {count(self.epochs, 'epoch')}{scores}, in {str(self.folder)!r})"

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        evaluation = None if self.evaluation is None else self.evaluation.to_json()
        return {**values, "folder": str(self.folder), "evaluation": evaluation}

    def summary(self, data: str | None = None) -> str:
        """Return the run as a text: epochs, folder, and the scores or the reason why they are missing.

        Args:
            data: The folder or table of the data set, for the command that measures the model.
        """
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.validation.items())
        best = "the start (epoch 0)" if self.best_epoch == 0 else f"epoch {self.best_epoch}"
        held_out = count(self.validation_classes, "held-out training class", "held-out training classes")
        why = "; ".join(filter(None, (scores, few_classes_note(self.validation_classes))))
        kept_epoch = f"{best}, best on {held_out} ({why})" if scores else "the last epoch"
        if not self.epochs:
            kept_epoch = "the start, which is not trained"
        skipped = count(self.skipped, "image")
        left_out = f"{skipped} could not be read; left out.\n" if self.skipped else ""
        budget = f"{count(self.epochs, 'epoch')} ({count(self.steps, 'step')}, {count(self.images, 'image')})"
        return (
            f"{left_out}{self.name}: {budget} in {self.seconds:.0f} s; kept {kept_epoch}.\n"
            f"Written to {self.folder}.\n{self._scores(data)}"
        )

    def _scores(self, data: str | None) -> str:
        if self.evaluation is not None:
            intervals = self.evaluation.intervals
            scores = ", ".join(
                f"{name} {value:.4f}" + (f" ({interval_text(intervals[name])})" if name in intervals else "")
                for name, value in self.evaluation.metrics.items()
            )
            brackets = "; in brackets 95 % over classes" if intervals else ""
            unreadable = self.evaluation.unreadable
            unread = f" ({count(unreadable, 'image')} could not be read)" if unreadable else ""
            facts = self.evaluation.to_json()
            how = f"{self.evaluation.runtime} in {self.evaluation.precision}; {origin_text(facts)}{brackets}"
            return f"Test split of {data_title(facts)}{unread}: {scores} ({how})."
        is_own = default_dataset(self.folder, read_card(self.folder)) == FOLDER
        if is_own and (data is None or not has_test_split(data)):
            data = "DIR"  # another one, as the images that were trained on have no part to measure
        named = () if data is None else ("--data", data)
        measure = "Measure it" + " on images of other classes in DIR" * (data == "DIR")
        measure += f" with: {command('evaluate', self.name, *named, '--save')}"
        return measure if self.not_evaluated is None else f"Not measured: {self.not_evaluated} {measure}"


@dataclass(frozen=True, repr=False)
class Distilled:
    """The result of a distillation.

    Attributes:
        outcome: The student's training.
        pictures: Its images.
        teacher: The teacher's card.
        fidelity: The agreement with the teacher.
        selection: The epoch that was kept, and the classes that chose it.
        dim: The dimension of the student's embedding.
        rows: The metrics of the teacher ("before") and of the student, with paired differences; empty without labels.
        seen_classes: The measured classes that the teacher was trained or whitened on.
    """

    outcome: FinishedRun
    pictures: StudentImages
    teacher: Card
    fidelity: Fidelity
    selection: Selection
    dim: int
    rows: tuple[MetricChange, ...] = ()
    seen_classes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        agreement = f"{self.fidelity.neighbours.value:.4f} of its nearest {self.fidelity.k}"
        return f"Distilled({self.outcome.name!r} of {self.teacher.name}: {agreement}; {changes(self.rows)})"

    def _repr_html_(self) -> str:
        """Return the comparison with the teacher as a table, for notebooks."""
        title = f"before: {self.teacher.name}, the teacher; after: {self.outcome.name}; intervals {ONE_SEED}"
        return change_table(self.rows).html(title)

    @property
    def folder(self) -> Path:
        """The student's folder."""
        return self.outcome.folder

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            **self.outcome.to_json(),
            "teacher": self.teacher.identity,
            "split": self.pictures.to_json(),
            "unreadable": self.pictures.unreadable,
            "labelled": self.pictures.labelled,
            "seen_by_teacher": list(self.seen_classes),
            "fidelity": self.fidelity.to_json(),
            "kept": self.selection.kept,
            "selection": self.selection.to_json(),
            "dim": {"before": self.teacher.dim, "after": self.dim},
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "interval_note": ONE_SEED,
        }
