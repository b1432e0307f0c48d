"""The study of other recipes: ours, theirs, their losses in our trainer, and our recipe without each ingredient.

Here a recipe of ours begins with principal directions as head and ends with discriminant ones; weights are averaged,
batch norms frozen, and trunk and head have one rate. A plain loop of a library has what `peers.PEERS` says: loss,
miner, optimiser, rates, head and sampler, in our trainer with our crops and schedule. The control arms have the
library's loss and miner, and all else of ours: they should be level with ours. Then the other arms say which of the
ingredients makes the difference between the two, taken from ours or, the discriminant directions, given to the loops
and to the trunk that was not trained.
"""

from __future__ import annotations

import json

from tests.benchmarks.quality.peers import METHOD, PEERS
from training.recipes.common import PHOTO_DATASETS
from training.studies.study import FEATURES, MAP_AT_R, R1, Arm, Claim, Measure, Study

OURS = {"margin": "pml-margin", "ms": "pml-ms", "pa": "pml-pa", "triplet-d": "oml-triplet", "softmax": "timm-softmax"}
"""Each method of ours and the peer with the most similar objective."""

WITH_HEAD = {method: peer for method, peer in OURS.items() if PEERS[peer].head}

RECIPE = ("head_end=lda", "schedule.average=0.95")
"""Ends of our recipes: discriminant directions, and an average over about the last 20 of the few steps of a study."""

ABLATION = {
    "margin, random start": (*RECIPE, "head_start=random"),
    "margin, trained head": (*RECIPE, "head_end=trained"),
    "margin, no average": (*RECIPE, "schedule.average=0"),
    "margin, norms learn": (*RECIPE, "backbone.freeze_norm=none"),
    "pa, shuffled": (*RECIPE, "batch.sampler=spc-r"),
}
"""Our recipes without one ingredient; the rates are in the arm "margin, rates of the peer"."""

LEVEL = 0.005
"""MAP@R within which a control is called level with ours."""


def _recipe(method: str) -> str:
    return f"{method}-$backbone-$dataset"


def criterion(name: str, own_rates: bool) -> tuple[str, ...]:
    """Return the settings that train with a peer's loss and miner.

    Args:
        name: Name in `PEERS`.
        own_rates: Whether optimiser, rates and weight decay are the library's.
    """
    peer = PEERS[name]
    args = json.dumps({"criterion": name, "own_rates": own_rates, "constant": peer.constant})
    rates = (f"optimizer.name={peer.optimizer}", f"optimizer.weight_decay={peer.weight_decay}") if own_rates else ()
    return (
        *("objective.loss=none", "objective.miner=none", f"objective.method={METHOD}", f"objective.method_args={args}"),
        *rates,
    )


def plain_loop(name: str) -> tuple[str, ...]:
    """Return the settings of the library's own recipe."""
    peer = PEERS[name]
    heads = () if peer.head else ("heads=[]",)
    return (
        *criterion(name, own_rates=True),
        *("head_start=random", "head_end=trained", "schedule.average=0", f"batch.sampler={peer.sampler}", *heads),
    )


def _arms() -> tuple[Arm, ...]:
    ours = [Arm(method, _recipe(method), RECIPE) for method in OURS]
    theirs = [Arm(peer, _recipe(method), plain_loop(peer)) for method, peer in OURS.items()]
    controls = [
        Arm(f"{peer} in our trainer", _recipe(method), (*RECIPE, *criterion(peer, own_rates=False)))
        for method, peer in WITH_HEAD.items()
    ]
    ends = [
        Arm(f"{peer}, LDA", _recipe(method), (*plain_loop(peer), "head_end=lda")) for method, peer in WITH_HEAD.items()
    ]
    rates = Arm("margin, rates of the peer", _recipe("margin"), (*RECIPE, *criterion("pml-margin", own_rates=True)))
    less = [Arm(label, _recipe(label.partition(",")[0]), settings) for label, settings in ABLATION.items()]
    trunk = Arm("trunk", _recipe("margin"), ("schedule.epochs=0", "heads=[]", "head_start=random"))
    trunk_lda = Arm("trunk, LDA", _recipe("margin"), ("schedule.epochs=0", "head_end=lda"))
    return (*ours, *theirs, *controls, *ends, rates, *less, trunk, trunk_lda)


def _claims() -> tuple[Claim, ...]:
    """Pairs are compared as the libraries have them, and with our end of the head; rates at the same loss and miner."""
    pairs = [
        Claim(f"our {method} beats the recipe of {peer}", method, peer, measure)
        for measure in (MAP_AT_R, R1)
        for method, peer in OURS.items()
    ]
    pairs += [
        Claim(f"our {method} beats the recipe of {peer} with LDA", method, f"{peer}, LDA", MAP_AT_R)
        for method, peer in WITH_HEAD.items()
    ]
    pairs += [Claim(f"training beats LDA of the trunk: {arm}", arm, "trunk, LDA", MAP_AT_R) for arm in OURS]
    controls = [
        Claim(f"{peer} in our trainer is level with {method}", f"{peer} in our trainer", method, MAP_AT_R, within=LEVEL)
        for method, peer in WITH_HEAD.items()
    ]
    less = [
        Claim(f"{label.partition(',')[0]} is better than: {label}", label.partition(",")[0], label, MAP_AT_R)
        for label in ABLATION
    ]
    control, own_rates = "pml-margin in our trainer", "margin, rates of the peer"
    less.append(Claim(f"{control} is better than: {own_rates}", control, own_rates, MAP_AT_R))
    return (*pairs, *controls, *less)


STUDY = Study(
    "peers/recipes",
    "Beside other recipes",
    "docs/studies/README.md",
    _arms(),
    (MAP_AT_R, R1, Measure("map_at_r", "test", FEATURES)),
    _claims(),
    baseline="margin",
    seeds=5,
    datasets=PHOTO_DATASETS,
    command="python -m tests.benchmarks.quality",
    note="Recipes are compared, not losses: controls have a library's loss and miner in our recipe. Batch norms are "
    "frozen in all arms but one. Heads of all arms are compared, and the trunks' features beside them; nothing is "
    "chosen by test classes.",
)
