"""Construction by name: losses, miners, samplers and methods are found in explicit tables of classes."""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from zoo.errors import RecipeError, nearest, unknown

_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ClassTable(UserDict[str, Any]):
    """Table of classes by name, whose modules are imported when their class is needed: names can be read before torch.

    Args:
        package: The package of the modules.
        classes: Name -> "module:Class", or the class itself.
        constants: Name -> arguments that recipes have unless they name others; by default those of the class.
        others: Classes without a name in recipes, as "module:Class".
    """

    def __init__(
        self,
        package: str,
        classes: Mapping[str, Any],
        constants: Mapping[str, Mapping[str, Any]] | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self.package, self.constants, self.others = package, constants or {}, others
        super().__init__(classes)

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if not isinstance(value, str):
            return value
        return self._imported(value)

    def class_named(self, name: str) -> Any:
        """Return the class of its own name: the `__getattr__` of the package, so that it has its classes."""
        for value in (*self.data.values(), *self.others):
            if isinstance(value, str) and value.partition(":")[2] == name:
                return self._imported(value)
        raise AttributeError(f"module {self.package!r} has no attribute {name!r}")

    def _imported(self, value: str) -> Any:
        module, _, attribute = value.partition(":")
        return getattr(import_module(f"{self.package}.{module}"), attribute)


def construct(
    table: Mapping[str, Any], kind: str, name: str, args: Mapping[str, Any], offered: Mapping[str, Any] | None = None
) -> Any:
    """Construct the class of a name.

    Args:
        table: Name -> class.
        kind: What the table holds, for messages: "loss", "miner", ...
        name: The name.
        args: The arguments that the recipe gives.
        offered: Arguments of the run, of which the constructor gets those that it takes.

    Returns:
        The object.

    Raises:
        RecipeError: If the name is unknown or the arguments do not fit.
    """
    check_arguments(table, kind, name, args)
    taken = inspect.signature(table[name]).parameters
    args = {**_constants(table, name), **args}
    given = {key: value for key, value in (offered or {}).items() if key in taken and key not in args}
    needed = [key for key, value in taken.items() if value.default is value.empty and value.kind not in _ANY]
    if missing := [key for key in needed if key not in {**given, **args}]:
        raise RecipeError(f"{kind} {name!r} needs the arguments {', '.join(missing)}.", code="missing-value")
    try:
        return table[name](**given, **args)
    except (TypeError, ValueError) as error:  # a value that the class cannot use
        raise RecipeError(f"{kind} {name!r} does not take these arguments: {error}.", code="invalid-value") from None


def _constants(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the arguments that recipes have unless they name others."""
    return table.constants.get(name, {}) if isinstance(table, ClassTable) else {}


def check_name(table: Mapping[str, Any], kind: str, name: str) -> None:
    """Raise `RecipeError` (`unknown-name`) for a name that the table lacks; the message names the nearest."""
    if name not in table:
        raise unknown(kind, name, sorted(table), error=RecipeError)


def check_arguments(table: Mapping[str, Any], kind: str, name: str, args: Mapping[str, Any]) -> None:
    """Check a name and its arguments without constructing anything.

    Args:
        table: The constructors by name.
        kind: The word for such an object, for messages and codes.
        name: The name to look up.
        args: The arguments for its constructor.

    Raises:
        RecipeError: If the table lacks the name, or the constructor an argument; the message names the nearest.
    """
    check_name(table, kind, name)
    taken = inspect.signature(table[name]).parameters
    for key in args:
        if key not in taken:
            raise RecipeError(
                f"{kind} {name!r} does not take these arguments: there is no {key!r}.{nearest(key, taken)} "
                f"It takes: {', '.join(taken) or 'none'}.",
                code="unknown-name",
            )


def with_defaults(table: Mapping[str, Any], name: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments together with those that recipes have by default; without a name unchanged."""
    if name is None:
        return dict(args)
    taken = inspect.signature(table[name]).parameters
    defaults = {key: value.default for key, value in taken.items() if value.default is not value.empty}
    return {**defaults, **_constants(table, name), **args}
