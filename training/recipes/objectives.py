"""The plain objectives of Revisiting's table 2 and later standards, by the short names that model names begin with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from training.recipe import Objective

DISTANCE = "distance-weighted"


@dataclass(frozen=True)
class Row:
    """An objective; loss_lr: the rate of what its loss learns; proxies: it learns a vector or more for each class."""

    objective: Objective
    loss_lr: float = 5e-4
    proxies: bool = False


def _row(loss: str, miner: str | None = None, lr: float = 5e-4, proxies: bool = False, **args: Any) -> Row:
    return Row(Objective(loss, miner, args), lr, proxies)


TABLE_2 = {
    "angular": _row("angular"),
    "arcface": _row("arcface", proxies=True),
    "contrastive": _row("contrastive", DISTANCE),
    "lifted": _row("lifted"),
    "histogram": _row("histogram"),
    "margin06": _row("margin", DISTANCE, beta=0.6, margin=0.2),
    "margin": _row("margin", DISTANCE, beta=1.2, margin=0.2),
    "ms": _row("multi-similarity", "multi-similarity", kept_only=True),
    "npair": _row("n-pair"),
    "proxynca": _row("proxy-nca", proxies=True),
    "quadruplet": _row("quadruplet", DISTANCE),
    "snr": _row("snr-triplet", DISTANCE),
    "softtriple": _row("softtriple", proxies=True),
    "softmax": _row("norm-softmax", lr=1e-5, proxies=True),
    "triplet-r": _row("triplet", "random"),
    "triplet-s": _row("triplet", "semihard"),
    "triplet-h": _row("triplet", "softhard"),
    "triplet-d": _row("triplet", DISTANCE),
}
"""Revisiting, table 2, above the line. Triplet (H) is its softhard mining. Multi-similarity's mean is over the anchors
that keep pairs, as in the code that made the table; the paper does not say."""

LATER = {
    "circle": _row("circle"),
    "cosface": _row("cosface", proxies=True),
    "fastap": _row("fastap"),
    "ntxent": _row("nt-xent"),
    "pa": _row("proxy-anchor", proxies=True),
    "recall": _row("recall-at-k"),
    "snr-contrastive": _row("snr-contrastive"),
    "supcon": _row("supcon"),
}
"""Losses that users expect beside those of Revisiting."""

VOID = ("contrastive", "triplet-d", "snr")
"""In these losses a triplet (a, p, p), as the paper has it, is a constant (contrastive: below the negative margin), so
that only the published (a, a, p) regularises."""


def regularised(name: str, probability: float) -> Row:
    """A row of table 2 with rho: negatives exchanged for positives with this probability (section 5.1)."""
    row = TABLE_2[name]
    args: dict[str, Any] = {"probability": probability, "miner": row.objective.miner}
    if name in VOID:
        args["published"] = True
    return replace(row, objective=replace(row.objective, miner="rho", miner_args=args))
