"""What methods ask of a recipe: heads of certain names, losses of certain tuples."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any, get_args, get_type_hints

from torch import nn

from training.miners.rho import Rho
from zoo.errors import RecipeError


def require_heads(heads: nn.ModuleDict, names: Iterable[str], whose: str) -> None:
    """Raise `RecipeError` unless the heads have these names, in any order; whose: "the method 'mic'"."""
    expected = sorted(names)
    if sorted(heads) != expected:
        raise RecipeError(f"{whose} trains heads named {_listed(expected)}, not {_listed(heads)}; set heads to these.")


def takes(loss: nn.Module, tuples: type) -> bool:
    """Whether the loss takes mined tuples of this kind; the annotation of its argument `tuples` says so."""
    return tuples in kinds_taken(type(loss))


def kinds_taken(loss: type[nn.Module]) -> list[type]:
    """The kinds of tuples that losses of this class take. Raises `RecipeError` where the class does not say."""
    hints = get_type_hints(loss.forward)
    if "tuples" not in hints:
        raise RecipeError(
            f"{loss.__name__}.forward does not say which mined tuples it takes: annotate its argument, as in "
            "tuples: Triplets | None = None (training.tuples), or tuples: None = None where it takes none."
        )
    return [kind for kind in get_args(hints["tuples"]) if kind is not NoneType]


def gives(miner: Any) -> type:
    """The kind of tuples that a miner finds; the annotation of what it returns says so. Rho's is its own miner's."""
    if isinstance(miner, Rho):
        return gives(miner.miner)
    kind: type = get_type_hints(type(miner).__call__)["return"]
    return kind


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
