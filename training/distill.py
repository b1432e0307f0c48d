"""Distil a student.

Distilling: a small student learns from a strong teacher's embeddings of images that need no labels.

How near a student came to its teacher, on images that neither it nor its recipe has seen.

The images that a student learns from, and those that are held out to see what it has learnt.

What is asked of a student, and its recipe as far as it can be made, and refused, before torch is loaded.

What a student is trained by: any trunk, a head of the teacher's dimension, the teacher's preprocessing.

A student made from a teacher, and measured beside it on images that were held out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch

from training.api import Outcome, base_of, train
from training.data import TrainingData
from training.features import TrunkModel, Views, views_of_model
from training.finetune import check_name, check_same, classes_seen
from training.methods.transfers import check_same_dim
from training.overrides import check_names, override
from training.recipe import Backbone, Batch, Data, Objective, Optimizer, Recipe, Schedule
from training.trainer import create_parts
from zoo import data as datasets
from zoo.data import table
from zoo.data.dataset import FOLDER, SPLITS, WHOLE, Dataset, subset
from zoo.data.decode import unreadable_images
from zoo.data.folder import MIN_CLASSES, check_share, has_splits, list_images, sources_sha256
from zoo.data.preprocessing import Preprocessing
from zoo.errors import DatasetError, RecipeError, UsageError, nearest
from zoo.evaluation import Evaluation, bootstrap_intervals, evaluate, nearest_neighbours, per_query
from zoo.evaluation.evaluate import attribute_to_model, search_arguments
from zoo.evaluation.inputs import retrieval_inputs, unit_rows
from zoo.evaluation.knn import neighbour_chunks
from zoo.evaluation.retrieval import PerQuery, build_per_query, measure_hits
from zoo.models.card import Card, Head, read_card
from zoo.models.load import Embedder, find_model, load
from zoo.models.network import check_architecture
from zoo.models.registry import reference
from zoo.models.results import add_result
from zoo.paths import expand

METRICS = ("recall_at_1", "map_at_r")
NEIGHBOURS = 10


@dataclass(frozen=True)
class Score:
    """A mean with its 95 % interval, by resampling classes, or images where there are no classes."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fidelity:
    """cosine: mean of the student's and the teacher's embedding of an image; None where their dimensions differ.

    neighbours: the share of the teacher's `k` nearest images that are among the student's `k` nearest. retrieval:
    metric -> the model that searched, "teacher", "student" or "cross" (the student's queries, the teacher's gallery, in
    which each query's own image is left out) -> score; empty without labels, and then there is no evaluation of the
    student either.
    """

    images: int
    k: int
    cosine: Score | None
    neighbours: Score
    retrieval: dict[str, dict[str, Score]]
    evaluation: Evaluation | None = None

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        del values["evaluation"]  # the student's results.json has it
        return values


def measure_fidelity(teacher: np.ndarray, student: np.ndarray, test: Dataset, labelled: bool) -> Fidelity:
    """Embeddings [n, e] and [n, d] of the same images, unit rows; with labels also what each finds."""
    n = len(test)
    units = test.labels if labelled else np.arange(n)
    k = min(NEIGHBOURS, n - 1)
    alike = {"neighbours": shared_neighbours(teacher, student, k)}
    if teacher.shape[1] == student.shape[1]:
        alike["cosine"] = (teacher * student).sum(1, dtype=np.float64)
    near = _scores(alike, units)
    if not labelled:
        return Fidelity(n, k, near.get("cosine"), near["neighbours"], {})
    theirs, ours = (evaluate(rows, test, k=(1,)) for rows in (teacher, student))
    found = {"teacher": _measured(theirs), "student": _measured(ours)}
    if teacher.shape[1] == student.shape[1]:
        cross = cross_search(teacher, student, test)
        found["cross"] = _scores({name: cross.values[name] for name in METRICS}, cross.classes)
    retrieval = {name: {who: scores[name] for who, scores in found.items()} for name in METRICS}
    return Fidelity(n, k, near.get("cosine"), near["neighbours"], retrieval, ours)


def shared_neighbours(teacher: np.ndarray, student: np.ndarray, k: int) -> np.ndarray:
    """float64 [n]: of each row's k nearest others by the teacher, the share that is among the student's k nearest."""
    theirs, ours = (nearest_neighbours(rows, rows, k, exclude_self=True)[1] for rows in (teacher, student))
    shared: np.ndarray = (theirs[:, :, None] == ours[:, None, :]).any(2).mean(1)
    return shared


def cross_search(teacher: np.ndarray, student: np.ndarray, test: Dataset) -> PerQuery:
    """Each of the student's rows [n, d] searches the teacher's [n, d], its own image's left out by index.

    Where the data set parts queries and gallery, its queries by the student search its gallery by the teacher.
    """
    theirs, ours = (search_arguments(rows, test.labels, test) for rows in (teacher, student))
    if "queries" in theirs:
        return per_query(**{**theirs, "queries": ours["queries"]}, k=(1,))
    search = retrieval_inputs(teacher, test.labels)
    queries, depth = unit_rows(student, "the student's embeddings"), int(search.relatives.max())
    pieces = []
    for rows, _, found in neighbour_chunks(queries, search.gallery, depth + 1, exact=False):
        others = found != np.arange(rows.start, rows.start + len(found))[:, None]
        others[others.all(1), -1] = False  # its own image is further away than all that are wanted
        kept = found[others].reshape(len(found), depth)
        hits = search.codes[kept] == search.codes[rows, None]
        pieces.append(measure_hits(hits, search.relatives[rows], (1,)))
    return build_per_query({name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}, search)


def _measured(found: Evaluation) -> dict[str, Score]:
    return {name: Score(found.metrics[name], *found.intervals[name]) for name in METRICS}


def _scores(values: dict[str, np.ndarray], units: np.ndarray) -> dict[str, Score]:
    bounds = bootstrap_intervals(values, units)
    return {name: Score(float(each.mean()), *bounds[name]) for name, each in values.items()}


LEAST_IMAGES = 4
"""Two to learn from and two to measure on."""

BY_CLASS, BY_IMAGE, AS_GIVEN = "class", "image", "given"


@dataclass(frozen=True)
class StudentImages:
    """Images to learn from, whose labels play no part, and images to measure on.

    labelled: whether the labels of `test` mean anything. by: how the two were parted: "class", no class is in both;
    "image", at random; "given", by a data set's split, the folders train and test or a table's column split.
    unreadable: images that were left out, and why.
    """

    train: Dataset
    test: Dataset
    labelled: bool
    by: str
    seed: int
    share: float
    unreadable: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what parts the images again and shows that they are the same; `zoo.evaluation.split` reads it."""
        by_class = self.by != BY_IMAGE and self.labelled
        return {
            "by": self.by,
            "seed": self.seed,
            "test_share": self.share,
            "train_images": len(self.train),
            "test_images": len(self.test),
            "train_classes": list(self.train.classes) if by_class else [],
            "test_classes": list(self.test.classes) if by_class else [],
            "images_sha256": sources_sha256([*self.train.sources, *self.test.sources]),
        }


def check_source(place: str | None, dataset: str | None, data: str | None = None) -> None:
    """Raise `UsageError` or `DatasetError` for what no image can come from, before anything is loaded."""
    if (place is None) == (dataset is None):
        raise UsageError("name a folder of images or a table of them, or a data set with --dataset; one of the two.")
    if dataset == FOLDER:
        raise UsageError("a folder or a table is named without --dataset: zoo distill TEACHER DIR ...")
    if dataset is not None:
        datasets.check_dataset(dataset, "train", data)
    elif data is not None:
        raise UsageError("--data says where the data set of --dataset lies; a folder of images is named by itself.")
    else:
        datasets.check_dataset_path(str(place), FOLDER)
        has_splits(str(place))  # whether a table is one


def read_dataset(name: str, data: str | Path | None, seed: int) -> StudentImages:
    """A data set's training split to learn from, its test split to measure on."""
    train, test = (datasets.load_dataset(name, split, data) for split in SPLITS)
    return StudentImages(train, test, True, AS_GIVEN, seed, 0.0)


def read_student_images(path: str | Path, share: float = 0.2, seed: int = 0, progress: bool = False) -> StudentImages:
    """Every image below a folder or of a table (`zoo.data.table`), with labels or without.

    With the subfolders `train` and `test`, or the column split, these are taken. Else a share is held out by the seed:
    of the classes, where every image lies in a folder of its class, or has a label, and at least four classes have two
    images; of the images otherwise. Images that cannot be read are left out. Raises `DatasetError` where there are too
    few images, saying how many, and `UsageError` for a table that is none.
    """
    check_share(share)
    place = expand(path)
    bad: dict[str, str] = {}
    if has_splits(place):
        train, test = (_readable(_listed(place, split), bad, progress) for split in SPLITS)
        return StudentImages(train, test, is_labelled(test, least=2), AS_GIVEN, seed, share, bad)
    whole = _readable(_listed(place), bad, progress)
    labelled = is_labelled(whole)
    held_out = held_out_rows(whole, labelled, share, seed)
    train, test = subset(whole, ~held_out), subset(whole, held_out, "test")
    return StudentImages(train, test, labelled, BY_CLASS if labelled else BY_IMAGE, seed, share, bad)


def without_labels(dataset: Dataset) -> Dataset:
    """The same images, each a class of its own, so that batches are drawn evenly from all of them."""
    n = len(dataset)
    return replace(dataset, labels=np.arange(n), classes=tuple(dataset.sources), factors={})


def is_labelled(dataset: Dataset, least: int = MIN_CLASSES) -> bool:
    """Whether every image has a class, and `least` of these have two images."""
    return "" not in dataset.classes and int((np.bincount(dataset.labels) >= 2).sum()) >= least


def held_out_rows(dataset: Dataset, by_class: bool, share: float, seed: int) -> np.ndarray:
    """bool [n]: a share of the images, or all of a share of the classes that have two; at least two, two are left."""
    eligible = np.flatnonzero(np.bincount(dataset.labels) >= 2) if by_class else np.arange(len(dataset))
    count = min(max(2, round(share * len(eligible))), len(eligible) - 2)
    if count < 2:
        raise DatasetError(
            f"there are {len(eligible)} images that can be read; {LEAST_IMAGES} are needed at least, two to learn from "
            "and two to measure on."
        )
    drawn = np.random.default_rng(seed).choice(eligible, count, replace=False)
    return np.isin(dataset.labels if by_class else np.arange(len(dataset)), drawn)


def _readable(dataset: Dataset, bad: dict[str, str], progress: bool) -> Dataset:
    """The images that can be read, two at least; why others cannot is put into `bad`."""
    bad |= {source: str(error) for source, error in unreadable_images(dataset, progress).items()}
    readable = np.array([source not in bad for source in dataset.sources])
    if readable.sum() < 2:
        reason = "".join(f" {source}: {why}" for source, why in list(bad.items())[:1])
        raise DatasetError(
            f"of the {len(dataset)} images of the split {dataset.split!r} {int(readable.sum())} can be read; two to "
            f"learn from and two to measure on are needed.{reason}"
        )
    return dataset if readable.all() else subset(dataset, readable, dataset.split)


def _listed(place: Path, split: str = WHOLE) -> Dataset:
    """The images of a table, or below a folder, where the class of each is the folder that it lies in; "" for none."""
    if table.is_table(place):
        return replace(table.load_unlabelled(split, place), factors={})
    root = place if split == WHOLE else place / split
    paths: Sequence[Path] = list_images(root)
    if not paths:
        raise DatasetError(
            f"{root} holds no images; every image below it would be learnt from, with labels or without."
        )
    names = [path.relative_to(root).as_posix() for path in paths]
    classes, labels = np.unique([name.rpartition("/")[0] for name in names], return_inverse=True)
    return Dataset(FOLDER, split, paths, labels.astype(np.int64), tuple(classes.tolist()), names)


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

    loss: a name of `training.methods.transfers`.
    dim: None: the teacher's. size: of images in pixels; None: as the teacher.
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
    views = views_of_model(teacher, card.preprocessing, 0, student.seed)
    apply_settings(draft_recipe(student, card, str(teacher), BATCH, views, "folder"), student.settings, card)


def draft_recipe(student: Student, teacher: Card, reference: str, images: int, views: Views, dataset: str) -> Recipe:
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
        preprocessing=resize_preprocessing(teacher.preprocessing, student.size),
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


def apply_settings(draft: Recipe, settings: Sequence[str], teacher: Card) -> Recipe:
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


def resize_preprocessing(how: Preprocessing, size: int | None) -> Preprocessing:
    """The preprocessing for images of `size` pixels, of which the central crop shows as much."""
    if size is None:
        return how
    if not 1 <= size <= 4096:
        raise UsageError(f"--size is a number of pixels from 1 to 4096, not {size}.")
    return replace(how, crop=size, resize=max(size, round(size * how.resize / how.crop)))


def recipe_for(student: Student, teacher: TrunkModel, images: int, views: Views, dataset: str) -> Recipe:
    """The student's recipe, with which `images` images are learnt from.

    Raises `UsageError` or `RecipeError` for a backbone that there is not, and what `drafted` and `settled` raise.
    """
    check_architecture(student.backbone)
    draft = draft_recipe(student, teacher.card, teacher.reference, images, views, dataset)
    recipe = apply_settings(with_pretrained_normalisation(draft), student.settings, teacher.card)
    check_names(recipe)
    return recipe


def with_pretrained_normalisation(recipe: Recipe) -> Recipe:
    """With the mean and standard deviation that the student's weights were trained with, where they are known."""
    base = base_of(recipe)
    values: Any = None
    if base is not None:
        values = base.preprocessing.mean, base.preprocessing.std
    elif recipe.backbone.pretrained is True:
        known = timm.models.get_pretrained_cfg(recipe.backbone.architecture)
        values = (tuple(known.mean), tuple(known.std)) if known else None
    if values is None or len(values[0]) != recipe.preprocessing.channels:
        return recipe
    return replace(recipe, preprocessing=replace(recipe.preprocessing, mean=values[0], std=values[1]))


def check_parts(recipe: Recipe, images: int) -> None:
    """Raise now, and not after hours of reading images, what building the student and its method would raise."""
    create_parts(recipe, TrainingData(torch.empty(0), np.arange(images), images, 1, None, []))


UNLABELLED_PROTOCOL = "beside the teacher, cosine, exact"
"""How images without labels are measured."""


@dataclass(frozen=True)
class Distilled:
    """The student's training, its images, its teacher, and how near it came.

    seen: the measured classes that the teacher learnt from when it was finetuned itself.
    """

    outcome: Outcome
    pictures: StudentImages
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
    read: Callable[[], StudentImages],
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
    folder = find_model(teacher)
    check_name(student.name, folder, replace)
    model = TrunkModel(folder, read_card(folder), reference(folder))
    views = views_of_model(folder, model.card.preprocessing, 0, student.seed)
    draft = recipe_for(student, model, BATCH, views, "folder")
    strong = load(teacher, device=device)
    check_parts(draft, BATCH)
    pictures = read()
    images = without_labels(pictures.train)
    recipe = recipe_for(student, model, len(images), views, images.name)
    split = pictures.to_json()
    check_same(recipe, split, replace)
    taught = strong.embed(pictures.test.images, progress=progress)
    del strong  # the method has its own copy, and two would take twice the memory
    known = classes_seen(model.folder, split["test_classes"])
    facts = {"split": split, "seen_by_teacher": list(known)}
    outcome = train(recipe, None, device, progress=progress, dataset=images, facts=facts, evaluate=False)
    made = load(outcome.folder, device=device)
    learnt = made.embed(pictures.test.images, progress=progress)
    fidelity = measure_fidelity(taught, learnt, pictures.test, pictures.labelled)
    add_result(outcome.folder, _evaluation(made, pictures, fidelity))
    return Distilled(outcome, pictures, model.card, fidelity, known)


def _evaluation(model: Embedder, pictures: StudentImages, fidelity: Fidelity) -> Evaluation:
    """What the student's folder says of it: what it finds, if there are labels, and how near it is to its teacher."""
    test = pictures.test
    found = fidelity.evaluation or Evaluation(
        None, test.name, test.split, UNLABELLED_PROTOCOL, None, None, model.dim, len(test), 0, 0, {}, {}, now(), {}
    )
    near = {f"teacher_neighbours_at_{fidelity.k}": fidelity.neighbours}
    if fidelity.cosine is not None:
        near["teacher_cosine"] = fidelity.cosine
    return dataclasses.replace(
        attribute_to_model(found, model),
        metrics={**found.metrics, **{name: score.value for name, score in near.items()}},
        intervals={**found.intervals, **{name: (score.low, score.high) for name, score in near.items()}},
    )


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
