"""What is asked of a student, and its recipe as far as it can be made, and refused, before torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from training.finetuning.history import check_name
from training.frozen.views import Views, usual_views
from training.methods.transfers import check_same_dim
from training.recipe import Backbone, Batch, Data, Objective, Optimizer, Recipe, Schedule
from training.settings import override
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError, UsageError, nearest
from zoo.models.card import Card, Head, read_card

SOURCES = {
    "embedding": "Budnik and Avrithis 2021, Asymmetric Metric Learning for Knowledge Transfer, CVPR",
    "rkd": "Park et al. 2019, Relational Knowledge Distillation, CVPR",
    "similarity": "Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning",
}
"""The names of `training.methods.transfers` and where each comes from."""
SAME_DIM = ("embedding",)
"""Those that need the teacher's dimension."""

BATCH, EPOCHS, LEAST_STEPS = 128, 30, 20
LR, PRETRAINED_LR = 1e-3, 3e-4
"""A trunk that has learnt moves less."""


@dataclass(frozen=True)
class Student:
    """What is to be trained. name: of the new model. backbone: a timm architecture, or one of ours, as conv4.

    loss: a name of `training.methods.transfers`. dim: None: the teacher's. size: of its images in pixels; None: the teacher's.
    pretrained: as in a recipe's backbone. settings: `key=value`, as `--set` takes them.
    """

    name: str
    backbone: str
    loss: str = "embedding"
    dim: int | None = None
    size: int | None = None
    pretrained: bool | str = False
    settings: Sequence[str] = field(default_factory=tuple)
    seed: int = 0


def check_student(student: Student, teacher: Path, replaces: bool = False) -> None:
    """Raise what can be said without torch of a wish to learn from the model in the folder `teacher`.

    replaces: whether a model that has the student's name already may go. Raises what `check_name`, `drafted` and
    `settled` raise.
    """
    check_name(student.name, teacher, replaces)
    card = read_card(teacher)
    views = usual_views(teacher, card.preprocessing, 0, student.seed)
    settled(drafted(student, card, str(teacher), BATCH, views, "folder"), student.settings, card)


def drafted(student: Student, teacher: Card, reference: str, images: int, views: Views, dataset: str) -> Recipe:
    """The student's recipe before its settings. reference: by which the teacher is found. images: how many there are.

    Raises `UsageError` for a dimension or a size that cannot be.
    """
    if student.dim is not None and student.dim < 1:
        raise UsageError(f"--dim is 1 or more, not {student.dim}.")
    batch = min(BATCH, images)
    return Recipe(
        name=student.name,
        method="distilled",
        data=Data(dataset, 1, 0.0, views.side, views.fit),
        backbone=Backbone(student.backbone, student.backbone, {}, student.pretrained),
        heads=(Head("embedding", student.dim or teacher.dim),),
        preprocessing=resized(teacher.preprocessing, student.size),
        objective=Objective(
            None,
            method="distillation",
            method_args={"teacher": reference, "fingerprint": teacher.fingerprint, "transfer": student.loss},
        ),
        augmentation=views.augmentation,
        batch=Batch(batch, "spc", 1),
        optimizer=Optimizer("adamw", PRETRAINED_LR if student.pretrained else LR, 1e-4),
        schedule=Schedule(EPOCHS, max(LEAST_STEPS, images // batch), "one-cycle"),
        precision="bf16",
        seed=student.seed,
    )


def settled(draft: Recipe, settings: Sequence[str], teacher: Card) -> Recipe:
    """The recipe with the settings applied.

    Raises `RecipeError` for settings that do not fit, and for a loss that is unknown or needs the teacher's dimension.
    """
    recipe = override(draft, settings)
    if recipe.objective.method != "distillation":
        raise RecipeError(f"a student is trained by the method 'distillation', not by {recipe.objective.method!r}.")
    if recipe.preprocessing.mode != teacher.preprocessing.mode:
        raise RecipeError(
            f"preprocessing.mode is {recipe.preprocessing.mode!r}; the teacher {teacher.name} takes "
            f"{teacher.preprocessing.mode!r}, and both are shown the same views."
        )
    loss = str(recipe.objective.method_args.get("transfer", "embedding"))
    _check_loss(loss, recipe.dim, teacher)
    return replace(recipe, sources=(SOURCES[loss],))


def _check_loss(loss: str, dim: int, teacher: Card) -> None:
    if loss not in SOURCES:
        raise RecipeError(f"there is no transfer {loss!r}.{nearest(loss, SOURCES)} Known: {', '.join(SOURCES)}.")
    if loss in SAME_DIM and dim:  # without a head it is known when the trunk is there
        check_same_dim(loss, dim, teacher, [name for name in SOURCES if name not in SAME_DIM])


def resized(how: Preprocessing, size: int | None) -> Preprocessing:
    """The preprocessing for images of `size` pixels, of which the central crop shows as much."""
    if size is None:
        return how
    if not 1 <= size <= 4096:
        raise UsageError(f"--size is a number of pixels from 1 to 4096, not {size}.")
    return replace(how, crop=size, resize=max(size, round(size * how.resize / how.crop)))
