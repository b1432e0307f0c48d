"""Finetune on a folder.

Finetuning: a model fitted to a person's own pictures, and measured on classes that it never saw.

Features of a person's own pictures, kept for the next method that is tried on them.

What the recipe.json of model folders tells a finetune: whose place it would take, and what its base has seen.

The methods that finetuning can take: those that have a small twin among the recipes.

What a person's own pictures are trained by: a small twin's method on the trunk of a model that is there.

A model made to fit a person's own pictures, and measured before and after on classes that it never saw.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch.nn.modules.batchnorm import _BatchNorm

from training.api import Outcome, train
from training.feature_file import Features, read_features
from training.features import TrunkModel, Views, extract, recipe_on_features, views_of_model
from training.overrides import check_names, name_custom, override
from training.recipe import Backbone, Batch, Data, Recipe, Schedule
from training.recipes import RECIPES
from training.trainer import Execution
from zoo import paths
from zoo.data.dataset import Dataset
from zoo.data.folder import ClassSplit, TrainingFolder, read_training_folder, split_classes
from zoo.errors import UsageError, ZooError, nearest
from zoo.evaluation import evaluate
from zoo.evaluation.bootstrap import bootstrap_intervals
from zoo.evaluation.evaluate import attribute_to_model
from zoo.evaluation.retrieval import per_query
from zoo.files import read_object
from zoo.models.card import read_card
from zoo.models.catalogue import known_names
from zoo.models.load import load
from zoo.models.network import load_network
from zoo.models.registry import cached_folder, reference
from zoo.models.results import RESULTS_FILE, add_result
from zoo.models.torch_runtime import choose_device

KEPT_FILES = 4
"""How many files stay: a few methods are tried on the same pictures, and a file may be gigabytes."""


def cached_features(
    model: TrunkModel, train: Dataset, views: Views, device: str | None = None, progress: bool = False
) -> Features:
    """The trunk's features of the data set, from `ZOO_HOME/cache` where they are there, else made and put there.

    Of such files the last `KEPT` that were used stay. Raises what `extract` and `read_features` raise.
    """
    file = paths.home() / "cache" / f"features-{_cache_key(model, train, views)}.safetensors"
    if not _usable(file):
        extract(model, train, file, views, place=Execution(choose_device(device)), progress=progress)
    os.utime(file)
    _prune(file)
    return read_features(file)


def _usable(file: Path) -> bool:
    """What a full disk or another version left is made again, for nobody knows of this file."""
    try:
        read_features(file)
    except UsageError:
        return False
    return True


def _prune(used: Path) -> None:
    """Delete all files but the last used; `used` stays, whatever the clock says."""
    others = [file for file in used.parent.glob("features-*.safetensors") if file != used]
    with suppress(FileNotFoundError):  # another process prunes as well
        for file in sorted(others, key=lambda file: file.stat().st_mtime_ns, reverse=True)[KEPT_FILES - 1 :]:
            file.unlink(missing_ok=True)


def _cache_key(model: TrunkModel, train: Dataset, views: Views) -> str:
    """Another name for another model, other views, labels or files (by path, size and time of change)."""
    total = hashlib.sha256(f"{model.card.fingerprint} {views}\n".encode())
    total.update(json.dumps([list(train.classes), train.labels.tolist()]).encode())
    for image in train.images:
        path = Path(str(image))
        facts = path.stat()
        total.update(f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return total.hexdigest()[:16]


RECIPE_FILE = "recipe.json"


def check_name(name: str, base: Path, replace: bool = False) -> None:
    """Raise `UsageError` where the new model would take the place of its base, or, unless told to, of another model.

    A finetune that was stopped left no folder, or one without a measurement, and may go on; `check_same` sees to that.
    """
    folder = paths.local_models() / name
    if folder.resolve() == base.resolve():
        raise UsageError(f"the new model would take the place of {name}, which it starts from; name it with --as.")
    if replace or _unmeasured(folder):
        return
    if folder.exists() or name in known_names():
        raise _name_taken(name)


def check_same(recipe: Recipe, split: dict[str, object], replace: bool = False) -> None:
    """Raise `UsageError` where the name belongs to a model of another recipe or split, unless it may be replaced."""
    folder = paths.local_models() / recipe.name
    made = read_object(folder / RECIPE_FILE)
    same = made.get("recipe") == recipe.to_json() and made.get("split") == split
    if folder.exists() and not replace and not same:
        raise _name_taken(recipe.name)


def classes_seen(base: Path, classes: Iterable[str]) -> tuple[str, ...]:
    """Those of `classes`, by name, that the model in the folder `base` or one it started from was finetuned on."""
    learnt: set[str] = set()
    for folder in _ancestors(base):
        learnt.update(_inner(read_object(folder / RECIPE_FILE), "split").get("train_classes", ()))
    return tuple(name for name in classes if name in learnt)


def unreadable_record(base: Path) -> Path | None:
    """The recipe.json, of the model in the folder `base` or one it started from, that is there and cannot be read.

    What that model was finetuned on is not known then.
    """
    damaged = (
        folder / RECIPE_FILE
        for folder in _ancestors(base)
        if (folder / RECIPE_FILE).exists() and not read_object(folder / RECIPE_FILE)
    )
    return next(damaged, None)


def _ancestors(base: Path) -> Iterator[Path]:
    """The folder `base`, those of the models that it started from and learnt from, and so on."""
    waiting, visited = [base], set[Path]()
    while waiting:
        folder = waiting.pop(0)
        if folder not in visited:
            visited.add(folder)
            yield folder
            waiting += _parents(read_object(folder / RECIPE_FILE))


def _parents(record: dict[str, Any]) -> Iterator[Path]:
    """The folders of the model that one started from and of its teacher, if they still hold the same models."""
    recipe = _inner(record, "recipe")
    starts = {
        "base": _inner(recipe, "backbone").get("pretrained"),
        "teacher": _inner(_inner(recipe, "objective"), "method_args").get("teacher"),
    }
    for kind, start in starts.items():
        with suppress(ZooError):
            folder = cached_folder(start) if isinstance(start, str) else None
            if folder is not None and read_card(folder).fingerprint == _inner(record, kind).get("fingerprint"):
                yield folder


def _unmeasured(folder: Path) -> bool:
    """Whether a finetune was stopped between the writing of its model and the measuring."""
    return "split" in read_object(folder / RECIPE_FILE) and not (folder / RESULTS_FILE).exists()


def _inner(record: dict[str, Any], key: str) -> dict[str, Any]:
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def _name_taken(name: str) -> UsageError:
    return UsageError(
        f"there is a model or recipe {name} already. Name the new one with --as OTHER, or let it take the place of a "
        "model of that name with --replace."
    )


TWIN_SUFFIX = "-conv4-cifar100"


def method_names() -> list[str]:
    """The short names of the methods that can be chosen."""
    return [name.removesuffix(TWIN_SUFFIX) for name in RECIPES if name.endswith(TWIN_SUFFIX)]


def small_twin(method: str) -> Recipe:
    """The method's small twin. Raises `UsageError` with the nearest names, and for an ensemble."""
    known = method_names()
    if method not in known:
        raise UsageError(f"there is no method {method!r}.{nearest(method, known)} Known: {', '.join(known)}.")
    twin = RECIPES[method + TWIN_SUFFIX]()
    if not isinstance(twin, Recipe):
        raise UsageError(f"{method} is an ensemble; choose a single method, as margin, ms or diva.")
    return twin


EPOCHS, HEAD_EPOCHS, STEPS = 10, 20, 200
LR, HEAD_LR = 1e-4, 3e-3
"""A trunk that has learnt moves little; heads begin anew."""


def recipe_for(
    method: str,
    model: TrunkModel,
    train: Dataset,
    views: Views,
    name: str,
    settings: Iterable[str] = (),
    seed: int = 0,
    head_only: bool = False,
) -> Recipe:
    """The recipe of a small twin with the model's trunk, preprocessing and augmentation, cut to the size of the data.

    head_only: for heads on cached features, which learn faster and for longer. Raises `UsageError` for an unknown
    method and `RecipeError` for settings that do not fit.
    """
    twin = small_twin(method)
    card = model.card
    start = Backbone(card.backbone, card.architecture, card.architecture_args, model.reference)
    batch = batch_for(train.labels)
    epochs, lr = (HEAD_EPOCHS, HEAD_LR) if head_only else (EPOCHS, LR)
    recipe = replace(
        twin,
        name=name,
        data=Data("folder", 1, 0.0, views.side, views.fit),
        backbone=start if head_only else _norm_frozen(start, model),
        preprocessing=card.preprocessing,
        augmentation=views.augmentation,
        batch=batch,
        optimizer=replace(twin.optimizer, lr=lr),
        schedule=Schedule(epochs, min(STEPS, max(10, len(train) // batch.size)), "one-cycle"),
        seed=seed,
    )
    changed = override(recipe, settings)
    check_names(changed)
    return name_custom(changed, twin)


def batch_for(labels: np.ndarray) -> Batch:
    """Batches of at most 128 images: four of a class, eight of fewer than eight classes, if any has so many."""
    sizes = np.unique(labels, return_counts=True)[1]
    classes = len(sizes)
    per_class = min(4 if classes >= 8 else 8, int(sizes.max()))
    return Batch(per_class * min(classes, 128 // per_class), "spc", per_class)


def _norm_frozen(backbone: Backbone, model: TrunkModel) -> Backbone:
    """Batch norms of a trunk that has them stay as they are: a few pictures say little of statistics."""
    trunk = load_network(model.card, model.folder).trunk
    if not any(isinstance(module, _BatchNorm) for module in trunk.modules()):
        return backbone
    return replace(backbone, freeze_norm="all")


METRICS = ("recall_at_1", "map_at_r")


@dataclass(frozen=True)
class FinetuneRequest:
    """What is asked for. base: the name or folder of the model to start from; head_only: its trunk stays as it is;
    replace: a model that has the name already may go."""

    base: str
    name: str
    method: str = "margin"
    head_only: bool = False
    settings: Sequence[str] = ()
    test_share: float = 0.3
    seed: int = 0
    views: int = 8
    device: str | None = None
    replace: bool = False


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after with 95 % intervals over classes, and the interval of the paired difference."""

    metric: str
    before: float
    before_interval: tuple[float, float]
    after: float
    after_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]


@dataclass(frozen=True)
class Finetuned:
    """The new model's training, the pictures and their split, and the table.

    seen: the measured classes that the base learnt from when it was finetuned itself. unread: the recipe.json, of the
    base or one before it, that cannot be read, so that there may be more of them.
    """

    outcome: Outcome
    pictures: TrainingFolder
    split: ClassSplit
    rows: tuple[MetricChange, ...]
    seen: tuple[str, ...] = ()
    unread: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **self.outcome.to_json(),
            "split": self.split.to_json(),
            "unreadable": self.pictures.unreadable,
            "classes_of_one_image": list(self.pictures.alone),
            "seen_by_base": list(self.seen),
            "base_history_known": self.unread is None,
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


def finetune(source: str | Path, wish: FinetuneRequest, progress: bool = False) -> Finetuned:
    """Train `ZOO_HOME/models/<wish.name>` on some of the classes of `source` and measure it on the others.

    source: a folder with a subfolder for each class, or a CSV file with the columns image and label. The split is
    written into the model's recipe.json and the measurement into its results.json. The same call goes on where one was
    stopped. Raises `UsageError` for a name that is taken and what `read_pictures` raises, before anything is trained,
    and what loading, `recipe_for` and training raise.
    """
    small_twin(wish.method)  # a method that there is not is said before anything is read
    base = load(wish.base, device=wish.device)
    check_name(wish.name, base.folder, wish.replace)
    pictures = read_training_folder(source, progress)
    split = split_classes(pictures.dataset, wish.test_share, wish.seed)
    model = TrunkModel(base.folder, base.card, reference(base.folder))
    views = views_of_model(base.folder, base.card.preprocessing, wish.views, wish.seed)
    recipe = recipe_for(
        wish.method, model, split.train, views, wish.name, wish.settings, wish.seed, head_only=wish.head_only
    )
    before = base.embed(split.test.images, progress=progress)
    if wish.head_only:
        features = cached_features(model, split.train, views, wish.device, progress)
        recipe = recipe_on_features(recipe, features, model.card, model.reference, wish.settings, wish.name)
    known, unread = classes_seen(base.folder, split.test.classes), unreadable_record(base.folder)
    facts = {"split": split.to_json(), "seen_by_base": list(known), "base_history_known": unread is None}
    check_same(recipe, split.to_json(), wish.replace)
    outcome = train(recipe, None, wish.device, progress=progress, dataset=split.train, facts=facts, evaluate=False)
    fitted = load(outcome.folder, device=wish.device)
    after = fitted.embed(split.test.images, progress=progress)
    add_result(outcome.folder, attribute_to_model(evaluate(after, split.test, k=(1,)), fitted))
    return Finetuned(outcome, pictures, split, measure_change(before, after, split.test.labels), known, unread)


def measure_change(before: np.ndarray, after: np.ndarray, labels: np.ndarray) -> tuple[MetricChange, ...]:
    """Rows of embeddings [n, d] and [n, e] of the same images: each metric before and after."""
    first, second = (per_query(rows, labels, k=(1,)) for rows in (before, after))
    changed = {name: second.values[name] - first.values[name] for name in METRICS}
    low, high, difference = (
        bootstrap_intervals(values, first.classes)
        for values in ({n: first.values[n] for n in METRICS}, {n: second.values[n] for n in METRICS}, changed)
    )
    means = first.means(), second.means()
    return tuple(
        MetricChange(n, means[0][n], low[n], means[1][n], high[n], means[1][n] - means[0][n], difference[n])
        for n in METRICS
    )
