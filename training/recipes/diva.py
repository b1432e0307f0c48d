"""Recipes of DiVA: the method (table 3), its ablation by tasks and the compared tasks (tables 2 and 4, figure 4).

The paper's ablations have Inception with batch norm and a constant rate (sections 4.1 and 4.3). ResNet-50 has the same
recipes here with the rate of its own method, which falls once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from training.recipe import Batch, Data, EnsembleRecipe, Objective, Optimizer, Recipe, Schedule
from training.recipes.common import (
    DISTANCE,
    DIVA,
    PAPER_DATASETS,
    backbone,
    by_dataset,
    crops_of_copies,
    preprocessing,
    random_window,
)
from zoo.models.card import Head

TASKS = {
    "diva-d": ("discriminative",),
    "diva-ds": ("discriminative", "shared"),
    "diva-di": ("discriminative", "intra"),
    "diva-dn": ("discriminative", "dance"),
    "diva-dsi": ("discriminative", "shared", "intra"),
    "diva-dsn": ("discriminative", "shared", "dance"),
    "diva-din": ("discriminative", "intra", "dance"),
    "diva-nce": ("discriminative", "nce"),
    "diva-deepcluster": ("discriminative", "deepcluster"),
    "diva-rotation": ("discriminative", "rotation"),
    "diva-instance": ("discriminative", "instance"),
    "diva-ensemble": ("discriminative", "discriminative-2", "discriminative-3", "discriminative-4"),
}
"""Tasks by method name: d discriminative, s shared, i intra, n DaNCE; then the compared tasks and an ensemble."""

DIVA_TASKS = ("discriminative", "shared", "intra", "dance")
OPEN = (
    "beta of the margin loss starts at 1.2 and learns at 5e-4: section 4 calls it fixed, section 4.1 learnable. "
    "optimizer.loss_lr=0 fixes it.",
    "The decorrelation is a mean over a head's numbers and its regressor has a unit output, as in the published code, "
    "which has rho of this size. objective.method_args.sum_over_dim=true takes the paper's sum, which is as "
    "many times larger as a head has numbers. The regressors have MIC's weight decay; the paper does not say.",
    "Batches of 112 are those of the published code. Its runs have two samples per class; here there are four, because "
    "intra-class triplets need three.",
)
CONTRAST = (
    "Positives of DaNCE and NCE are keys of the slow network, without a gradient, as in the published code; equations "
    "5 and 6 print the live network. Length of the queue and mu are the code's. The temperature is constant, as in "
    "table 1; section 3.1 says that it is adjusted."
)
WEIGHTS = (
    "Weights of DaNCE are scaled so that the largest of an anchor is 1, which is lambda; distances count from .5 and "
    "up to 1.4, as in the published code. The paper prints min(lambda, 1 / q) without a value of lambda."
)
INTRA = (
    "Negatives of intra-class triplets are drawn by distance, as those of shared triplets; the paper speaks of a "
    "similar intuition. The published code draws them evenly: by_distance=false of the task."
)
UNBOUNDED = (
    "The sums of DaNCE and NCE have the negatives alone, as in equations 5 and 6. Such a loss has no lower bound, and "
    "is unlikely to give the printed numbers; the published code has the positive in the sum."
)
COMPARED = (
    "The compared tasks have alpha and rho of the auxiliary tasks, and DeepCluster clusters before every epoch; the "
    "paper says nothing of these."
)
FROZEN = "Batch norm is frozen, as in Revisiting; the paper does not say."
ABLATIONS = {**TASKS, "diva-dsin": DIVA_TASKS}
"""Tasks of the recipes of table 2; the last is the method at its constant rate."""

CONSTANTS = {
    "r50": {"cub": (1500.0, 0.3, 60, 0.3), "cars": (100.0, 0.1, 70, 0.3), "sop": (300.0, 0.2, 70, 0.3)},
    "ibn": {"cub": (300.0, 0.1, 70, 0.3), "cars": (100.0, 0.1, 160, 0.3), "sop": (50.0, 0.1, 100, 0.3)},
}
"""By backbone and data set: rho, alpha, the epoch of the drop of the learning rate, and its factor."""


def recipes() -> Iterator[tuple[str, Callable[[], Recipe | EnsembleRecipe]]]:
    """Yield each model name with the function that makes its recipe."""
    for dataset in PAPER_DATASETS:
        for short, ablations in (("r50", TASKS), ("ibn", ABLATIONS)):
            yield f"diva-{short}-{dataset}", partial(diva, "diva", DIVA_TASKS, short, dataset)
            for method, tasks in ablations.items():
                yield f"{method}-{short}-{dataset}", partial(diva, method, tasks, short, dataset)
            yield f"diva-separate-{short}-{dataset}", partial(separate, short, dataset)


def diva(method: str, tasks: tuple[str, ...], short: str, dataset: str) -> Recipe:
    """Return the recipe of `zoo train diva-r50-cub`, or of other tasks, another backbone or another data set.

    R@1 of the paper on CUB / CARS / SOP: ResNet-50 69.2 / 87.6 / 79.6, Inception with batch norm 66.8 / 84.1 / 78.1, at
    a constant rate 66.4 / 83.1 / 77.5 (`diva-dsin-ibn-cub`), its discriminative task alone 63.6 / 79.4 / 76.6.
    Heads are of equal size, together 512 (three of 170: 510). Batch norm learns with Inception and is frozen with
    ResNet-50. Four samples per class: the intra task needs three, and all sets of tasks see the same batches. Images
    are kept at 384 x 384: a window of 256 on the short side is at least as sharp as in the paper.

    Args:
        method: The name of the method, with which the name of the recipe begins.
        tasks: The tasks; each has a head.
        short: The backbone: a key of `CONSTANTS`.
        dataset: The data set: "cub", "cars" or "sop".
    """
    rho, alpha, milestone, gamma = CONSTANTS[short][dataset]
    queued = [task for task in ("dance", "nce") if task in tasks and dataset == "sop"]
    auxiliary = {task: {"queue_batches": 70} for task in queued}
    args = {"alpha": alpha, "rho": rho, **({"auxiliary": auxiliary} if auxiliary else {})}
    constant = short == "ibn" and method != "diva"
    lowered: dict[str, Any] = {} if constant else {"name": "multi-step", "milestones": (milestone,), "gamma": gamma}
    return Recipe(
        name=f"{method}-{short}-{dataset}",
        method=method,
        data=Data(dataset, validation=0, side=384, fit="whole"),
        backbone=backbone(short, freeze_norm="all" if short == "r50" else "none"),
        heads=tuple(Head(task, 512 // len(tasks)) for task in tasks),
        preprocessing=preprocessing(short),
        objective=Objective("margin", DISTANCE, {"beta": 1.2}, method="diva", method_args=args),
        augmentation=random_window(),
        batch=Batch(112, "spc", 4),
        optimizer=Optimizer("adam", 1e-5, 5e-4),
        schedule=Schedule(by_dataset(dataset, 200, 200, 150), **lowered),
        sources=(DIVA,),
        departures=(crops_of_copies(384), *OPEN, *_departures(tasks), *((FROZEN,) if short == "r50" else ())),
    )


def _departures(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the recipes of these tasks take from elsewhere than the paper."""
    by_task = {
        UNBOUNDED: ("dance", "nce"),
        CONTRAST: ("dance", "nce"),
        WEIGHTS: ("dance",),
        INTRA: ("intra",),
        COMPARED: ("nce", "deepcluster", "rotation", "instance"),
    }
    return tuple(text for text, named in by_task.items() if set(named) & set(tasks))


def separate(short: str, dataset: str) -> EnsembleRecipe:
    """Return the ensemble of `zoo train diva-separate-ibn-cub`: one model per task, with 128 numbers each (table 4)."""
    return join([diva("diva-separate", (task,), short, dataset) for task in DIVA_TASKS])


def join(recipes: Sequence[Recipe]) -> EnsembleRecipe:
    """Return an ensemble of recipes with one name and one task each; its members share the dimension that each had
    alone.
    """
    name, method = recipes[0].name, recipes[0].method
    members = []
    for i, recipe in enumerate(recipes):
        objective = replace(recipe.objective, method_args={**recipe.objective.method_args, "rho": 0.0, "alpha": 1.0})
        heads = (replace(recipe.heads[0], dim=recipe.dim // len(recipes)),)
        members.append(replace(recipe, name=f"{name}.{i}", heads=heads, objective=objective))
    return EnsembleRecipe(name, method, tuple(members))
