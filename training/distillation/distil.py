"""Distillation of a student: its training, and its comparison with the teacher on held-out images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import timm
import torch

from training.api import train
from training.build import create_parts
from training.data import TrainingData
from training.distillation.fidelity import Fidelity, measure_fidelity
from training.distillation.images import StudentImages, held_out_to_choose, without_labels
from training.distillation.recipe import BATCH, PlannedStudent, Student, fit_to_images
from training.finetune import check_same, classes_seen
from training.finished import Distilled
from training.overrides import check_names, setting_keys
from training.recipe import Recipe
from training.repeats import base_of
from zoo.data.content import CLASS_IMAGES, digests_of_classes, telling_digests
from zoo.data.dataset import FOLDER
from zoo.evaluation import Evaluation
from zoo.evaluation.evaluate import attribute_to_model
from zoo.evaluation.selection import Selection, measure_change
from zoo.models.load import AUTO, Embedder, load
from zoo.models.pretrained.weights import stated_model
from zoo.models.results import add_result

UNLABELLED_PROTOCOL = "beside the teacher, cosine, exact"
"""The protocol in results.json of a measurement on images without labels."""


def distil(
    plan: PlannedStudent,
    read: Callable[[], StudentImages],
    device: str | None = None,
    progress: bool = False,
) -> Distilled:
    """Train `ZOO_HOME/models/<plan.student.name>` on images and measure it on those that were held out.

    The split is written into the student's recipe.json and the measurement into its results.json. The same call
    continues a stopped run.

    Args:
        plan: The student and its teacher.
        read: Returns the images; called after all other checks, since reading them may take long.
        device: The device (default: cuda where available).
        progress: Show progress bars.

    Raises:
        UsageError: If the name belongs to a student of another recipe or other images.
        ZooError: If a part of the recipe does not exist or fit, or if loading or training fails.
    """
    student, model = plan.student, plan.teacher
    teacher_model = load(model.folder, AUTO, device=device)
    check_names(plan.recipe)
    _check_parts(student_recipe(plan, BATCH, FOLDER), BATCH)
    pictures = read()
    validates = held_out_to_choose(pictures.train, pictures.labelled, student.seed)
    images = without_labels(pictures.train, validates)
    recipe = student_recipe(plan, int((~validates).sum()), images.name)
    split = pictures.to_json()
    check_same(recipe, split, plan.replaces)
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


def student_recipe(plan: PlannedStudent, images: int, dataset: str) -> Recipe:
    """Return the recipe by which a student learns from its teacher.

    It normalises pixels as the student's pretrained weights expect, if that is known and no setting says otherwise.

    Args:
        plan: The student and its teacher.
        images: The number of images to learn from.
        dataset: The name of the data set.
    """
    recipe, given = plan.recipe, setting_keys(plan.student.settings)
    values = _pretrained_statistics(plan.student)
    if values is not None and len(values["mean"]) == recipe.preprocessing.channels:
        free: dict[str, Any] = {name: value for name, value in values.items() if f"preprocessing.{name}" not in given}
        recipe = dataclasses.replace(recipe, preprocessing=dataclasses.replace(recipe.preprocessing, **free))
    return fit_to_images(recipe, images, dataset, plan.student.settings)


def _pretrained_statistics(student: Student) -> dict[str, tuple[float, ...]] | None:
    """Return `mean` and `std` of the pixels that a student's pretrained weights expect, if they are known."""
    source: Any = None
    if base := base_of(student.pretrained):
        source = base.preprocessing
    elif model := stated_model(student.backbone, student.pretrained):
        source = model.preprocessing
    elif student.pretrained is True:
        source = timm.models.get_pretrained_cfg(student.backbone)
    return None if source is None else {"mean": tuple(source.mean), "std": tuple(source.std)}


def _check_parts(recipe: Recipe, images: int) -> None:
    """Build the student and its method, so that errors are raised before images are read for hours."""
    create_parts(recipe, TrainingData(torch.empty(0), np.arange(images), images, 1, None, []))


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
