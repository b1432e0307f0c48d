"""What is said where a student's embeddings cannot be compared with its teacher's; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.errors import RecipeError
from zoo.models.card import Card


def check_same_dim(transfer: str, dim: int, teacher: Card, others: Iterable[str]) -> None:
    """Raise `RecipeError` for unlike dimensions, of a transfer that needs the same. others: those that do not."""
    if dim != teacher.dim:
        raise RecipeError(
            f"the transfer {transfer!r} compares embeddings number by number: the student has {dim} dimensions, the "
            f"teacher {teacher.name} {teacher.dim}. Give the student as many, or take {' or '.join(others)}."
        )
