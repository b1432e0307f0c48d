"""Objects of pytorch-metric-learning in our losses and miners: distances, reducers, regularizers, starts of weights.

Nothing is imported from that library: an object only needs its calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from zoo.errors import UsageError, nearest


class Parts(TypedDict, total=False):
    """Arguments that every loss takes; see `MetricLoss`."""

    distance: Callable[..., Tensor] | None
    reducer: Callable[..., Any] | None
    embedding_regularizer: Callable[[Tensor], Tensor] | None
    embedding_reg_weight: float


class ClassParts(Parts, total=False):
    """Arguments that losses with class vectors take besides; see `training.losses.proxies`."""

    weight_regularizer: Callable[[Tensor], Tensor] | None
    weight_reg_weight: float
    weight_init_func: Callable[[Tensor], Any] | None


class MinerParts(TypedDict, total=False):
    """Arguments that miners take; see `BaseMiner`."""

    distance: Callable[..., Tensor] | None


class Terms(NamedTuple):
    """Terms of a loss before their mean.

    Attributes:
        values: [t].
        indices: Samples of the terms: int64 [t], or a tuple of these; None of one number.
        kind: "element", "pos_pair", "neg_pair", "triplet" or "already_reduced".
        divisor: By which the loss itself divides their sum; None: by their number.
    """

    values: Tensor
    indices: Tensor | tuple[Tensor, ...] | None
    kind: str
    divisor: Tensor | int | None = None


ADVICE = {
    "collect_stats": "statistics of a run are in its log (zoo doctor)",
    "triplets_per_anchor": "choose triplets by a miner, as miners.RandomMiner()",
}
"""What to use in the place of arguments of that library that ours do not take."""

ALL_TERMS = ("MultipleReducers", "DoNothingReducer")
"""Reducers that get all terms of a loss in one call."""


def check_parts(owner: type, parts: Mapping[str, Any], kind: Any = Parts) -> None:
    """Raise `UsageError` (`unknown-name`) for an argument that no constructor of ours takes, or `invalid-value`."""
    for name, value in parts.items():
        if name not in kind.__annotations__:
            taken = {*inspect.signature(owner).parameters, *kind.__annotations__} - {"parts"}
            advice = f" Instead, {ADVICE[name]}." if name in ADVICE else nearest(name, sorted(taken))
            raise UsageError(f"{owner.__name__} does not take {name!r}.{advice}", code="unknown-name")
        if not (value is None or callable(value) or name.endswith("_weight")):
            raise UsageError(f"{name} must be an object that can be called, not {value!r}.", code="invalid-value")


def own_or_none(owner: Any, distance: Any) -> Any:
    """Return the distance, or None if it is the one that the loss or miner computes anyway.

    Raises:
        UsageError: `option-without-effect`, if the owner is defined on another distance alone.
    """
    if distance is None or owner.takes_distance:
        return distance
    name = type(distance).__name__.replace("DotProduct", "Cosine")  # of unit rows
    named = f"{name}(power={getattr(distance, 'power', 1)})"
    plain = getattr(distance, "normalize_embeddings", True) and getattr(distance, "p", 2) == 2
    if plain and named == owner.own_distance:
        return None
    raise UsageError(
        f"{type(owner).__name__} is defined on {owner.own_distance.replace('(power=1)', '()') or 'its own distance'}; "
        "leave distance out.",
        code="option-without-effect",
    )


def reduced(reducer: Callable[..., Any], terms: Mapping[str, Terms], rows: Tensor, labels: Tensor) -> Any:
    """Return what a reducer makes of the terms, by their names; separate ones of a loss are reduced separately."""
    entries = {name: _entry(part) for name, part in terms.items()}
    if any(kind.__name__ in ALL_TERMS for kind in type(reducer).__mro__):
        return reducer(entries, rows, labels)
    values = [reducer({name: entry}, rows, labels) for name, entry in entries.items()]
    return torch.stack([torch.as_tensor(value, device=rows.device) for value in values]).sum()


def _entry(terms: Terms) -> dict[str, Any]:
    """Return terms as that library's reducers take them; a mean of none is 0 there."""
    if not terms.values.numel():
        return {"losses": 0, "indices": None, "reduction_type": "already_reduced"}
    divisor = max(1, len(terms.values)) if terms.values.ndim and terms.divisor is None else terms.divisor
    return {"losses": terms.values, "indices": terms.indices, "reduction_type": terms.kind, "divisor": divisor}


def sum_of_quotients(terms: Mapping[str, Terms]) -> Tensor:
    """Return the sum, over the names, of the terms over their divisor; 0 for a divisor of 0, NaN of NaN."""
    divisors = [torch.as_tensor(1 if part.divisor is None else part.divisor) for part in terms.values()]
    sums = [part.values.sum() for part in terms.values()]
    quotients = [total / divisor.clamp(min=1) * (divisor > 0) for total, divisor in zip(sums, divisors, strict=True)]
    return torch.stack(quotients).sum()


def sample_weights(indices: tuple[Tensor, ...], samples: int, anchors: bool = False) -> Tensor | None:
    """Return the weight [b] of each sample: how often it is in mined tuples, over the largest count; None without any.

    Args:
        indices: Mined tuples: (anchors, positives, negatives), or (anchors, positives, anchors, negatives).
        samples: b.
        anchors: Count how often a sample is an anchor, alone.
    """
    counted = list(indices[:1] if len(indices) == 3 else indices[::2]) if anchors else list(indices)
    counts = torch.cat(counted).bincount(minlength=samples)
    return counts / counts.max() if len(counts) and counts.max() else None
