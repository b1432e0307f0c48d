"""Construction by name: losses, miners, samplers and methods are found in explicit tables of classes.

Besides the names of a table, each class has the name "module:Class", by which recipes use losses, miners and samplers
of the user or of another library.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from training.given import GIVEN_OBJECT, constants_of, is_plain
from zoo.errors import RecipeError, UsageError, nearest, unknown
from zoo.models.places import import_class, is_place, place_of

_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

ARGUMENTS = {"backbone.architecture": "backbone.args", "batch.sampler": "batch.args"}
"""Settings of parts whose arguments have another name than the part with `_args`."""

_OBJECTS: dict[str, Any] = {}
"""Objects that the running call of `zoo.train` was given, by the names of their classes in its recipe."""


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

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and is_place(name))

    def __getitem__(self, name: str) -> Any:
        if is_place(name):
            return class_at(name)
        value = super().__getitem__(name)
        if not isinstance(value, str):
            return value
        return self._imported(value)

    @property
    def class_names(self) -> list[str]:
        """Return the own names of the classes, in alphabetical order."""
        values = (*self.data.values(), *self.others)
        return sorted({value.partition(":")[2] for value in values if isinstance(value, str)})

    @property
    def spellings(self) -> dict[str, str]:
        """Return each name with that of its class, as `ms` with "MultiSimilarity"."""
        classes = {name: value.partition(":")[2] for name, value in self.data.items() if isinstance(value, str)}
        return {name: re.sub("(?:Loss|Miner)$", "", own) for name, own in classes.items()}

    def class_named(self, name: str) -> Any:
        """Return the class of its own name: the `__getattr__` of the package, so that it has its classes."""
        for value in (*self.data.values(), *self.others):
            if isinstance(value, str) and value.partition(":")[2] == name:
                return self._imported(value)
        raise AttributeError(f"module {self.package!r} has no attribute {name!r}")

    def _imported(self, value: str) -> Any:
        module, _, attribute = value.partition(":")
        return getattr(import_module(f"{self.package}.{module}"), attribute)


def class_at(place: str) -> Any:
    """Return the class at "module:Class", or that of the object that the running call was given under this name.

    Raises:
        RecipeError: `unknown-name`, if it cannot be imported.
    """
    return _class_of(_OBJECTS[place]) if place in _OBJECTS else import_class(place)


def given_object(place: str) -> Any:
    """Return the object that the running call was given for a class of this name; None for a class or without one."""
    part = _OBJECTS.get(place)
    return None if isinstance(part, type) or inspect.isroutine(part) else part


def _class_of(part: Any) -> Any:
    return part if isinstance(part, type) or inspect.isroutine(part) else type(part)


@contextmanager
def parts_of_the_user(
    parts: Mapping[str, Any], describe: Mapping[str, Callable[[Any], Description]] | None = None
) -> Iterator[list[str]]:
    """Yield the settings of a recipe that select a user's parts; meanwhile objects are constructed as their copies.

    Args:
        parts: Setting, such as "objective.loss" -> an object, a class, a name, or None, which selects nothing.
        describe: Setting -> what describes its objects and classes, if they are not described by their constants.

    Raises:
        UsageError: `invalid-value` for another kind of part.
    """
    settings: list[str] = []
    objects: dict[str, Any] = {}
    for setting, part in parts.items():
        if part is None:
            continue
        if isinstance(part, str):
            settings.append(f"{setting}={part}")
            continue
        if not callable(part):
            raise UsageError(f"{setting} is an object, a class or a name, not {part!r}.", code="invalid-value")
        if inspect.isroutine(part) and setting not in (describe or {}):
            raise UsageError(
                f"{setting} is the function {part.__name__}, which a recipe could not construct. Give a class, as an "
                "nn.Module whose forward does the same, or an object of it.",
                code="invalid-value",
            )
        description = (describe or {}).get(setting, _described)(part)
        objects[description.name] = part
        settings.append(f"{setting}={description.name}")
        if description.args is not None:
            args = json.dumps(description.args)
            settings.append(f"{ARGUMENTS.get(setting, f'{setting}_args')}={args}")
    _OBJECTS.update(objects)
    try:
        yield settings
    finally:
        for place in objects:
            del _OBJECTS[place]


class Description(NamedTuple):
    """An object or a class in a recipe: its name, and the arguments of an object's constructor."""

    name: str
    args: Mapping[str, Any] | None


def _described(part: Any) -> Description:
    return Description(place_of(_class_of(part)), None if isinstance(part, type) else constants_of(part))


def check_constructible(descriptions: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `UsageError` (`not-available`) for a part that only the object itself is, if the call was not given it.

    Args:
        descriptions: The name of a loss or miner -> its arguments in a recipe.
    """
    for name, args in descriptions.items():
        if GIVEN_OBJECT in args and given_object(name) is None:
            raise not_constructible(name, args[GIVEN_OBJECT])


def not_constructible(name: str, attributes: Mapping[str, str]) -> UsageError:
    """Return the error of an object that its class and constants do not construct."""
    shown = ", ".join(f"{key}={value}" for key, value in attributes.items())
    kind = name.rpartition(":")[2]
    return UsageError(
        f"the {kind} with {shown or 'no attributes'} cannot be constructed again: {kind} with the arguments that it "
        "keeps as attributes of the same names gives another object. Keep every argument of the constructor under its "
        f"name, unchanged; or name the class {name} with its arguments, as in objective.loss_args. zoo.train takes the "
        "object itself.",
        code="not-available",
    )


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
    if (part := given_object(name)) is not None:
        return copy.deepcopy(part)
    check_constructible({name: args})
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
    parameters = inspect.signature(table[name]).parameters
    taken = [key for key, value in parameters.items() if value.kind not in _ANY]
    takes_any = is_place(name) and any(value.kind is value.VAR_KEYWORD for value in parameters.values())
    for key in args:
        if key not in (*taken, GIVEN_OBJECT) and not takes_any:
            raise RecipeError(
                f"{kind} {name!r} does not take these arguments: there is no {key!r}.{nearest(key, taken)} "
                f"It takes: {', '.join(taken) or 'none'}.",
                code="unknown-name",
            )


def with_defaults(table: Mapping[str, Any], name: str | None, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments together with those that recipes have by default; without a name unchanged."""
    if name is None or GIVEN_OBJECT in args:
        return dict(args)
    taken = inspect.signature(table[name]).parameters
    defaults = {key: value.default for key, value in taken.items() if value.default is not value.empty}
    if is_place(name):
        defaults = {key: value for key, value in defaults.items() if is_plain(value)}
    return {**defaults, **_constants(table, name), **args}
