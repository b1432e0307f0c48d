"""Losses, miners, samplers and methods are found by name in explicit tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from zoo.errors import RecipeError, nearest

_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def construct(
    table: dict[str, Any], kind: str, name: str, args: Mapping[str, Any], offered: Mapping[str, Any] | None = None
) -> Any:
    """What the table has under that name, made with `args` and with those of `offered` that it takes.

    Raises `RecipeError` for an unknown name, naming the nearest, and for arguments that do not fit.
    """
    check_arguments(table, kind, name, args)
    taken = inspect.signature(table[name]).parameters
    given = {key: value for key, value in (offered or {}).items() if key in taken}
    needed = [key for key, one in taken.items() if one.default is one.empty and one.kind not in _ANY]
    if missing := [key for key in needed if key not in {**given, **args}]:
        raise RecipeError(f"{kind} {name!r} needs what is not given: {', '.join(missing)}.")
    try:
        return table[name](**given, **args)
    except (TypeError, ValueError) as error:  # a name that it does not know, or a value that it cannot use
        raise RecipeError(f"{kind} {name!r} does not take these arguments: {error}.") from None


def check_arguments(table: Mapping[str, Any], kind: str, name: str, args: Mapping[str, Any]) -> None:
    """Raise `RecipeError` for a name that the table lacks, and for arguments that its maker does not know."""
    if name not in table:
        raise RecipeError(f"there is no {kind} {name!r}.{nearest(name, table)} Known: {', '.join(sorted(table))}.")
    taken = inspect.signature(table[name]).parameters
    for key in args:
        if key not in taken:
            raise RecipeError(
                f"{kind} {name!r} does not take these arguments: there is no {key!r}.{nearest(key, taken)} "
                f"It takes: {', '.join(taken) or 'none'}.",
                code="unknown-argument",
            )


def with_defaults(table: Mapping[str, Any], name: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, and what the maker of that name takes for those that are not given; without a name as they are."""
    if name is None:
        return dict(args)
    taken = inspect.signature(table[name]).parameters
    return {**{key: one.default for key, one in taken.items() if one.default is not one.empty}, **args}
