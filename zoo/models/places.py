"""Places of classes, as "mypkg.losses:MyLoss": how recipes and cards name classes of the user or of another library."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from zoo import paths
from zoo.errors import ModelFolderError, RecipeError

CUSTOM = "custom"
"""The architecture of `zoo.models.backbones.custom`, in whose arguments a card names the classes."""


def is_place(name: str) -> bool:
    """Return whether a name says where a class is."""
    return ":" in name


def place_of(kind: Any) -> str:
    """Return the place of a class or a function."""
    return f"{kind.__module__}:{kind.__qualname__}"


def import_class(place: str) -> Any:
    """Return the class at "module:Class"; modules of the current folder are found, too.

    Raises:
        RecipeError: `unknown-name`, if it cannot be imported.
    """
    module, _, attribute = place.partition(":")
    here = str(Path.cwd())
    is_new = here not in sys.path
    sys.path += [here] if is_new else []
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"{place} cannot be imported: {error}. Expected MODULE:CLASS, as mypkg.losses:MyLoss, of an installed "
            "package or of the current folder.",
            code="unknown-name",
        ) from None
    finally:
        if is_new and here in sys.path:
            sys.path.remove(here)


def is_trusted(folder: Path) -> bool:
    """Return whether the classes that files of a folder name may be imported: those of the local zoo."""
    own = {(paths.home() / part).resolve() for part in ("models", "studies")}
    return not own.isdisjoint(folder.resolve().parents)


def places_in(value: Any) -> Iterator[str]:
    """Yield the places in a JSON value, at every depth."""
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from places_in(part)
    elif isinstance(value, str) and is_place(value):
        yield value


def check_trusted(places: Iterable[str], folder: Path, trust_code: bool = False) -> None:
    """Refuse classes that a recipe or a study in a folder names, unless the folder is trusted.

    Args:
        places: The places of the classes.
        folder: The folder.
        trust_code: Whether the user trusts the folder.

    Raises:
        RecipeError: `unsafe-file`.
    """
    classes = sorted(set(places))
    if classes and not (trust_code or is_trusted(folder)):
        raise RecipeError(
            f"{folder} names classes of its author ({', '.join(classes)}), which would run their code. If you trust "
            "it, install the package and add --trust-code.",
            code="unsafe-file",
        )


def check_network(architecture_args: Mapping[str, Any], folder: Path) -> None:
    """Refuse a network of classes of a stranger, before a model is made from it.

    Raises:
        ModelFolderError: `unsafe-file`.
    """
    if (named := list(places_in(architecture_args))) and not is_trusted(folder):
        raise untrusted(named)


def untrusted(named: Iterable[str]) -> ModelFolderError:
    """Return the error of a model whose classes, by their places, may not be imported."""
    classes = ", ".join(name for name in named if is_place(name))
    return ModelFolderError(
        f"the network is of classes of its author ({classes}), which would run their code. If you trust them, install "
        "the package and put the folder into ZOO_HOME/models; or use the model's ONNX graph (runtime='onnx', --runtime "
        "onnx).",
        code="unsafe-file",
    )


def build(place: str, args: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """Construct a class, or call a function, with arguments and with those of the offered ones that it names.

    Args:
        place: The place of the class or the function.
        args: Its arguments; `{"class": place, "args": {...}}` at any depth is an object that is constructed first.
            Those of a parameter `*names` are a list under its name.
        offered: Further arguments.

    Raises:
        RecipeError: `unknown-name`, if the place cannot be imported.
    """
    kind = import_class(place)
    taken = inspect.signature(kind).parameters
    values = {name: _constructed(value) for name, value in args.items()}
    values = {**{name: value for name, value in offered.items() if name in taken and name not in args}, **values}
    many = [name for name, parameter in taken.items() if parameter.kind is parameter.VAR_POSITIONAL]
    positional = [value for name in many for value in values.pop(name, ())]
    return kind(*positional, **values)


def _constructed(value: Any) -> Any:
    if isinstance(value, Mapping) and value.keys() == {"class", "args"}:
        return build(value["class"], value["args"], {})
    return [_constructed(part) for part in value] if isinstance(value, list | tuple) else value
