"""Distillation: a small student learns from a teacher's embeddings, and is compared with it on held-out images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import timm
import torch

from training.api import Outcome, base_of, train
from training.build import create_parts
from training.cached.feature_folder import TrunkModel, Views, views_of_model
from training.data import TrainingData
from training.finetune import check_name, check_same, classes_seen
from training.overrides import check_names
from training.recipe import Recipe
from training.student import (
    BATCH,
    Student,
    StudentImages,
    apply_settings,
    draft_recipe,
    held_out_to_choose,
    without_labels,
)
from zoo.data.content import CLASS_IMAGES, digests_of_classes, telling_digests
from zoo.data.dataset import FOLDER, Dataset
from zoo.evaluation import Evaluation, bootstrap_intervals, evaluate, nearest_neighbours, per_query
from zoo.evaluation.evaluate import METRICS, attribute_to_model, search_arguments
from zoo.evaluation.inputs import retrieval_inputs, unit_rows
from zoo.evaluation.knn import neighbour_chunks
from zoo.evaluation.retrieval import PerQuery, build_per_query, measure_hits
from zoo.evaluation.selection import MetricChange, Selection, measure_change
from zoo.models.card import Card, read_card
from zoo.models.load import AUTO, Embedder, load
from zoo.models.names import find_model
from zoo.models.network import check_architecture
from zoo.models.pretrained.weights import stated_model
from zoo.models.registry import reference
from zoo.models.results import add_result

NEIGHBOURS = 10
UNLABELLED_PROTOCOL = "beside the teacher, cosine, exact"
"""The protocol in results.json of a measurement on images without labels."""


@dataclass(frozen=True)
class Score:
    """A mean with its 95 % interval, by resampling classes, or images where there are no classes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fidelity:
    """The agreement of a student with its teacher on held-out images.

    Attributes:
        images: The number of images.
        k: The number of neighbours compared.
        cosine: The mean cosine of the two embeddings of an image; None if their dimensions differ.
        neighbours: The share of the teacher's `k` nearest images that are among the student's `k` nearest.
        retrieval: Metric -> searching model -> score. The models are "teacher", "student" and "cross": the student's
            queries in the teacher's gallery, without each query's own image. Empty without labels.
        evaluation: The student's measurement; None without labels.
    """

    images: int
    k: int
    cosine: Score | None
    neighbours: Score
    retrieval: dict[str, dict[str, Score]]
    evaluation: Evaluation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the scores as JSON values, without the evaluation, which the student's results.json has."""
        values = dataclasses.asdict(self)
        del values["evaluation"]
        return values


@dataclass(frozen=True)
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

    outcome: Outcome
    pictures: StudentImages
    teacher: Card
    fidelity: Fidelity
    selection: Selection
    dim: int
    rows: tuple[MetricChange, ...] = ()
    seen_classes: tuple[str, ...] = ()

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
        }


def distil(
    teacher: str,
    read: Callable[[], StudentImages],
    student: Student,
    device: str | None = None,
    replace: bool = False,
    progress: bool = False,
) -> Distilled:
    """Train `ZOO_HOME/models/<student.name>` on images and measure it on those that were held out.

    The split is written into the student's recipe.json and the measurement into its results.json. The same call
    continues a stopped run.

    Args:
        teacher: A model's name, or the path of a model folder.
        read: Returns the images; called after all other checks, since reading them may take long.
        student: The student.
        device: The device (default: cuda where available).
        replace: The student may replace a model of its name.
        progress: Show progress bars.

    Raises:
        UsageError: If the name is taken.
        ZooError: The errors of loading, `recipe_for` and training.
    """
    folder = find_model(teacher)
    check_name(student.name, folder, replace)
    model = TrunkModel(folder, read_card(folder), reference(folder))
    views = views_of_model(folder, model.card.preprocessing, 0, student.seed)
    draft = recipe_for(student, model, BATCH, views, "folder")
    teacher_model = load(teacher, AUTO, device=device)
    _check_parts(draft, BATCH)
    pictures = read()
    validates = held_out_to_choose(pictures.train, pictures.labelled, student.seed)
    images = without_labels(pictures.train, validates)
    recipe = recipe_for(student, model, int((~validates).sum()), views, images.name)
    split = pictures.to_json()
    check_same(recipe, split, replace)
    teacher_rows = teacher_model.embed(pictures.test.images, progress=progress)
    del teacher_model  # the method has its own copy, and two would take twice the memory
    by_class = bool(split["test_classes"])
    seen = classes_seen(model.folder, pictures.test) if by_class else ()
    choosing = [pictures.train.classes[label] for label in np.unique(pictures.train.labels[validates])]
    facts = {"split": split, "seen_by_teacher": list(seen), "held_out_to_choose": choosing}
    if by_class and pictures.train.name == FOLDER:
        facts[CLASS_IMAGES] = telling_digests(digests_of_classes(pictures.train))
    outcome = train(recipe, None, device, progress=progress, dataset=images, facts=facts, evaluate=False)
    student_model = load(outcome.folder, AUTO, device=device, images=len(pictures.test))
    student_rows = student_model.embed(pictures.test.images, progress=progress)
    fidelity = measure_fidelity(teacher_rows, student_rows, pictures.test, pictures.labelled)
    evaluation = _evaluation(student_model, pictures, fidelity)
    add_result(outcome.folder, evaluation)
    outcome = dataclasses.replace(outcome, evaluation=evaluation)
    selection = Selection("trained", outcome.best_epoch, len(choosing), int(validates.sum()))
    rows = measure_change(teacher_rows, student_rows, pictures.test) if pictures.labelled else ()
    return Distilled(outcome, pictures, model.card, fidelity, selection, student_model.dim, rows, seen)


def recipe_for(student: Student, teacher: TrunkModel, images: int, views: Views, dataset: str) -> Recipe:
    """Return the recipe by which a student learns from its teacher.

    Args:
        student: The student.
        teacher: The teacher.
        images: The number of images to learn from.
        views: The augmentation and the squares that are kept.
        dataset: The name of the data set.

    Raises:
        UsageError: If the backbone does not exist, or an argument is out of range.
        RecipeError: If a setting does not fit.
    """
    check_architecture(student.backbone)
    draft = draft_recipe(student, teacher.card, teacher.reference, images, views, dataset)
    recipe = apply_settings(_with_pretrained_normalisation(draft), student.settings, teacher.card)
    check_names(recipe)
    return recipe


def _with_pretrained_normalisation(recipe: Recipe) -> Recipe:
    """Return the recipe with the mean and standard deviation of the student's pretrained weights, if they are known."""
    base = base_of(recipe.backbone.pretrained)
    values: Any = None
    if base is not None:
        values = base.preprocessing.mean, base.preprocessing.std
    elif model := stated_model(recipe.backbone.architecture, recipe.backbone.pretrained):
        values = model.preprocessing.mean, model.preprocessing.std
    elif recipe.backbone.pretrained is True:
        config = timm.models.get_pretrained_cfg(recipe.backbone.architecture)
        values = (tuple(config.mean), tuple(config.std)) if config else None
    if values is None or len(values[0]) != recipe.preprocessing.channels:
        return recipe
    preprocessing = dataclasses.replace(recipe.preprocessing, mean=values[0], std=values[1])
    return dataclasses.replace(recipe, preprocessing=preprocessing)


def _check_parts(recipe: Recipe, images: int) -> None:
    """Build the student and its method, so that errors are raised before images are read for hours."""
    create_parts(recipe, TrainingData(torch.empty(0), np.arange(images), images, 1, None, []))


def measure_fidelity(teacher: np.ndarray, student: np.ndarray, test: Dataset, labelled: bool) -> Fidelity:
    """Compare a student's embeddings with its teacher's.

    Args:
        teacher: Unit rows, float [n, e].
        student: Unit rows of the same images, float [n, d].
        test: The images.
        labelled: Measure retrieval by the labels of `test` too.
    """
    n = len(test)
    units = test.labels if labelled else np.arange(n)
    k = min(NEIGHBOURS, n - 1)
    agreement = {"neighbours": shared_neighbours(teacher, student, k)}
    if teacher.shape[1] == student.shape[1]:
        agreement["cosine"] = (teacher * student).sum(1, dtype=np.float64)
    scores = _scores(agreement, units)
    if not labelled:
        return Fidelity(n, k, scores.get("cosine"), scores["neighbours"], {})
    teachers, students = (evaluate(rows, test, k=(1,)) for rows in (teacher, student))
    by_model = {"teacher": _evaluation_scores(teachers), "student": _evaluation_scores(students)}
    if teacher.shape[1] == student.shape[1]:
        cross = cross_search(teacher, student, test)
        by_model["cross"] = _scores({name: cross.values[name] for name in METRICS}, cross.classes)
    retrieval = {name: {model: values[name] for model, values in by_model.items()} for name in METRICS}
    return Fidelity(n, k, scores.get("cosine"), scores["neighbours"], retrieval, students)


def shared_neighbours(teacher: np.ndarray, student: np.ndarray, k: int) -> np.ndarray:
    """Return for each row the share of its k nearest others by the teacher that are the student's too, float64 [n]."""
    theirs, ours = (nearest_neighbours(rows, rows, k, exclude_self=True)[1] for rows in (teacher, student))
    shared: np.ndarray = (theirs[:, :, None] == ours[:, None, :]).any(2).mean(1)
    return shared


def cross_search(teacher: np.ndarray, student: np.ndarray, test: Dataset) -> PerQuery:
    """Search the teacher's rows [n, d] with each of the student's [n, d], leaving out the query's own image.

    If the data set separates queries and gallery, its queries by the student search its gallery by the teacher.
    """
    theirs, ours = (search_arguments(rows, test.labels, test) for rows in (teacher, student))
    if "queries" in theirs:
        return per_query(**{**theirs, "queries": ours["queries"]}, k=(1,))
    search = retrieval_inputs(teacher, test.labels)
    queries, depth = unit_rows(student, "the student's embeddings"), int(search.relatives.max())
    parts = []
    for rows, _, neighbours in neighbour_chunks(queries, search.gallery, depth + 1, exact=False):
        is_other = neighbours != np.arange(rows.start, rows.start + len(neighbours))[:, None]
        is_other[is_other.all(1), -1] = False  # its own image is further away than all wanted neighbours
        without_self = neighbours[is_other].reshape(len(neighbours), depth)
        hits = search.codes[without_self] == search.codes[rows, None]
        parts.append(measure_hits(hits, search.relatives[rows], (1,)))
    return build_per_query({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, search)


def _evaluation_scores(evaluation: Evaluation) -> dict[str, Score]:
    return {name: Score(evaluation.metrics[name], *evaluation.intervals[name]) for name in METRICS}


def _scores(values: dict[str, np.ndarray], units: np.ndarray) -> dict[str, Score]:
    bounds = bootstrap_intervals(values, units)
    return {name: Score(float(numbers.mean()), *bounds[name]) for name, numbers in values.items()}


def _evaluation(model: Embedder, pictures: StudentImages, fidelity: Fidelity) -> Evaluation:
    """Return the entry of the student's results.json: retrieval if there are labels, and the agreement."""
    test = pictures.test
    date = datetime.now(UTC).isoformat(timespec="seconds")
    evaluation = fidelity.evaluation or Evaluation(
        None,
        test.name,
        test.split,
        UNLABELLED_PROTOCOL,
        None,
        None,
        model.dim,
        len(test),
        0,
        0,
        {},
        {},
        date,
        {},
        data=test.identity,
    )
    agreement = {f"teacher_neighbours_at_{fidelity.k}": fidelity.neighbours}
    if fidelity.cosine is not None:
        agreement["teacher_cosine"] = fidelity.cosine
    return dataclasses.replace(
        attribute_to_model(evaluation, model),
        metrics={**evaluation.metrics, **{name: score.value for name, score in agreement.items()}},
        intervals={**evaluation.intervals, **{name: (score.low, score.high) for name, score in agreement.items()}},
    )
