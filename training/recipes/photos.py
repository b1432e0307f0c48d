"""Recipes on photographs from EfficientNet-Lite0's weights of ImageNet: birds (`cub2010`) and cars (`cars-half`).

A recipe publishes the heads that its method trains. The same recipe whose name ends with `-lda` publishes instead one
head of 512 discriminant directions of the trained trunk's features, which suits unseen cars better; for birds
no gain is shown (docs/studies/README.md).

A run is made for ten minutes on two cores: 450 steps on birds and 900 on cars, of 112 images of 128 x 128 pixels, for
every method, whose tasks share the steps. Clustering (MIC) and second views (DaNCE) take more time. A tenth of the
training classes is held out, and selects the epoch. The constants of methods are those of their papers on CUB-200-2011
and Cars196, but for DiVA's weights (`diva`); rates, batches and sizes of heads are ours. None was chosen by test
classes.

What mattered, on 29 held-out classes of the 98 training classes of the cars (Proxy-Anchor, one seed, R@1 / MAP@R):

- The embedding, after 450 steps: the trained trunk's 1,280 numbers give .563 / .125, 512 principal directions of them,
  half whitened, .618 / .148, and 512 discriminant directions .660 / .160 (`head_end=lda`). A head that was fitted to
  the training classes is the worst on birds: .842 / .394, where the principal directions have .858 / .416.
- The steps: .611 / .145 after 450, .674 / .178 after 1,350 (principal directions).
- The rate, after 900 steps with discriminant directions: .697 / .218 at 3e-4; in the first 180 steps .611 / .143, and
  .595 / .132 at 1e-4.
- The time: with all stages but the last two frozen, and their maps of twelve views of each image kept in memory, a core
  trains 200 images per second instead of 70 with the stem and two stages frozen. In the time of 180 steps of the latter
  (.604 / .136) it does 500 (.611 / .145 after 450).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from training.recipe import Batch, Data, EnsembleRecipe, Objective, Optimizer, Recipe, Schedule
from training.recipes.common import (
    DIVA,
    GROUP,
    LATER_LOSSES,
    MIC,
    PHOTO_DATASETS,
    REVISITING,
    SHARING,
    TABLE_2,
    ObjectiveSettings,
    backbone,
    preprocessing,
    regularised,
    resized_crop,
    with_head_end,
)
from training.recipes.diva import DIVA_TASKS, TASKS, join
from training.recipes.small import RHO, ROTH_2021
from zoo.models.card import Head

SUBSETS = {"diva": DIVA_TASKS, **{name: tasks for name, tasks in TASKS.items() if set(tasks) <= set(DIVA_TASKS)}}
"""DiVA and the subsets of its tasks that keep the discriminative one."""

DIM = 512
SIDE, CROP = 160, 128
BATCH = 112
EPOCHS = 5
STEPS = {"cub2010": 90, "cars-half": 180}
"""Steps of an epoch."""
FROZEN_STAGES = {"cub2010": 3, "cars-half": 6}
"""The stem and the first two or five of seven stages."""
VIEWS = {"cub2010": 8, "cars-half": 12}
"""Augmented views of each image that pass through the frozen stages."""

LDA = ("margin", "ms", "pa", "softmax", "triplet-d", "r-margin", "shared", "mic", "diva", "group", "group-t1")
"""Methods with a variant that publishes discriminant directions: the families of the papers, and those that
`docs/lab/photographs.md` measures."""

LR = {"cub2010": 1e-4, "cars-half": 3e-4}
"""Learning rate of trunk, heads, auxiliary heads and adversaries."""
PROXY_LR = 1e-2
"""Learning rate of proxies and class weights, which begin at random."""


def recipes() -> Iterator[tuple[str, Callable[[], Recipe | EnsembleRecipe]]]:
    """Yield each model name with the function that makes its recipe."""
    for dataset in PHOTO_DATASETS:
        makers = dict(_methods(dataset))
        for method, make in makers.items():
            yield f"{method}-lite0-{dataset}", make
        for method in LDA:
            yield f"{method}-lite0-{dataset}-lda", partial(with_lda, makers[method])


def _methods(dataset: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each method with the function that makes its recipe on a data set."""
    for method in (*TABLE_2, *LATER_LOSSES):
        yield method, partial(plain, method, dataset)
    for loss in RHO:
        yield f"r-{loss}", partial(with_rho, loss, dataset)
    yield "shared", partial(shared, dataset)
    yield "mic", partial(mic, dataset)
    for method, tasks in SUBSETS.items():
        yield method, partial(diva, method, tasks, dataset)
    yield "diva-separate", partial(separate, dataset)
    for steps in (None, 0, 1, 2, 3):
        yield "group" if steps is None else f"group-t{steps}", partial(group, steps, dataset)
    yield "s2sd", partial(s2sd, dataset)


def with_lda(make: Callable[[], Recipe]) -> Recipe:
    """Return the recipe of `zoo train margin-lite0-cub2010-lda`, or of another method or the cars.

    Args:
        make: The function that makes the recipe of the method.
    """
    recipe = make()
    return with_head_end(replace(recipe, name=f"{recipe.name}-lda"), "lda")


def plain(method: str, dataset: str) -> Recipe:
    """Return the recipe of `zoo train margin-lite0-cub2010`, or of another objective or the cars.

    Args:
        method: A name of `TABLE_2` or `LATER_LOSSES`.
        dataset: "cub2010" or "cars-half".
    """
    source = LATER_LOSSES[method].paper if method in LATER_LOSSES else REVISITING
    return _recipe(method, dataset, (TABLE_2 | LATER_LOSSES)[method], (source,))


def with_rho(loss: str, dataset: str) -> Recipe:
    """Return the recipe of `zoo train r-margin-lite0-cub2010`, or of the contrastive loss or the cars."""
    return _recipe(f"r-{loss}", dataset, regularised(loss, RHO[loss]), (REVISITING,))


def shared(dataset: str) -> Recipe:
    """Return the recipe of `zoo train shared-lite0-cub2010`, or of the cars."""
    return _method("shared", dataset, "sharing", {"gamma": 500.0}, ("discriminative", "shared"), (SHARING,))


def mic(dataset: str) -> Recipe:
    """Return the recipe of `zoo train mic-lite0-cub2010`, or of the cars.

    All training images are embedded and grouped every third epoch, which takes the time of half as many steps again.
    """
    groups, weight = {"cub2010": (30, 2500.0), "cars-half": (150, 500.0)}[dataset]
    args = {"groups": groups, "decorrelation": weight, "auxiliary_probability": 0.8, "auxiliary_lr": LR[dataset]}
    return _method("mic", dataset, "mic", args, ("class",), (MIC, SHARING))


def diva(method: str, tasks: tuple[str, ...], dataset: str) -> Recipe:
    """Return the recipe of `zoo train diva-lite0-cub2010`, or of a subset of its tasks or the cars.

    The task `dance` embeds every batch a second time, and then all steps need a third more time. Its sum has the
    positive: the queue holds more keys than there are training images, so that without it the loss falls without bound
    as embeddings drift from their earlier keys, and outweighs the other tasks. The weights are a tenth of the
    paper's or less: MAP@R on ten held-out classes of birds, with six frozen stages, after three epochs is .525 with the
    discriminative task alone, .473 with alpha .1 (.452 with DaNCE as the only other task), and .513 with alpha .03,
    each without decorrelation; with alpha .1 and rho 100 it falls from epoch to epoch, to .440.
    """
    args: dict[str, Any] = {"alpha": 0.03, "rho": 10.0}
    departures = ["alpha and rho were chosen on held-out classes, and are a tenth of the paper's on CUB or less."]
    if "dance" in tasks:
        args["auxiliary"] = {"dance": {"with_positive": True}}
        departures.append("DaNCE has the positive in its sum, as in the published code; equation 6 leaves it out.")
    return replace(_method(method, dataset, "diva", args, tasks, (DIVA,)), departures=tuple(departures))


def separate(dataset: str) -> EnsembleRecipe:
    """Return the ensemble of `zoo train diva-separate-lite0-cub2010`, or of the cars: one model per task of DiVA."""
    return join([diva("diva-separate", (task,), dataset) for task in DIVA_TASKS])


def group(steps: int | None, dataset: str) -> Recipe:
    """Return the recipe of `zoo train group-t1-lite0-cub2010`, or of another number of refinement steps or the cars.

    Args:
        steps: T, the number of refinement steps of the labels; None for the loss's default.
        dataset: "cub2010" or "cars-half".
    """
    name, args = ("group", {}) if steps is None else (f"group-t{steps}", {"steps": steps})
    objective = Objective("group", loss_args=args, method="group", method_args={"pretraining": 2})
    recipe = _recipe(name, dataset, ObjectiveSettings(objective, proxies=True), (GROUP,))
    return replace(recipe, batch=Batch(BATCH - 4, "spc", 6))


def s2sd(dataset: str) -> Recipe:
    """Return the recipe of `zoo train s2sd-lite0-cub2010`, or of the cars."""
    return _method("s2sd", dataset, "s2sd", {"dims": [1024, 1536]}, ("embedding",), (ROTH_2021,))


def _method(
    method: str, dataset: str, kind: str, args: dict[str, Any], heads: tuple[str, ...], sources: tuple[str, ...]
) -> Recipe:
    """Return a recipe of a method on the margin loss; heads are of equal size, together `DIM` or a little less."""
    if kind in ("sharing", "mic", "diva"):
        args = {**args, "adversary_lr": LR[dataset]}
    margin = TABLE_2["margin"]
    objective = replace(margin.objective, method=kind, method_args=args)
    recipe = _recipe(method, dataset, replace(margin, objective=objective), sources)
    return replace(recipe, heads=tuple(Head(name, DIM // len(heads)) for name in heads))


def _recipe(method: str, dataset: str, settings: ObjectiveSettings, sources: tuple[str, ...]) -> Recipe:
    """Return a recipe with one head, which begins as the principal directions of the trunk's features.

    R@1 of the frozen trunk on 40 training classes of birds is .651, .666 and .660 with the short side at 128, 144 and
    160, of which 128 are kept; on cars .322 and .320 with 128 and 144.
    """
    return Recipe(
        name=f"{method}-lite0-{dataset}",
        method=method,
        data=Data(dataset, side=SIDE, fit="whole", views=VIEWS[dataset]),
        backbone=replace(backbone("lite0", freeze_norm="all"), frozen_stages=FROZEN_STAGES[dataset]),
        heads=(Head("embedding", DIM),),
        preprocessing=preprocessing("lite0", SIDE - 16, CROP),
        objective=settings.objective,
        augmentation=resized_crop((0.3, 1.0)),
        batch=Batch(BATCH, "spc", 4),
        optimizer=Optimizer("adamw", LR[dataset], 1e-4, PROXY_LR if settings.proxies else settings.loss_lr),
        schedule=Schedule(EPOCHS, STEPS[dataset], "one-cycle", average=0.99),
        precision="auto",
        sources=sources,
        head_start="pca",
    )
