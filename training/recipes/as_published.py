"""The code that the authors of the papers published: where it departs from the papers, as settings with reasons.

Read in the newest state of the repositories in `REPOSITORIES`. Losses, miners and methods depart for every recipe of a
paper; backbone, augmentation, optimiser and schedule for the recipes of the papers' data sets, because the small twins
and the recipes of photographs have a protocol of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from training.recipe import Objective, Recipe
from training.recipes.common import (
    DISTANCE,
    DIVA,
    GROUP,
    MIC,
    PAPER_DATASETS,
    REALITY,
    REVISITING,
    SHARING,
    TABLE_2,
    by_dataset,
)

SUFFIX = "-as-published"
"""End of the names of models and studies that are trained as published."""

REPOSITORIES = {
    REVISITING: "github.com/Confusezius/Revisiting_Deep_Metric_Learning_PyTorch",
    MIC: "github.com/Confusezius/ICCV2019_MIC",
    DIVA: "github.com/Confusezius/ECCV2020_DiVA_MultiFeature_DML",
    GROUP: "github.com/dvl-tum/group_loss",
    REALITY: "github.com/KevinMusgrave/powerful-benchmarker, branch metric-learning",
}
"""Paper -> the repository of its authors. Sharing has none; the shared task in DiVA's repository is that of DiVA."""


@dataclass(frozen=True)
class Change:
    """A setting that the published code has and the paper's recipe has not.

    Attributes:
        key: The setting, as `--set` takes it.
        code: The code's value.
        reason: What the code does, and what the paper says of it.
        paper: The paper's value, where the recipe has no setting of that name.
    """

    key: str
    code: Any
    reason: str
    paper: Any = None


@dataclass(frozen=True)
class Unswitched:
    """A departure of the published code that no setting copies, and the reason."""

    subject: str
    reason: str


@dataclass(frozen=True)
class PublishedCode:
    """The departures of the code of a paper's authors for one recipe.

    Attributes:
        paper: The paper.
        repository: The authors' repository; None if they published no code of this paper.
        changes: Settings that differ.
        unswitched: Departures that stay as in the paper's recipe.
    """

    paper: str
    repository: str | None
    changes: tuple[Change, ...] = ()
    unswitched: tuple[Unswitched, ...] = ()


def published_code(recipe: Recipe, dataset: str) -> PublishedCode | None:
    """Return the departures of the published code for a recipe; None for a recipe of another paper than the five.

    Args:
        recipe: The recipe with its settings.
        dataset: The data set of the recipe's name, whose constants apply.
    """
    paper = _paper(recipe)
    if paper is None:
        return None
    if paper not in REPOSITORIES:
        return PublishedCode(paper, None)
    objective, protocol, unswitched = _TABLES[paper]
    changes = list(objective(recipe))
    if dataset in PAPER_DATASETS:
        changes += protocol(recipe, dataset)
    return PublishedCode(paper, REPOSITORIES[paper], tuple(changes), tuple(unswitched(recipe)))


def _paper(recipe: Recipe) -> str | None:
    """Return the paper whose definitions a recipe has; of another method, the paper whose protocol it has."""
    methods = {"sharing": SHARING, "mic": MIC, "diva": DIVA, "group": GROUP}
    if recipe.objective.method in methods:
        return methods[recipe.objective.method]
    if recipe.method.startswith("reality-"):
        return REALITY
    if recipe.method.removeprefix("r-") in TABLE_2 or REVISITING in recipe.sources:
        return REVISITING
    # What these compare with their method, such as Proxy-NCA beside the group loss, is trained by their protocol.
    return next((paper for paper in (GROUP, SHARING) if paper in recipe.sources), None)


NO_CUT = "The code does not leave out negatives beyond a distance of 1.4; its line is commented out or has no effect."
ONE_POSITIVE = "The code makes one triplet per anchor, with a random positive; the recipe one per pair of a class."
COUNTED = (
    "PyTorch 1.2 and later count a triplet of two terms above zero once in the code's divisor, which scales the loss."
)
NORM = "The code penalises the mean length of the embeddings; appendix A.1 follows papers that penalise its square."
CROPS = (
    "The code crops at random by area and proportions and resizes that (RandomResizedCrop); the paper crops a window."
)
STATISTICS = "The code freezes the running statistics alone; factors and offsets learn."

COPIES = Unswitched(
    "training crops",
    "The code crops the files. Here crops are sampled bilinearly from decoded copies of the images, which saves "
    "decoding.",
)
BEST_EPOCH = Unswitched(
    "measured epoch", "The code keeps the best epoch on the test classes. Here test classes select nothing."
)


def _mining(recipe: Recipe, counts: bool) -> Iterator[Change]:
    """Yield the changes of distance-weighted mining; `counts` if batches may have more than two samples per class."""
    objective = recipe.objective
    new: dict[str, Any] = {"farthest": None, **({"one_positive": True} if counts else {})}
    reasons = {"farthest": NO_CUT, "one_positive": ONE_POSITIVE}
    if objective.miner == DISTANCE:
        for key, value in new.items():
            yield Change(f"objective.miner_args.{key}", value, reasons[key])
    elif objective.miner == "rho" and objective.miner_args.get("miner", DISTANCE) == DISTANCE:
        given = dict(objective.miner_args.get("miner_args", {}))
        if "miner" not in objective.miner_args:
            yield Change("objective.miner_args.miner", DISTANCE, "The miner that rho wraps, with the next arguments.")
        text = " ".join(reasons[key] for key in new)
        paper = {"farthest": 1.4, **({"one_positive": False} if counts else {}), **given}
        yield Change("objective.miner_args.miner_args", {**given, **new}, text, paper)


def _margin(objective: Objective) -> Iterator[Change]:
    if objective.loss == "margin":
        yield Change("objective.loss_args.count_tuples", True, COUNTED)


# Revisiting


def _revisiting_objective(recipe: Recipe) -> Iterator[Change]:
    objective = recipe.objective
    loss, args = objective.loss, "objective.loss_args"
    yield from _margin(objective)
    if loss == "triplet":
        yield Change(
            f"{args}.squared", True, "The code compares squared distances; appendix A.1 defines d as Euclidean."
        )
    if loss in ("n-pair", "angular", "lifted"):
        yield Change(f"{args}.squared_norm", False, NORM)
    if loss == "arcface":
        yield Change(f"{args}.clamped", True, "The code sets negative cosines to 0; the paper does not.")
    if loss == "snr-triplet":
        yield Change(f"{args}.active_only", True, "The code divides by the number of terms above zero.")
        if objective.miner == DISTANCE:
            yield Change(f"{args}.nu", 0.0, "The code drops the penalty where the miner is distance-weighted.")
    if loss == "softtriple":
        yield Change(f"{args}.start", "kaiming", "The code's centres start uniform within 1/sqrt(classes x centres).")
    yield from _mining(recipe, recipe.batch.sampler == "spc" and recipe.batch.per_class > 2)


def _revisiting_protocol(recipe: Recipe, dataset: str) -> Iterator[Change]:
    yield Change("backbone.freeze_norm", "statistics", f"{STATISTICS} The paper freezes all of batch norm.")
    if recipe.backbone.name == "gn":
        yield Change(
            "preprocessing.crop", 227, "The code crops 227 pixels for GoogLeNet; the paper has one size for all."
        )
    if recipe.objective.loss == "softtriple":
        yield Change(
            "optimizer.loss_lr", 1e-5, "The code's centres learn at the network's rate; the text lacks the rate."
        )


def _revisiting_unswitched(recipe: Recipe) -> Iterator[Unswitched]:
    loss = recipe.objective.loss
    if loss == "quadruplet":
        yield Unswitched(
            "second negative",
            "In the code it can be of the anchor's class, and the terms are those of all pairs of tuples: errors.",
        )
    if loss == "softtriple":
        yield Unswitched(
            "softmax of the centres",
            "The code takes it over classes, multiplies by gamma and normalises centres along the wrong axis: errors.",
        )
    if loss in ("n-pair", "angular", "lifted"):
        yield Unswitched(
            "search", "The code measures these by the distance of raw embeddings. Here embeddings have unit length."
        )
    if loss == "snr-triplet":
        yield Unswitched("no term above zero", "The code's loss is then not a number: an error. Here it is 0.")
    if recipe.objective.miner == "random":
        yield Unswitched(
            "random triplets", "The code draws as many triplets as samples; here every sample is an anchor once."
        )
    if recipe.batch.sampler == "spc":
        yield Unswitched(
            "sampler",
            "The code draws classes and their images with replacement, so that a batch has fewer classes and an image "
            "can be its own positive; section 3.2 has unique classes.",
        )
    if recipe.batch.sampler in ("greedy-coreset", "ddm", "frd"):
        yield Unswitched(
            "pool of the sampler",
            "The code draws candidates from the pool; its greedy coreset takes indices of another pool, an error.",
        )
    yield from (COPIES, BEST_EPOCH)


# MIC


def _mic_objective(recipe: Recipe) -> Iterator[Change]:
    yield from _margin(recipe.objective)
    args = dict(recipe.objective.method_args)
    if args.get("auxiliary_loss", "margin") == "margin":
        given = dict(args.get("auxiliary_loss_args") or {})
        yield Change("objective.method_args.auxiliary_loss_args", {**given, "count_tuples": True}, COUNTED, given)
    yield Change(
        "objective.method_args.cluster_every", 4, "The code counts three epochs between two clusterings, so it is 4."
    )
    yield from _mining(recipe, True)


def _mic_protocol(recipe: Recipe, dataset: str) -> Iterator[Change]:
    epochs, milestones = by_dataset(dataset, (100, [50]), (110, [60]), (45, [20, 35]))
    drop = "The code lowers the rate by .3 at these epochs; the paper's text in Sharing has no schedule."
    yield Change("schedule.epochs", epochs, "The epochs of the published run of this data set.")
    yield Change("schedule.name", "multi-step", drop)
    yield Change("schedule.milestones", milestones, drop)
    yield Change("schedule.gamma", 0.3, drop)
    yield Change("backbone.freeze_norm", "statistics", STATISTICS)
    yield Change("augmentation.crop", "resized", CROPS)


def _mic_unswitched(recipe: Recipe) -> Iterator[Unswitched]:
    yield Unswitched(
        "groups",
        "The code first groups features of the first stage less the mean of their class, then auxiliary embeddings as "
        "they are. Here features are standardised each time, as in the paper.",
    )
    yield Unswitched("random members", "The code puts a random image in a group with probability .2; no setting does.")
    yield Unswitched(
        "steps on groups", "The code draws their number; here an epoch has the expected number, so that runs are equal."
    )
    yield from (COPIES, BEST_EPOCH)


# DiVA

_DIVA_CODE = {
    "r50": {"cub": (1500.0, 0.3, 55, 0.2), "cars": (100.0, 0.15, 70, 0.2), "sop": (150.0, 0.2, 70, 0.3)},
    "ibn": {"cub": (300.0, 0.1, 70, 0.3), "cars": (100.0, 0.15, 160, 0.3), "sop": (150.0, 0.1, 80, 0.3)},
}
"""By backbone and data set: rho, alpha, the epoch of the drop of the learning rate, and its factor."""

_DIVA_AUXILIARY: dict[str, tuple[dict[str, Any], str]] = {
    "shared": (
        {"permuted_labels": True},
        "Shared: the code mines by distance as if labels were permuted; the paper demands three classes.",
    ),
    "intra": (
        {"by_distance": False},
        "Intra: the code draws evenly; the paper draws shared triplets by distance, and these by a similar intuition.",
    ),
    "dance": (
        {"published": True},
        "DaNCE: the code adds the positive to the sum and normalises the weights over the batch.",
    ),
    "nce": ({"with_positive": True}, "NCE: the code adds the positive to the sum; equation 5 sums over negatives."),
    "deepcluster": ({"every": 2}, "DeepCluster: the code clusters every second epoch; the paper does not say."),
}
"""By auxiliary task: the code's arguments, and the reason."""
_UNWEIGHTED = {"deepcluster", "rotation", "instance"}
"""Tasks that have the weight 1 in the code."""
_UNDECORRELATED = {"deepcluster", "rotation"}
"""Tasks beside which the code decorrelates nothing."""


def _diva_objective(recipe: Recipe) -> Iterator[Change]:
    objective, heads = recipe.objective, _head_names(recipe)
    yield from _margin(objective)
    yield from _mining(recipe, True)
    given = {name: dict(args) for name, args in (objective.method_args.get("auxiliary") or {}).items()}
    changed = [name for name in _DIVA_AUXILIARY if name in heads]
    if changed:
        new = {**given, **{name: {**given.get(name, {}), **_DIVA_AUXILIARY[name][0]} for name in changed}}
        reason = " ".join(_DIVA_AUXILIARY[name][1] for name in changed)
        yield Change("objective.method_args.auxiliary", new, reason, given)
    if heads & _UNWEIGHTED:
        yield Change(
            "objective.method_args.alpha", 1.0, "The code gives this task the weight 1; the paper does not say."
        )
    if heads & _UNDECORRELATED:
        reason = "The code decorrelates nothing beside this task; the paper does not say."
        yield Change("objective.method_args.rho", 0.0, reason)
    elif objective.method_args.get("rho", 1.0):
        yield Change(
            "objective.method_args.adversary_weight_decay",
            0.0,
            "The code's regressors have no weight decay; those of MIC do.",
        )


def _head_names(recipe: Recipe) -> set[str]:
    return {head.name for head in recipe.heads}


def _diva_protocol(recipe: Recipe, dataset: str) -> Iterator[Change]:
    short, heads = recipe.backbone.name, _head_names(recipe)
    constants = "The value of the published run; table 1 of the paper has another."
    if short in _DIVA_CODE:
        rho, alpha, milestone, gamma = _DIVA_CODE[short][dataset]
        if recipe.objective.method_args.get("rho") and not heads & _UNDECORRELATED:
            yield Change("objective.method_args.rho", rho, constants)
        if len(heads) > 1 and not heads & _UNWEIGHTED:
            yield Change("objective.method_args.alpha", alpha, constants)
        if recipe.schedule.name == "multi-step":
            yield Change("schedule.milestones", [milestone], constants)
            yield Change("schedule.gamma", gamma, constants)
    if "deepcluster" in heads:  # its published run has the paper's 200 epochs
        yield Change("batch.size", 104, "The batch of the published run of this task.")
    else:
        yield Change("schedule.epochs", by_dataset(dataset, 350, 350, 150), "The epochs of the published runs.")
    yield Change("optimizer.weight_decay", 4e-4, "The code's default, which its runs keep; section 4 says 5e-4.")
    yield Change("augmentation.crop", "resized", CROPS)
    if short == "ibn":
        yield Change("preprocessing.crop", 227, "The code crops 227 pixels for Inception; section 4: as for ResNet-50.")
    if short == "r50":
        yield Change("backbone.freeze_norm", "statistics", f"{STATISTICS} The paper does not say.")


def _diva_unswitched(recipe: Recipe) -> Iterator[Unswitched]:
    heads = _head_names(recipe)
    yield Unswitched(
        "samples per class",
        "The published runs have two, and the code draws intra-class triplets with repetition, so that a sample is its "
        "own positive or negative: an error. Here four, and three different ones in a triplet.",
    )
    if len(heads) > 1:
        yield Unswitched(
            "weights of the heads",
            "The code measures several on the test classes. Equal ones, as in the concatenation of section 3.2 and "
            "here, are among them for three tasks, and for four on SOP; for four on CUB and CARS the first head has "
            ".75, .5 or .5 and each other 1.25, 1 or 1.5.",
        )
    if heads & {"dance", "nce"} and recipe.backbone.freeze_norm == "none":
        yield Unswitched(
            "slow network", "In the code its statistics of batch norm remain those of the start; here they follow."
        )
    if "dance" in heads:
        yield Unswitched(
            "--diva_fixed",
            "The authors call the divisors of the weights of DaNCE a slight error. Under this flag the largest of an "
            "anchor is 1, then they are divided by their sum. The published runs lack it; the paper's recipe here has "
            "the first step alone.",
        )
    if recipe.objective.method_args.get("rho", 1.0):
        yield from _diva_pairs(heads)
    yield from _diva_compared(heads)
    if recipe.schedule.name == "constant" and "deepcluster" not in heads:
        yield Unswitched(
            "rate",
            "The published runs are of the final method, whose rate falls, and one of DeepCluster with a constant "
            "rate; other ablations are not among them.",
        )
    yield from (COPIES, BEST_EPOCH)


def _diva_pairs(heads: set[str]) -> Iterator[Unswitched]:
    """Yield the decorrelated pairs, where the code has others than equation 8."""
    if heads == {"discriminative", "shared", "dance"}:
        text = "With these tasks the code also decorrelates shared and DaNCE; here the pairs are those of equation 8."
        yield Unswitched("decorrelated pairs", text)
    elif len(heads) > 1 and not heads & _UNDECORRELATED and heads != {"discriminative", "shared", "intra", "dance"}:
        text = "The code's default for these tasks is none, and no such run is published; here the paper's."
        yield Unswitched("decorrelated pairs", text)


def _diva_compared(heads: set[str]) -> Iterator[Unswitched]:
    """Yield what the code does otherwise in the tasks that the paper compares with DaNCE."""
    if heads & _UNDECORRELATED:
        yield Unswitched(
            "classifier",
            "In the code it reads the features of the trunk, has no bias and ten times the rate, and the head does not "
            "learn. Here it reads the head.",
        )
    if "deepcluster" in heads:
        yield Unswitched("clusters", "The code clusters principal components of the features; here the features.")
        yield Unswitched("rho", "The published run gives 500, which the code does not use beside this task.")
    if "rotation" in heads:
        yield Unswitched("turned images", "The code classifies the images that were not turned: an error.")
    if "instance" in heads:
        yield Unswitched(
            "loss",
            "The code has another, invariantspread, which contrasts two views of half a batch at a temperature of .1; "
            "the paper cites the bank of Wu et al. 2018.",
        )


# Group


def _has_group_loss(recipe: Recipe) -> bool:
    """Return whether a recipe trains the group loss; others have its protocol alone."""
    return recipe.objective.method == "group"


def _group_objective(recipe: Recipe) -> Iterator[Change]:
    if not _has_group_loss(recipe):
        return
    reason = (
        "The code refines once, keeps the diagonal of W, averages over all samples and adds the plain cross entropy "
        "(eq. 1: w_ii = 0; section 3.4: one cross entropy)."
    )
    yield Change("objective.loss_args.published", True, reason)


def _group_protocol(recipe: Recipe, dataset: str) -> Iterator[Change]:
    found = "The value of the published run, which a random search found; section 4.1 and appendix B round it."
    lr = by_dataset(dataset, 0.0001563663718906821, 2e-4, 0.0006077651100709081)
    decay = by_dataset(dataset, 6.059722614369727e-06, 4.863656728256105e-07, 5.2724883734490575e-12)
    if recipe.backbone.name == "ibn":
        yield Change("heads", [], "The code's embedding is the 1,024 pooled features; table 3's counts imply 512.")
        if _has_group_loss(recipe):
            reason = "The code's classifier has a bias; table 3's counts have none."
            yield Change("objective.loss_args.bias", True, reason)
    yield Change("optimizer.name", "radam", "The code has RAdam; section 4.1 says Adam.")
    yield Change("optimizer.lr", lr, found)
    yield Change("optimizer.loss_lr", lr, found)
    yield Change("optimizer.weight_decay", decay, found)
    if recipe.optimizer.weight_decay:  # an arm without weight decay has none anywhere
        yield Change("optimizer.loss_weight_decay", decay, "The code's weight decay includes the classifier.")
    yield Change("schedule.epochs", 80, "10 epochs of pre-training and 70 with the loss; section 4.1 has 60.")
    yield Change("augmentation.crop", "resized", CROPS)
    yield Change(
        "preprocessing.squeeze", False, "The code resizes the short side of test images; section 4.1: 256 x 256."
    )


def _group_unswitched(recipe: Recipe) -> Iterator[Unswitched]:
    if _has_group_loss(recipe):
        yield Unswitched(
            "pre-training", "In the code it has batches of 32 random images at a rate of 3e-4; here those of the loss."
        )
    yield Unswitched(
        "batches", "The code pads classes to the largest, and a batch may have a class twice; here it may not."
    )
    yield Unswitched(
        "weights after epochs 30 and 50",
        "The code returns to the best epoch on the test classes. Here test classes select nothing.",
    )
    yield from (COPIES, BEST_EPOCH)


# Reality


def _reality_objective(recipe: Recipe) -> Iterator[Change]:
    yield from ()


def _reality_protocol(recipe: Recipe, dataset: str) -> Iterator[Change]:
    yield Change(
        "augmentation.area", [0.16, 1.0], "The code's crops begin at an area of .16; section 3.1: sides from 40 to 256."
    )
    if recipe.objective.loss in ("norm-softmax", "cosface", "arcface", "proxy-nca", "softtriple"):
        yield Change(
            "optimizer.loss_weight_decay", 1e-4, "The code's class vectors have weight decay; the paper is silent."
        )


def _reality_unswitched(recipe: Recipe) -> Iterator[Unswitched]:
    yield Unswitched(
        "held-out classes",
        "The code trains four models, each without another quarter of the ordered classes: zoo benchmark search.",
    )
    yield COPIES


_TABLES = {
    REVISITING: (_revisiting_objective, _revisiting_protocol, _revisiting_unswitched),
    MIC: (_mic_objective, _mic_protocol, _mic_unswitched),
    DIVA: (_diva_objective, _diva_protocol, _diva_unswitched),
    GROUP: (_group_objective, _group_protocol, _group_unswitched),
    REALITY: (_reality_objective, _reality_protocol, _reality_unswitched),
}
"""By paper: the changes of losses, miners and methods, those of the protocol, and what no setting copies."""
