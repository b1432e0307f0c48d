"""Parts that the recipes share: plain objectives, data sets, sources, backbones, preprocessing and augmentation."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from training.recipe import Augmentation, Backbone, Objective, Recipe
from zoo.data.preprocessing import Preprocessing
from zoo.models.backbones.caffe import MEAN, STD

DISTANCE = "distance-weighted"


DIRECTIONS = {"pca": "principal", "lda": "discriminant"}
"""The `head_end` of heads that are replaced -> the directions of the trunk's features that replace them."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """An objective with the settings that go with it.

    Args:
        objective: The objective.
        loss_lr: Learning rate of the loss's parameters.
        proxies: The loss learns at least one vector per class.
        paper: The paper that proposed it, as "Authors YEAR, Title"; by default Revisiting, which compares it.
    """

    objective: Objective
    loss_lr: float = 5e-4
    proxies: bool = False
    paper: str = ""

    @property
    def year(self) -> int:
        """The year of the paper."""
        (year,) = re.findall(r" (\d{4}),", self.paper)
        return int(year)


def _settings(
    loss: str, miner: str | None = None, lr: float = 5e-4, proxies: bool = False, paper: str = "", **args: Any
) -> ObjectiveSettings:
    return ObjectiveSettings(Objective(loss, miner, args), lr, proxies, paper)


TABLE_2 = {
    "angular": _settings("angular"),
    "arcface": _settings("arcface", proxies=True),
    "contrastive": _settings("contrastive", DISTANCE),
    "lifted": _settings("lifted"),
    "histogram": _settings("histogram"),
    "margin06": _settings("margin", DISTANCE, beta=0.6, margin=0.2),
    "margin": _settings("margin", DISTANCE, beta=1.2, margin=0.2),
    "ms": _settings("ms", "ms", kept_only=True),
    "npair": _settings("npair"),
    "proxynca": _settings("proxynca", proxies=True),
    "quadruplet": _settings("quadruplet", DISTANCE),
    "snr": _settings("snr", DISTANCE),
    "softtriple": _settings("softtriple", proxies=True),
    "softmax": _settings("softmax", lr=1e-5, proxies=True),
    "triplet-r": _settings("triplet", "random"),
    "triplet-s": _settings("triplet", "semihard"),
    "triplet-h": _settings("triplet", "softhard"),
    "triplet-d": _settings("triplet", DISTANCE),
}
"""Objectives of Revisiting, table 2, above the line, and triplet (H) of its published code.

Triplet (H) is softhard mining, of which the paper's text says nothing. The mean of multi-similarity is over the anchors
that keep pairs, as in the code that made the table; the paper does not specify it.
"""

PATEL_2022 = "Patel et al. 2022, Recall@k Surrogate Loss with Large Batches and Similarity Mixup"

LATER_LOSSES = {
    "circle": _settings(
        "circle", paper="Sun et al. 2020, Circle Loss: A Unified Perspective of Pair Similarity Optimization"
    ),
    "cosface": _settings(
        "cosface", proxies=True, paper="Wang et al. 2018, CosFace: Large Margin Cosine Loss for Deep Face Recognition"
    ),
    "fastap": _settings("fastap", paper="Cakir et al. 2019, Deep Metric Learning to Rank"),
    "ntxent": _settings(
        "ntxent", paper="Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations"
    ),
    "pa": _settings("pa", proxies=True, paper="Kim et al. 2020, Proxy Anchor Loss for Deep Metric Learning"),
    "recall": _settings("recall", paper=PATEL_2022),
    "simix": ObjectiveSettings(Objective("recall", method="simix"), paper=PATEL_2022),
    "smoothap": _settings(
        "smoothap", paper="Brown et al. 2020, Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval"
    ),
    "snr-contrastive": _settings(
        "snr-contrastive",
        paper="Yuan et al. 2019, Signal-to-Noise Ratio: A Robust Distance Metric for Deep Metric Learning",
    ),
    "subcenter": _settings(
        "subcenter",
        proxies=True,
        paper="Deng et al. 2020, Sub-center ArcFace: Boosting Face Recognition by Large-Scale Noisy Web Faces",
    ),
    "supcon": _settings("supcon", paper="Khosla et al. 2020, Supervised Contrastive Learning"),
}
"""Other common losses and objectives, newer than the five papers or beside them."""


def regularised(name: str, probability: float) -> ObjectiveSettings:
    """Return the settings of a row of table 2 with rho-regularisation (Revisiting, section 5.1).

    All rows have the form (a, a, p) of the published code, to which the printed scores belong;
    `objective.miner_args.published=false` selects the exchange (a, p, p). With (a, a, p) the triplet loss compares
    squared distances, as that code does: of unsquared ones such a triplet has a gradient only up to a distance of .2.
    The exchange brings the paper's unsquared distances (`training.overrides.rho_settings`).

    Args:
        name: Key of `TABLE_2`.
        probability: Share of the negatives that are exchanged for positives.
    """
    settings = TABLE_2[name]
    objective = settings.objective
    args = {"probability": probability, "miner": objective.miner, "published": True}
    loss_args = {**objective.loss_args, "squared": True} if objective.loss == "triplet" else objective.loss_args
    return replace(settings, objective=replace(objective, loss_args=loss_args, miner="rho", miner_args=args))


PAPER_DATASETS = ("cub", "cars", "sop")
SMALL_DATASETS = ("glyphs", "omniglot", "cifar100")
"""Data sets of the small twins, which start from random weights."""
PHOTO_DATASETS = ("cub2010", "cars-half")
"""Data sets of photographs, whose recipes start from EfficientNet-Lite0's weights of ImageNet."""

REVISITING = (
    "Roth et al. 2020, Revisiting Training Strategies and Generalization Performance in Deep Metric Learning, "
    "arXiv:2002.08473"
)
SHARING = "Milbich, Roth et al. 2020, Sharing Matters for Generalization in Deep Metric Learning, arXiv:2004.05582"
MIC = "Roth, Brattoli, Ommer 2019, MIC: Mining Interclass Characteristics for Improved Metric Learning, ICCV"
DIVA = "Milbich, Roth et al. 2020, DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning, arXiv:2004.13458"
GROUP = "Elezi et al. 2020, The Group Loss for Deep Metric Learning, arXiv:1912.00385"
REALITY = "Musgrave et al. 2020, A Metric Learning Reality Check, arXiv:2003.08505"

ARCHITECTURES = {
    "r50": "resnet50.tv_in1k",
    "gn": "googlenet",
    "ibn": "bn_inception",
    **{f"d{layers}": f"densenet{layers}.tv_in1k" for layers in (121, 161, 169, 201)},
    "lite0": "tf_efficientnet_lite0",
    "conv4": "conv4",
    "vits16": "vit_small_patch16_224.augreg_in21k",
    "dinos16": "vit_small_patch16_224.dino",
}
"""Short name of a backbone -> its architecture."""

TRUNKS = {
    "r50": (23_508_032, 2048),
    "gn": (5_599_904, 1024),
    "ibn": (10_270_240, 1024),
    "d121": (6_953_856, 1024),
    "d161": (26_472_000, 2208),
    "d169": (12_484_480, 1664),
    "d201": (18_092_928, 1920),
    "lite0": (3_371_008, 1280),
    "vits16": (21_665_664, 384),
    "dinos16": (21_665_664, 384),
}
"""Backbone -> numbers of its parameters and of its pooled features, which are listed without loading torch."""


def trunk_size(backbone: Backbone, channels: int) -> tuple[int, int]:
    """Return the numbers of parameters and of pooled features of the backbone of a recipe of ours."""
    if backbone.name != "conv4":
        return TRUNKS[backbone.name]
    # Four 3 x 3 convolutions without bias, each with a scale and a shift of batch norm per channel.
    widths = backbone.args["widths"]
    pairs = pairwise((channels, *widths))
    return sum(9 * before * after + 2 * after for before, after in pairs), widths[-1]


def backbone(name: str, freeze_norm: str = "none", **args: Any) -> Backbone:
    """Return a pretrained backbone by its short name in `ARCHITECTURES`."""
    return Backbone(name, ARCHITECTURES[name], args, pretrained=True, freeze_norm=freeze_norm)


def with_head_end(recipe: Recipe, end: str) -> Recipe:
    """Return the recipe with a `head_end`, and with the departure that the heads are replaced, if they are."""
    if end == "trained":
        return replace(recipe, head_end=end)
    departure = (
        f"The embedding is one head of {DIRECTIONS[end]} directions of the trained trunk's features (head_end={end}), "
        "and not the heads that the method trains."
    )
    return replace(recipe, head_end=end, departures=tuple(dict.fromkeys((*recipe.departures, departure))))


def backbone_name(architecture: str) -> str:
    """Return the short name of an architecture, or timm's name of it without the tag of its weights."""
    family = architecture.partition(".")[0]
    return next((name for name, other in ARCHITECTURES.items() if other.partition(".")[0] == family), family)


def preprocessing(name: str, resize: int = 256, crop: int = 224) -> Preprocessing:
    """Return the papers' preprocessing: short side to `resize`, central `crop`, normalised as the backbone's
    pretraining was.
    """
    if name == "ibn":
        return Preprocessing(resize, crop, "RGB", "bilinear", MEAN, STD)
    if name == "gn":
        return Preprocessing(resize, crop, "RGB", "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    if name == "vits16":
        return Preprocessing(resize, crop, "RGB", "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    if name == "dinos16":
        return Preprocessing(resize, crop, "RGB", "bicubic")
    if name == "lite0":
        return Preprocessing(resize, crop, "RGB", "bicubic", (127 / 255,) * 3, (128 / 255,) * 3)
    return Preprocessing(resize, crop, "RGB", "bilinear")


def resized_crop(area: tuple[float, float] = (0.08, 1.0)) -> Augmentation:
    """Return the augmentation by random resized crop and mirror image."""
    return Augmentation(flip=0.5, crop="resized", area=area, oversample=1)


def random_window(crop: int = 224, resize: int = 256) -> Augmentation:
    """Return the augmentation by short side to `resize`, a random square of `crop` anywhere, and mirror image."""
    return Augmentation(flip=0.5, crop="window", window=crop / resize, oversample=1)


def squeezed_window(crop: int = 224, resize: int = 256) -> Augmentation:
    """Return the augmentation by both sides to `resize`, a random square of `crop` anywhere, and mirror image."""
    return Augmentation(flip=0.5, crop="squeezed", window=crop / resize, oversample=1)


def crops_of_copies(side: int) -> str:
    """Return the departure of training crops that are sampled from decoded copies of the images."""
    return (
        f"Training crops are sampled bilinearly, without antialiasing, from copies of the images squeezed to {side} x "
        f"{side} pixels; Revisiting and its code crop the files, other papers resized files. Test images are resized "
        "with antialiasing."
    )


def by_dataset(dataset: str, cub: Any, cars: Any, sop: Any) -> Any:
    """Return the constant of a data set; the order is that of the papers' tables.

    Args:
        dataset: The data set: "cub", "cars" or "sop".
        cub: The constant of CUB-200-2011.
        cars: The constant of Cars-196.
        sop: The constant of Stanford Online Products.
    """
    return {"cub": cub, "cars": cars, "sop": sop}[dataset]
