"""Recipes of Hyp-ViT in its spherical form: vision transformers with pairwise cross entropy on the unit sphere.

Any other transformer of timm: `zoo train sph-vits16-cub --set backbone.architecture=NAME`, with its normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from training.recipe import Batch, Data, Objective, Optimizer, Recipe, Schedule
from training.recipes.common import (
    PAPER_DATASETS,
    backbone,
    by_dataset,
    crops_of_copies,
    preprocessing,
    resized_crop,
)
from zoo.models.card import Head

HYP_VIT = (
    "Ermolov et al. 2022, Hyperbolic Vision Transformers: Combining Improvements in Metric Learning, arXiv:2203.10833"
)
RATES = {"vits16": 3e-5, "dinos16": 1e-5}
"""Backbone -> learning rate: that of the commands of the published code, as are batches and epochs."""
DEPARTURES = (
    "Pairwise cross entropy is the loss `supcon`: their equations agree for two samples per class. With nine the code "
    "compares two samples of each class at a time, so that the sum of a pair leaves out the others of its class.",
    "The temperature divides cosines, as in the published code; for the paper's distance, 2 - 2 cos, it would be .05.",
    "The class token and the position embedding are frozen with the patch embedding, and the head has a bias.",
    "Gradients are not clipped, the head starts at random instead of orthogonal, and the run computes in fp32.",
)


def recipes() -> Iterator[tuple[str, Callable[[], Recipe]]]:
    """Yield each model name with the function that makes its recipe."""
    for dataset in PAPER_DATASETS:
        for name in RATES:
            yield f"sph-{name}-{dataset}", partial(spherical, name, dataset)


def spherical(name: str, dataset: str) -> Recipe:
    """Return the recipe of `zoo train sph-vits16-cub`, or of another backbone or data set: Sph-ViT or Sph-DINO.

    Not trained here: it needs the data, the public weights and a GPU with memory for 900 images (less with
    `--set batch.chunk=100`).

    Args:
        name: "vits16" (ImageNet-21k) or "dinos16".
        dataset: "cub", "cars" or "sop".
    """
    per_class = by_dataset(dataset, 9, 9, 2)
    return Recipe(
        name=f"sph-{name}-{dataset}",
        method="sph",
        data=Data(dataset, validation=0, side=384, fit="whole"),
        backbone=replace(backbone(name), frozen_stages=1),
        heads=(Head("embedding", 128),),
        preprocessing=preprocessing(name),
        objective=Objective("supcon", loss_args={"temperature": 0.1}),
        augmentation=resized_crop((0.2, 1.0)),
        batch=Batch(by_dataset(dataset, 900, 882, 900), "spc", per_class),
        optimizer=Optimizer("adamw", RATES[name], 0.01),
        schedule=Schedule(by_dataset(dataset, 50, 300, 200)),
        sources=(HYP_VIT,),
        departures=(crops_of_copies(384), *DEPARTURES),
    )
