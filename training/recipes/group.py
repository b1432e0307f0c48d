"""Recipes of the Group Loss: Inception with batch norm and four DenseNets, alone and as ensembles (tables 1 to 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from training.recipe import Batch, Data, EnsembleRecipe, Objective, Optimizer, Recipe, Schedule
from training.recipes.common import (
    GROUP,
    PAPER_DATASETS,
    backbone,
    by_dataset,
    preprocessing,
    squeezed_window,
)
from zoo.models.card import Head

BACKBONES = ("ibn", "d121", "d161", "d169", "d201")
ENSEMBLES = (2, 5)


def recipes() -> Iterator[tuple[str, Callable[[], Recipe | EnsembleRecipe]]]:
    """Yield each model name with the function that makes its recipe."""
    for dataset in PAPER_DATASETS:
        for short in BACKBONES:
            yield f"group-{short}-{dataset}", partial(group, short, dataset)
        for size in ENSEMBLES:
            yield f"group{size}-ibn-{dataset}", partial(ensemble, size, dataset)


def group(short: str, dataset: str) -> Recipe:
    """Return the recipe of `zoo train group-ibn-cub`, or of another backbone or data set.

    R@1 of the paper on CUB / CARS / SOP, Inception with batch norm: 65.5 / 85.6 / 75.7. Its embedding of 512 and the
    classifier without bias follow from the parameter counts of table 3; the published code has neither. Rate, weight
    decay and schedule are those of the paper. Classes and samples of a batch, anchors and temperature are its code's;
    the paper gives some of them: on CUB 1 or 2 anchors of 9 samples (section 4.5), batches of 30 to 100 (section 4.1).
    """
    embedding = short == "ibn"
    classes, samples, anchors, temperature = by_dataset(dataset, (6, 9, 2, 24.0), (5, 7, 3, 79.0), (10, 6, 2, 54.0))
    args = {"anchors": anchors, "temperature": temperature, **({"bias": False} if embedding else {})}
    return Recipe(
        name=f"group-{short}-{dataset}",
        method="group",
        data=Data(dataset, validation=0, side=256, fit="whole"),
        backbone=backbone(short),
        heads=(Head("embedding", 512),) if embedding else (),
        preprocessing=replace(preprocessing(short, crop=227), squeeze=True),
        objective=Objective("group", loss_args=args, method="group"),
        augmentation=squeezed_window(227),
        batch=Batch(classes * samples, "spc", samples),
        optimizer=Optimizer("adam", 2e-4, by_dataset(dataset, 1e-6, 1e-7, 1e-12), loss_lr=2e-4),
        schedule=Schedule(70, name="multi-step", milestones=(40,), gamma=0.1),  # 10 of pre-training, then 60
        sources=(GROUP,),
        departures=(
            "Classes and samples of a batch, anchors and temperature are those of the published code. The paper has on "
            "CUB 1 or 2 anchors of 9 samples, batches of 30 to 100 and fewer than 10 classes in each (appendix I), "
            "where the code has 10 on SOP. It does not mention mirror images, nor the number of refinement steps, "
            "which is a choice. The classifier has no weight decay here; the paper does not say, and the code has it.",
        ),
    )


def ensemble(size: int, dataset: str) -> EnsembleRecipe:
    """Return the ensemble of `zoo train group5-ibn-cub`; R@1 of the paper with five on CUB / CARS / SOP: 66.9 / 88.0 /
    76.3.
    """
    member = group("ibn", dataset)
    name = f"group{size}-ibn-{dataset}"
    members = (replace(member, name=f"{name}.{seed}", seed=seed) for seed in range(size))
    return EnsembleRecipe(name, f"group{size}", tuple(members))
