"""Finetuning: a model is fitted to a folder of images, and measured before and after on classes that it never saw.

Some training classes choose between the unchanged base and the epochs of training (`zoo.evaluation.selection`).
Loads torch only to train, so that mistakes are reported at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.cached.feature_folder import (
    Features,
    TrunkModel,
    Views,
    read_features,
    recipe_on_features,
    views_of_model,
)
from training.overrides import check_names, name_custom, override, setting_keys
from training.recipe import FASTEST, Backbone, Batch, Data, Recipe, Schedule
from training.recipes import RECIPES
from training.repeats import is_repeat
from zoo import paths
from zoo.console import count
from zoo.data.content import CLASS_IMAGES, digests_of_classes, telling_digests
from zoo.data.dataset import Dataset, subset
from zoo.data.folder import ClassSplit, TrainingFolder, read_training_folder, split_classes
from zoo.errors import UsageError, ZooError, unknown
from zoo.evaluation import evaluate
from zoo.evaluation.evaluate import attribute_to_model
from zoo.evaluation.selection import (
    MetricChange,
    Selection,
    change_table,
    changes,
    measure_change,
    select,
    validation_share,
)
from zoo.evaluation.split import LearntClasses, LearntOverlap, read_learnt_classes, read_whitened_classes
from zoo.evaluation.statistics import ONE_SEED
from zoo.files import atomic_folder, keep_newest, read_object, write_bytes, write_json
from zoo.models.baselines import UNTRAINED
from zoo.models.card import Card, Head, read_card
from zoo.models.folder import known_files
from zoo.models.load import AUTO, Embedder, load
from zoo.models.names import find_model, known_names
from zoo.models.places import check_network
from zoo.models.registry import cached_folder, reference
from zoo.models.results import RESULTS_FILE, add_result

if TYPE_CHECKING:
    from training.finished import FinishedRun

EPOCHS, HEAD_EPOCHS, STEPS = 10, 20, 200
LR = {"head": 3e-4, "norm": 3e-4, "last": 1e-4, "lora": 3e-4, "prompt": 1e-3, "all": 1e-4}
"""Pretrained weights need smaller steps than heads and adapters, and heads that have a start smaller ones than random
heads."""
TWIN_SUFFIX = "-conv4-cifar100"
RECIPE_FILE, LOG_FILE = "recipe.json", "log.jsonl"
OWN_FILES = ("card.json", RECIPE_FILE, RESULTS_FILE, "README.md")
"""Files of a model folder that are not copied with its network."""
KEPT_FEATURES = 4
"""Cached features that are kept: a few methods are tried on the same images, and a folder may have gigabytes."""


@dataclass(frozen=True)
class FinetuneRequest:
    """The arguments of a finetune.

    Attributes:
        base: The name or folder of the model to start from.
        name: The name of the new model.
        method: A name of `method_names`.
        tune: The part of the model that is trained, of `training.recipe.TUNED`: "head" leaves the trunk unchanged.
        settings: `key=value`, as `--set` takes them.
        test_share: The share of classes to measure on.
        seed: The seed of the split and the run.
        views: Cached random views of each image, for `tune` "head".
        device: The device (default: cuda where available).
        replace: The new model may replace a model of its name.
    """

    base: str
    name: str
    method: str = "margin"
    tune: str = "head"
    settings: Sequence[str] = ()
    test_share: float = 0.3
    seed: int = 0
    views: int = 8
    device: str | None = None
    replace: bool = False


@dataclass(frozen=True, repr=False)
class Finetuned:
    """The result of a finetune.

    Attributes:
        outcome: The new model's training, with its measurement on the classes to measure on.
        base: The card of the base.
        pictures: The images.
        split: The classes to train on and to measure on.
        selection: The model that is kept, and the comparison that decided.
        dims: The dimension of the base's embedding and of the kept one.
        rows: The metrics of the base and of the kept model on the classes to measure on.
        seen_classes: The measured classes that the base was trained or whitened on.
        unread: The recipe.json of the base or one of its ancestors that cannot be read, so that `seen_classes` may be
            incomplete.
    """

    outcome: FinishedRun
    base: Card
    pictures: TrainingFolder
    split: ClassSplit
    selection: Selection
    dims: tuple[int, int]
    rows: tuple[MetricChange, ...]
    seen_classes: tuple[str, ...] = ()
    unread: Path | None = None

    def __repr__(self) -> str:
        return f"Finetuned({self.outcome.name!r} of {self.base.name}: kept {self.selection.kept}; {changes(self.rows)})"

    def _repr_html_(self) -> str:
        """Return the comparison as a table, for notebooks."""
        images = f"{self.split.test.identity}, {count(len(self.split.test.classes), 'class')}"
        title = f"{self.base.name}, and {self.outcome.name} fitted to images: {images}; intervals {ONE_SEED}"
        return change_table(self.rows).html(title)

    @property
    def folder(self) -> Path:
        """The folder of the new model."""
        return self.outcome.folder

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            **self.outcome.to_json(),
            "base": self.base.identity,
            "split": self.split.to_json(),
            "unreadable": self.pictures.unreadable,
            "classes_of_one_image": list(self.pictures.alone),
            "seen_by_base": list(self.seen_classes),
            "base_history_known": self.unread is None,
            "kept": self.selection.kept,
            "selection": self.selection.to_json(),
            "dim": {"before": self.dims[0], "after": self.dims[1]},
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "interval_note": ONE_SEED,
        }


def finetune(source: str | Path, request: FinetuneRequest, progress: bool = False) -> Finetuned:
    """Train `ZOO_HOME/models/<request.name>` on some of the classes of `source` and measure it on the others.

    Some of the training classes choose between the base and the epochs of training; the new model is the base under
    another name if no epoch is better. With fewer than four training classes nothing is trained and the base is kept,
    unless `data.validation=0` asks for the last epoch. The split and the choice are written into the model's
    recipe.json and the measurement into its results.json. The same call continues a stopped run.

    Args:
        source: A folder with one subfolder per class, or a CSV file with the columns image and label.
        request: The base, the method and the options.
        progress: Show progress bars.

    Raises:
        UsageError: If the name is taken or the method unknown; before anything is trained.
        DatasetError: If the images cannot be split.
        ZooError: The errors of loading, `recipe_for` and training.
    """
    twin = small_twin(request.method)
    folder = find_model(request.base)
    check_name(request.name, folder, request.replace)
    check_network(read_card(folder).architecture_args, folder)
    from training.api import train  # torch, after the arguments are checked

    base = load(folder, AUTO, device=request.device)  # reports a damaged folder before anything is read
    model = TrunkModel(base.folder, base.card, reference(base.folder))
    backbone = _tuned_backbone(model, request.tune)
    pictures = read_training_folder(source, progress)
    split = split_classes(pictures.dataset, request.test_share, request.seed)
    learns = validation_share(len(split.train.classes)) > 0 or _sets_validation(request.settings)
    views = views_of_model(base.folder, base.card.preprocessing, request.views if learns else 1, request.seed)
    recipe = recipe_for(
        twin,
        model.card,
        backbone,
        split.train,
        views,
        request.name,
        request.settings,
        request.seed,
    )
    cached = request.tune == "head"
    images = 2 * len(split.test) + len(split.train) * (1 + views.count) if cached else len(split.test)
    base = load(base.folder, AUTO, device=request.device, images=images)
    before = base.embed(split.test.images, progress=progress)
    if cached:
        features = cached_features(model, split.train, views, request.device, progress)
        recipe = recipe_on_features(recipe, features, model.card, model.reference, request.settings, request.name)
    seen, unread = classes_seen(base.folder, split.test), unreadable_record(base.folder)
    facts = {"split": split.to_json(), "seen_by_base": list(seen), "base_history_known": unread is None}
    facts[CLASS_IMAGES] = telling_digests(digests_of_classes(split.train))
    check_same(recipe, split.to_json(), request.replace)
    outcome = train(recipe, None, request.device, progress=progress, dataset=split.train, facts=facts, evaluate=False)
    selection = _select(base, outcome, held_out(split.train, recipe.data, recipe.seed), request)
    _keep(selection, base.folder, outcome.folder)
    if selection.kept == "base":  # its rows are there; a second load may choose another runtime
        kept, after = replace(base, card=read_card(outcome.folder), folder=outcome.folder), before
    else:
        kept = load(outcome.folder, AUTO, device=request.device, images=len(split.test))
        after = kept.embed(split.test.images, progress=progress)
    evaluation = attribute_to_model(evaluate(after, split.test, k=(1,)), kept)
    evaluation = replace(evaluation, learnt_classes=len(seen) or None)
    add_result(outcome.folder, evaluation)
    outcome, rows = replace(outcome, evaluation=evaluation), measure_change(before, after, split.test)
    return Finetuned(outcome, base.card, pictures, split, selection, (base.dim, kept.dim), rows, seen, unread)


def held_out(train: Dataset, data: Data, seed: int) -> Dataset | None:
    """Return the images of the training classes that a recipe holds out; None if it holds out none."""
    from training.data import held_out_classes

    mask = np.isin(train.labels, held_out_classes(len(train.classes), data, seed))
    return subset(train, mask, "validation") if mask.any() else None


def _select(base: Embedder, outcome: FinishedRun, images: Dataset | None, request: FinetuneRequest) -> Selection:
    """Choose between the base and the best epoch by the held-out training classes.

    Without them keep the last epoch if a setting asked for that, else the base.
    """
    if images is None:
        return (
            Selection("trained", outcome.best_epoch) if _sets_validation(request.settings) else Selection("base", None)
        )
    trained = load(outcome.folder, AUTO, device=request.device, images=len(images))
    return select(base.embed(images.images), trained.embed(images.images), images, outcome.best_epoch)


def _sets_validation(settings: Iterable[str]) -> bool:
    return "data.validation" in setting_keys(settings)


def _keep(selection: Selection, base: Path, folder: Path) -> None:
    """Record the selection in a new model folder and, if the base was chosen, put its network there."""
    card = read_card(folder)
    record = {**read_object(folder / RECIPE_FILE), "kept": selection.kept, "selection": selection.to_json()}
    if selection.kept == "base":
        source = read_card(base)
        reason = "finetuning it on a folder of images did not help"
        if selection.chosen_by == "too-few-classes":
            reason = "a folder of images had too few classes to finetune it"
        note = f"The same network as {source.name}: {reason}."
        card = replace(source, name=card.name, description=f"{source.description} {note}".strip())
        log = (folder / LOG_FILE).read_bytes()
        with atomic_folder(folder) as temporary:
            for name in known_files(base, source):
                if name not in OWN_FILES:
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(base / name, temporary / name)
            card.write(temporary)
            write_bytes(temporary / LOG_FILE, log)
            write_json(temporary / RECIPE_FILE, {**record, "model": card.identity})
    else:
        if selection.kept == "start":
            _start_card(card, read_card(base), record).write(folder)
        write_json(folder / RECIPE_FILE, record)


def _start_card(card: Card, base: Card, record: dict[str, Any]) -> Card:
    """Return the card of a finetune that keeps its start: method, data set and papers are those that shaped weights."""
    takes_over = len(card.heads) == len(base.heads) == 1 and card.heads[0].dim == base.heads[0].dim
    takes_over = takes_over and _inner(record, "recipe").get("head_start") != "random"
    head = "its own head, whitened within classes" if takes_over else "a new head before its first step"
    return replace(
        card,
        method=base.method if takes_over else UNTRAINED,
        dataset=base.dataset,
        sources=base.sources,
        description=f"{base.name} with {head}: training it on a folder of images did not help.",
    )


# recipe


def method_names() -> list[str]:
    """Return the short names of the methods that can be chosen: those that have a small twin."""
    return [name.removesuffix(TWIN_SUFFIX) for name in RECIPES if name.endswith(TWIN_SUFFIX)]


def small_twin(method: str) -> Recipe:
    """Return the recipe of a method's small twin.

    Raises:
        UsageError: If the method is unknown or an ensemble.
    """
    methods = method_names()
    if method not in methods:
        raise unknown("method", method, methods)
    twin = RECIPES[method + TWIN_SUFFIX]()
    if not isinstance(twin, Recipe):
        raise UsageError(
            f"{method} is an ensemble; choose a single method, as margin, ms or diva.", code="not-available"
        )
    return twin


def recipe_for(
    twin: Recipe,
    card: Card,
    backbone: Backbone,
    train: Dataset,
    views: Views,
    name: str,
    settings: Sequence[str] = (),
    seed: int = 0,
) -> Recipe:
    """Return a small twin's recipe with a model's trunk, preprocessing and augmentation, cut to the size of the data.

    Heads on a frozen trunk learn faster and for longer than a trunk. With too few classes to compare the result with
    its base, nothing learns.

    Args:
        twin: The small twin of a method.
        card: The card of the model to start from.
        backbone: Its trunk, and the part of it that is trained.
        train: The images to train on.
        views: The augmentation and the squares that are kept.
        name: The name of the new model.
        settings: `key=value`, as `--set` takes them.
        seed: The seed of the run.

    Raises:
        RecipeError: If a setting does not fit.
    """
    from training.data import training_labels

    share = validation_share(len(train.classes))
    epochs = HEAD_EPOCHS if backbone.tune == "head" else EPOCHS
    if not share and not _sets_validation(settings):
        epochs = 0
    recipe = replace(
        twin,
        name=name,
        data=Data("folder", 1, share, views.side, views.fit),
        backbone=backbone,
        heads=_heads(twin, card),
        preprocessing=card.preprocessing,
        augmentation=views.augmentation,
        optimizer=replace(twin.optimizer, lr=LR[backbone.tune]),
        batch=Batch(),
        schedule=Schedule(epochs, 1, "one-cycle"),
        seed=seed,
        precision=FASTEST,
        head_start="lda",
    )
    changed = override(recipe, settings)
    changed = _fit_to_images(changed, training_labels(train, changed.data, changed.seed), setting_keys(settings))
    check_names(changed)
    return name_custom(changed, twin)


def _heads(twin: Recipe, card: Card) -> tuple[Head, ...]:
    """Return the twin's heads: a single one in the size of the base's single head, so that it takes that one over."""
    if len(twin.heads) == len(card.heads) == 1:
        return (replace(twin.heads[0], dim=card.heads[0].dim),)
    return twin.heads


def _fit_to_images(recipe: Recipe, labels: np.ndarray, given: Collection[str]) -> Recipe:
    """Return the recipe with batches and steps for the labels int64 [n], except those that the given settings name."""
    size, per_class = batch_sizes(labels)
    sizes = {"size": size, "per_class": per_class}
    free: dict[str, Any] = {name: value for name, value in sizes.items() if f"batch.{name}" not in given}
    batch = replace(recipe.batch, **free)
    if "schedule.steps" not in given:
        steps = min(STEPS, max(10, len(labels) // size))
        recipe = replace(recipe, schedule=replace(recipe.schedule, steps=steps))
    return replace(recipe, batch=batch)


def batch_sizes(labels: np.ndarray) -> tuple[int, int]:
    """Return the images of a batch, at most 128, and those of a class: four, or eight with fewer than eight classes."""
    sizes = np.unique(labels, return_counts=True)[1]
    classes = len(sizes)
    per_class = min(4 if classes >= 8 else 8, int(sizes.max()))
    return per_class * min(classes, 128 // per_class), per_class


def _tuned_backbone(model: TrunkModel, tune: str) -> Backbone:
    """Return the model's trunk with the part of it that is trained.

    Running statistics of batch norms do not change: those of a few images are unreliable.

    Args:
        model: The model.
        tune: A name of `training.recipe.TUNED`.

    Raises:
        RecipeError: `invalid-value` for another name, or if the trunk has no such part (`choose_parts`).
    """
    card = model.card
    backbone = Backbone(card.backbone, card.architecture, card.architecture_args, model.reference, tune=tune)
    if tune == "head":
        return backbone
    from training.trunk.parts import choose_parts, has_batch_norm
    from zoo.models.network import load_network

    trunk = load_network(card, model.folder).trunk
    if has_batch_norm(trunk):
        backbone = replace(backbone, freeze_norm="statistics" if tune == "norm" else "all")
    choose_parts(trunk, backbone)
    return backbone


# cached features


def cached_features(
    model: TrunkModel, train: Dataset, views: Views, device: str | None = None, progress: bool = False
) -> Features:
    """Return the trunk's features of a data set from `ZOO_HOME/cache`, and extract them if they are not there.

    The last `KEPT_FEATURES` folders that were used stay.

    Args:
        model: The model whose trunk is used.
        train: The data set.
        views: The random views of each image.
        device: As in `zoo.models.torch_runtime.choose_device`.
        progress: Whether to show a progress bar.

    Raises:
        ZooError: If `extract` or `read_features` would raise it.
    """
    folder = paths.home() / "cache" / f"features-{_cache_key(model, train, views)}"
    if not _is_usable(folder):
        from training.cached.extraction import extract
        from training.execution import Execution
        from zoo.models.torch_runtime import choose_device

        extract(model, train, folder, views, execution=Execution(choose_device(device)), progress=progress)
    keep_newest(folder, "features-*", KEPT_FEATURES)
    return read_features(folder)


def _is_usable(folder: Path) -> bool:
    """Return whether cached features can be read; others (damaged, of another version) are made again in silence."""
    try:
        read_features(folder)
    except UsageError:
        return False
    return True


def _cache_key(model: TrunkModel, train: Dataset, views: Views) -> str:
    """Return a key that differs for another model, other views, labels or files (by path, size and time of change)."""
    total = hashlib.sha256(f"{model.card.fingerprint} {views}\n".encode())
    total.update(json.dumps([list(train.classes), train.labels.tolist()]).encode())
    for image in train.images:
        path = Path(str(image))
        facts = path.stat()
        total.update(f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return total.hexdigest()[:16]


# records of model folders


def check_name(name: str, base: Path, replace: bool = False) -> None:
    """Check that a new model does not replace its base, or, unless `replace`, another model.

    A stopped run left no folder, or one without a measurement, and may continue; `check_same` compares its recipe.

    Raises:
        UsageError: If the name is taken.
    """
    folder = paths.local_models() / name
    if folder.resolve() == base.resolve():
        raise UsageError(
            f"the new model would replace {name}, which it starts from; name it with --as.", code="overwrites-input"
        )
    if replace or _is_unmeasured(folder):
        return
    if folder.exists() or name in known_names():
        raise _name_taken(name)


def check_same(recipe: Recipe, split: dict[str, object], replace: bool = False) -> None:
    """Check that a model of the recipe's name has the same recipe, base and split, or may be replaced.

    Raises:
        UsageError: If the name belongs to another model.
    """
    folder = paths.local_models() / recipe.name
    record = read_object(folder / RECIPE_FILE)
    same = is_repeat(record, recipe) and record.get("split") == split
    if folder.exists() and not replace and not same:
        raise _name_taken(recipe.name)


def classes_seen(base: Path, images: Dataset) -> tuple[str, ...]:
    """Return the classes of images that the model in the folder `base` or an ancestor was trained or whitened on."""
    folders = list(_ancestors(base))
    learnt = LearntClasses.joined(map(read_learnt_classes, folders)).among_classes(images)
    whitened = (read_whitened_classes(folder).among_classes(images) for folder in folders)
    return reduce(LearntOverlap.joined, whitened, learnt).learnt


def unreadable_record(base: Path) -> Path | None:
    """Return the first recipe.json of the model in the folder `base` and its ancestors that cannot be read, or None.

    The classes that such a model has learnt are unknown.
    """
    files = (folder / RECIPE_FILE for folder in _ancestors(base))
    return next((file for file in files if file.exists() and not read_object(file)), None)


def _ancestors(base: Path) -> Iterator[Path]:
    """Yield the folder `base`, those of the models it started from and learnt from, and so on."""
    waiting, visited = [base], set[Path]()
    while waiting:
        folder = waiting.pop(0)
        if folder not in visited:
            visited.add(folder)
            yield folder
            waiting += _parents(read_object(folder / RECIPE_FILE))


def _parents(record: dict[str, Any]) -> Iterator[Path]:
    """Yield the folders of a model's base and its teacher, if they still hold the same models."""
    recipe = _inner(record, "recipe")
    references = {
        "base": _inner(recipe, "backbone").get("pretrained"),
        "teacher": _inner(_inner(recipe, "objective"), "method_args").get("teacher"),
    }
    for kind, name in references.items():
        with suppress(ZooError):
            folder = cached_folder(name) if isinstance(name, str) else None
            if folder is not None and read_card(folder).fingerprint == _inner(record, kind).get("fingerprint"):
                yield folder


def _is_unmeasured(folder: Path) -> bool:
    """Return whether a finetune was stopped after its model was written and before it was measured."""
    return "split" in read_object(folder / RECIPE_FILE) and not (folder / RESULTS_FILE).exists()


def _inner(record: dict[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _name_taken(name: str) -> UsageError:
    return UsageError(
        f"a model or recipe {name} exists already. Name the new one with --as OTHER, or replace a model of that name "
        "with --replace.",
        code="already-exists",
    )
