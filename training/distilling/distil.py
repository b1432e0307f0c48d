"""A student made from a teacher, and measured beside it on images that were held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from training.api import Outcome, train
from training.distilling.fidelity import Fidelity, compare
from training.distilling.pictures import Pictures, unlabelled
from training.distilling.recipe import check_parts, recipe_for
from training.distilling.student import BATCH, Student
from training.finetuning.history import check_name, check_same, seen
from training.frozen.extract import Model
from training.frozen.views import usual_views
from zoo.evaluation.evaluate import of_model
from zoo.models.card import Card, read_card
from zoo.models.load import Embedder, find, load
from zoo.models.registry import reference
from zoo.models.results import Evaluation, add_result

ALONE = "beside the teacher, cosine, exact"
"""How images without labels are measured."""


@dataclass(frozen=True)
class Distilled:
    """The student's training, its images, its teacher, and how near it came.

    seen: the measured classes that the teacher learnt from when it was finetuned itself.
    """

    outcome: Outcome
    pictures: Pictures
    teacher: Card
    fidelity: Fidelity
    seen: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **self.outcome.to_json(),
            "teacher": self.teacher.identity,
            "split": self.pictures.to_json(),
            "unreadable": self.pictures.unreadable,
            "labelled": self.pictures.labelled,
            "seen_by_teacher": list(self.seen),
            "fidelity": self.fidelity.to_json(),
        }


def distil(
    teacher: str,
    read: Callable[[], Pictures],
    student: Student,
    device: str | None = None,
    replace: bool = False,
    progress: bool = False,
) -> Distilled:
    """Train `ZOO_HOME/models/<student.name>` on images and measure it on those that were held out.

    teacher: a model's name, or the path of a model folder. read: gives the images; it is asked when all else has been
    looked at, since reading them may take long. replace: a model that has the student's name already may go.
    The split is written into the student's recipe.json and the measurement into its results.json. The same call goes on
    where one was stopped. Raises `UsageError` for a name that is taken, and what loading, `recipe_for` and training
    raise.
    """
    folder = find(teacher)
    check_name(student.name, folder, replace)
    model = Model(folder, read_card(folder), reference(folder))
    views = usual_views(folder, model.card.preprocessing, 0, student.seed)
    draft = recipe_for(student, model, BATCH, views, "folder")
    strong = load(teacher, device=device)
    check_parts(draft, BATCH)
    pictures = read()
    images = unlabelled(pictures.train)
    recipe = recipe_for(student, model, len(images), views, images.name)
    split = pictures.to_json()
    check_same(recipe, split, replace)
    taught = strong.embed(pictures.test.images, progress=progress)
    del strong  # the method has its own copy, and two would take twice the memory
    known = seen(model.folder, split["test_classes"])
    facts = {"split": split, "seen_by_teacher": list(known)}
    outcome = train(recipe, None, device, progress=progress, dataset=images, facts=facts, evaluate=False)
    made = load(outcome.folder, device=device)
    learnt = made.embed(pictures.test.images, progress=progress)
    fidelity = compare(taught, learnt, pictures.test, pictures.labelled)
    add_result(outcome.folder, _evaluation(made, pictures, fidelity))
    return Distilled(outcome, pictures, model.card, fidelity, known)


def _evaluation(model: Embedder, pictures: Pictures, fidelity: Fidelity) -> Evaluation:
    """What the student's folder says of it: what it finds, if there are labels, and how near it is to its teacher."""
    test = pictures.test
    found = fidelity.evaluation or Evaluation(
        None, test.name, test.split, ALONE, None, None, model.dim, len(test), 0, 0, {}, {}, now(), {}
    )
    near = {f"teacher_neighbours_at_{fidelity.k}": fidelity.neighbours}
    if fidelity.cosine is not None:
        near["teacher_cosine"] = fidelity.cosine
    return dataclasses.replace(
        of_model(found, model),
        metrics={**found.metrics, **{name: score.value for name, score in near.items()}},
        intervals={**found.intervals, **{name: (score.low, score.high) for name, score in near.items()}},
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
