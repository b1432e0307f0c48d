"""What a row costs: images through the trunk, hours at a measured rate, disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from training.publishing.rows import Row
from training.recipe import Recipe
from zoo.datasets import cars, cifar100, cub, inshop, sop
from zoo.registry import recipes

TRAIN_IMAGES = {
    "cub": cub.EXPECTED["train"].images,
    "cars": cars.EXPECTED["train"].images,
    "sop": sop.EXPECTED["train"].images,
    "inshop": inshop.EXPECTED["train"].images,
    "cifar100": cifar100.EXPECTED["train"].images,
}
FORWARD = 1 / 3
"""A forward pass beside forward and backward together, in arithmetic: the backward pass takes twice as much."""

BYTES = {"fp32": 4.1, "fp16": 2.1, "int8": 1.2}
"""Of an ONNX graph, by parameter: the weights, and what describes the graph."""

INT8 = {"googlenet": 1.6, "bn_inception": 2.8, "densenet169": 1.3, "densenet201": 1.3}
"""Where layers are too sensitive for int8 and stay in float: bytes by parameter as measured (docs/exports.json)."""


@dataclass(frozen=True)
class Cost:
    """images: passed forward and back, further forward passes counted as parts of one. hours: at the measured rate.

    disk: bytes of the finished folder, weights and graphs. scratch: bytes beside it while the row is trained.
    """

    images: int
    hours: float
    disk: int
    scratch: int


def cost(row: Row, throughput: Mapping[str, float], precisions: tuple[str, ...]) -> Cost:
    """throughput: images/s of training, by backbone."""
    images = sum(_images(recipe) for recipe in row.recipes)
    parameters = int(recipes()[row.name]["parameters"])
    largest = parameters // len(row.recipes)
    return Cost(
        round(images),
        images / throughput[row.backbone] / 3600,
        math.ceil(parameters * (4 + sum(_bytes(row, precision) for precision in precisions))),
        # A checkpoint holds weights, the two moments of Adam and the best weights; a second one is written beside it.
        2 * 4 * 4 * largest + 4 * parameters * (len(row.recipes) > 1),
    )


def _bytes(row: Row, precision: str) -> float:
    """Of the row's graph in that precision, by parameter."""
    architecture = row.recipes[0].backbone.architecture.partition(".")[0]
    return INT8.get(architecture, BYTES[precision]) if precision == "int8" else BYTES[precision]


def decoded(row: Row) -> int:
    """Bytes of the data set's decoded training images, which rows of one data set and size share."""
    data = row.recipes[0].data
    return TRAIN_IMAGES.get(data.dataset, 0) * data.side**2 * row.recipes[0].preprocessing.channels


def _images(recipe: Recipe) -> float:
    epochs, size = recipe.schedule.epochs, recipe.batch.size
    samples = TRAIN_IMAGES.get(recipe.data.dataset, 0) * recipe.data.turns * (1 - recipe.data.validation)
    steps = recipe.schedule.steps or max(1, math.floor(samples / size))
    return epochs * steps * size * _passes(recipe) + _looks(recipe) * samples * FORWARD


def _passes(recipe: Recipe) -> float:
    """Passes of a step, in units of one there and back: DiVA's second view is forward alone, rotations are four."""
    tasks = {head.name for head in recipe.heads}
    return 1 + FORWARD * bool(tasks & {"dance", "nce"}) + 3 * ("rotation" in tasks)


def _looks(recipe: Recipe) -> int:
    """How often all training images are looked at once more, for clusters or a first queue."""
    tasks = {head.name for head in recipe.heads}
    if "deepcluster" in tasks:
        return recipe.schedule.epochs
    if recipe.objective.method == "mic":
        return math.ceil(recipe.schedule.epochs / int(recipe.objective.method_args.get("cluster_every", 3)))
    return int(bool(tasks & {"dance", "nce"}))
