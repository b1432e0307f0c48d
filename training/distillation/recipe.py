"""A student and its recipe. Loads no torch, so that mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from training.cached.feature_folder import TrunkModel, views_of_model
from training.finetune import check_name
from training.overrides import override, setting_keys
from training.recipe import FASTEST, Backbone, Batch, Data, Objective, Optimizer, Recipe, Schedule, check_same_dim
from zoo.data.dataset import FOLDER
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError, UsageError, unknown
from zoo.models.card import Card, Head, read_card
from zoo.models.names import find_model
from zoo.models.registry import reference

SOURCES = {
    "embedding": "Budnik and Avrithis 2021, Asymmetric Metric Learning for Knowledge Transfer, CVPR",
    "rkd": "Park et al. 2019, Relational Knowledge PlannedStudent, CVPR",
    "similarity": "Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-PlannedStudent for Deep Metric Learning",
}
"""The names of `training.methods.transfers` and their papers."""
SAME_DIM = ("embedding",)
"""The transfers that need the teacher's dimension."""

BATCH, EPOCHS, LEAST_STEPS = 128, 30, 20
LR, PRETRAINED_LR = 1e-3, 3e-4
"""Pretrained weights need smaller steps than random ones."""


@dataclass(frozen=True)
class Student:
    """The model to be trained by a teacher.

    Attributes:
        name: The name of the new model.
        backbone: A timm architecture, or one of ours, as conv4.
        loss: A name of `training.methods.transfers`.
        dim: The dimension of its embedding; None takes the teacher's.
        size: The side of its images in pixels; None takes the teacher's.
        pretrained: The weights to start from, as in a recipe's backbone.
        settings: `key=value`, as `--set` takes them.
        seed: The seed of the run.
    """

    name: str
    backbone: str
    loss: str = "embedding"
    dim: int | None = None
    size: int | None = None
    pretrained: bool | str = False
    settings: Sequence[str] = field(default_factory=tuple)
    seed: int = 0


@dataclass(frozen=True)
class PlannedStudent:
    """A student that was checked without torch, and its teacher.

    Attributes:
        student: The student.
        teacher: The teacher.
        recipe: The student's recipe with its settings, for a folder of `BATCH` images.
        replaces: The student may replace a model of its name.
    """

    student: Student
    teacher: TrunkModel
    recipe: Recipe
    replaces: bool = False


def plan_distillation(teacher: str, student: Student, replaces: bool = False) -> PlannedStudent:
    """Check a student without torch, as far as that is possible, and return it with its recipe.

    Args:
        teacher: A model's name, or the path of a model folder.
        student: The student.
        replaces: The student may replace a model of its name.

    Raises:
        UsageError: If the name is taken, or the dimension or the image size is out of range.
        RecipeError: If a setting does not fit, or the loss is unknown or needs the teacher's dimension.
        ZooError: If the teacher is not found or damaged.
    """
    folder = find_model(teacher)
    check_name(student.name, folder, replaces)
    model = TrunkModel(folder, read_card(folder), reference(folder))
    recipe = _apply_settings(_draft_recipe(student, model), student.settings, model.card)
    return PlannedStudent(student, model, recipe, replaces)


def _draft_recipe(student: Student, teacher: TrunkModel) -> Recipe:
    """Return the student's recipe before its settings, for a folder of `BATCH` images.

    Raises:
        UsageError: If the dimension or the image size is out of range.
    """
    if student.dim is not None and student.dim < 1:
        raise UsageError(f"--dim must be 1 or more, not {student.dim}.", code="invalid-value")
    card = teacher.card
    views = views_of_model(teacher.folder, card.preprocessing, 0, student.seed)
    return Recipe(
        name=student.name,
        method="distilled",
        data=Data(FOLDER, 1, 0.0, views.side, views.fit),
        backbone=Backbone(student.backbone, student.backbone, {}, student.pretrained),
        heads=(Head("embedding", student.dim or card.dim),),
        preprocessing=_resize_preprocessing(card.preprocessing, student.size),
        objective=Objective(
            None,
            method="distillation",
            method_args={"teacher": teacher.reference, "fingerprint": card.fingerprint, "transfer": student.loss},
        ),
        augmentation=views.augmentation,
        batch=Batch(BATCH, "spc", 1),
        optimizer=Optimizer("adamw", PRETRAINED_LR if student.pretrained else LR, 1e-4),
        schedule=Schedule(EPOCHS, LEAST_STEPS, "one-cycle"),
        precision=FASTEST,
        seed=student.seed,
    )


def _apply_settings(draft: Recipe, settings: Sequence[str], teacher: Card) -> Recipe:
    """Return the recipe with the settings applied.

    Raises:
        RecipeError: If a setting does not fit, or the loss is unknown or needs the teacher's dimension.
    """
    recipe = override(draft, settings)
    if recipe.objective.method != "distillation":
        raise RecipeError(
            f"a student is trained by the method 'distillation', not by {recipe.objective.method!r}.",
            code="conflicting-settings",
        )
    if recipe.preprocessing.mode != teacher.preprocessing.mode:
        raise RecipeError(
            f"preprocessing.mode is {recipe.preprocessing.mode!r}, but the teacher {teacher.name} takes "
            f"{teacher.preprocessing.mode!r}, and both see the same views.",
            code="conflicting-settings",
        )
    loss = str(recipe.objective.method_args.get("transfer", "embedding"))
    if loss not in SOURCES:
        raise unknown("transfer", loss, SOURCES, error=RecipeError)
    if loss in SAME_DIM and recipe.dim:  # without a head the dimension is the trunk's, which is not built yet
        check_same_dim(loss, recipe.dim, teacher, [name for name in SOURCES if name not in SAME_DIM])
    return replace(recipe, sources=(SOURCES[loss],))


def fit_to_images(recipe: Recipe, images: int, dataset: str, settings: Sequence[str]) -> Recipe:
    """Return a student's recipe with batches and steps for its images.

    Args:
        recipe: The recipe with its settings.
        images: The number of images to learn from.
        dataset: The name of the data set.
        settings: The settings that the user gave, which are not changed.
    """
    given, batch = setting_keys(settings), min(BATCH, images)
    if "data.dataset" not in given:
        recipe = replace(recipe, data=replace(recipe.data, dataset=dataset))
    if "batch.size" not in given:
        recipe = replace(recipe, batch=replace(recipe.batch, size=batch))
    if "schedule.steps" not in given:
        recipe = replace(recipe, schedule=replace(recipe.schedule, steps=max(LEAST_STEPS, images // batch)))
    return recipe


def _resize_preprocessing(preprocessing: Preprocessing, size: int | None) -> Preprocessing:
    """Return the preprocessing for images of `size` pixels, whose central crop shows the same part."""
    if size is None:
        return preprocessing
    if not 1 <= size <= 4096:
        raise UsageError(f"--size must be from 1 to 4096 pixels, not {size}.", code="invalid-value")
    return replace(preprocessing, crop=size, resize=max(size, round(size * preprocessing.resize / preprocessing.crop)))
