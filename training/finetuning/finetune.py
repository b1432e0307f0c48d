"""A model made to fit a person's own pictures, and measured before and after on classes that it never saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.api import Outcome, train
from training.finetuning.features import cached_features
from training.finetuning.history import check_name, check_same, seen, unreadable
from training.finetuning.recipe import recipe_for
from training.frozen.extract import Model
from training.frozen.recipe import on_features
from training.frozen.views import usual_views
from training.twins import twin_of
from zoo.data.folder import Pictures, Split, read_pictures, split_classes
from zoo.evaluation import evaluate
from zoo.evaluation.bootstrap import bootstrap_intervals
from zoo.evaluation.evaluate import of_model
from zoo.evaluation.retrieval import per_query
from zoo.models.load import load
from zoo.models.registry import reference
from zoo.models.results import add_result

METRICS = ("recall_at_1", "map_at_r")


@dataclass(frozen=True)
class Wish:
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
class Row:
    """A metric before and after with 95 % intervals over classes, and the interval of the paired difference."""

    metric: str
    before: float
    before_interval: tuple[float, float]
    after: float
    after_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]


@dataclass(frozen=True)
class Fitted:
    """The new model's training, the pictures and their split, and the table.

    seen: the measured classes that the base learnt from when it was finetuned itself. unread: the recipe.json, of the
    base or one before it, that cannot be read, so that there may be more of them.
    """

    outcome: Outcome
    pictures: Pictures
    split: Split
    rows: tuple[Row, ...]
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


def finetune(source: str | Path, wish: Wish, progress: bool = False) -> Fitted:
    """Train `ZOO_HOME/models/<wish.name>` on some of the classes of `source` and measure it on the others.

    source: a folder with a subfolder for each class, or a CSV file with the columns image and label. The split is
    written into the model's recipe.json and the measurement into its results.json. The same call goes on where one was
    stopped. Raises `UsageError` for a name that is taken and what `read_pictures` raises, before anything is trained,
    and what loading, `recipe_for` and training raise.
    """
    twin_of(wish.method)  # a method that there is not is said before anything is read
    base = load(wish.base, device=wish.device)
    check_name(wish.name, base.folder, wish.replace)
    pictures = read_pictures(source, progress)
    split = split_classes(pictures.dataset, wish.test_share, wish.seed)
    model = Model(base.folder, base.card, reference(base.folder))
    views = usual_views(base.folder, base.card.preprocessing, wish.views, wish.seed)
    recipe = recipe_for(
        wish.method, model, split.train, views, wish.name, wish.settings, wish.seed, head_only=wish.head_only
    )
    before = base.embed(split.test.images, progress=progress)
    if wish.head_only:
        features = cached_features(model, split.train, views, wish.device, progress)
        recipe = on_features(recipe, features, model.card, model.reference, wish.settings, wish.name)
    known, unread = seen(base.folder, split.test.classes), unreadable(base.folder)
    facts = {"split": split.to_json(), "seen_by_base": list(known), "base_history_known": unread is None}
    check_same(recipe, split.to_json(), wish.replace)
    outcome = train(recipe, None, wish.device, progress=progress, dataset=split.train, facts=facts, evaluate=False)
    fitted = load(outcome.folder, device=wish.device)
    after = fitted.embed(split.test.images, progress=progress)
    add_result(outcome.folder, of_model(evaluate(after, split.test, k=(1,)), fitted))
    return Fitted(outcome, pictures, split, compare(before, after, split.test.labels), known, unread)


def compare(before: np.ndarray, after: np.ndarray, labels: np.ndarray) -> tuple[Row, ...]:
    """Rows of embeddings [n, d] and [n, e] of the same images: each metric before and after."""
    first, second = (per_query(rows, labels, k=(1,)) for rows in (before, after))
    changed = {name: second.values[name] - first.values[name] for name in METRICS}
    low, high, difference = (
        bootstrap_intervals(values, first.classes)
        for values in ({n: first.values[n] for n in METRICS}, {n: second.values[n] for n in METRICS}, changed)
    )
    means = first.means(), second.means()
    return tuple(
        Row(n, means[0][n], low[n], means[1][n], high[n], means[1][n] - means[0][n], difference[n]) for n in METRICS
    )
