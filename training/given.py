"""Objects of the user: whether their class constructs an equal one, and what a recipe records of them."""

from __future__ import annotations

import hashlib
import inspect
import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

GIVEN_OBJECT = "given_object"
"""Argument of a loss or miner in a recipe: the attributes of an object that its class does not construct again."""

SIZES = ("num_classes", "embedding_size")
"""Arguments that a run offers to a constructor."""

_PLACEHOLDER = 4
_ABSENT = object()
_TIMMS_OWN = "_model_args"
"""Attribute in which timm keeps how a network was asked for; other words can ask for an equal one."""


def constants_of(part: Any) -> dict[str, Any]:
    """Return the arguments from which a class constructs an object, or its attributes as `GIVEN_OBJECT`.

    The arguments are read from the attributes of the same names. They are used if an object that is constructed with
    them has equal attributes. Learnt parameters may differ in their values, and in their shapes if the run offers the
    sizes.
    """
    parameters = inspect.signature(type(part)).parameters
    values = {name: getattr(part, name, _ABSENT) for name in parameters}
    constants = {name: value for name, value in values.items() if is_plain(value)}
    needed = [name for name, taken in parameters.items() if taken.default is taken.empty]
    offered = dict.fromkeys((name for name in SIZES if name in needed and name not in constants), _PLACEHOLDER)
    try:
        another = type(part)(**constants, **offered)
    except Exception:  # of the user's class
        return {GIVEN_OBJECT: attributes_of(part)}
    same = not any(differences(part, another, shapes=not offered))
    return constants if same else {GIVEN_OBJECT: attributes_of(part)}


def attributes_of(part: Any) -> dict[str, str]:
    """Return the attributes of an object as text, without addresses in memory."""
    return {name: _text(value) for name, value in _attributes(part).items()}


def is_plain(value: Any) -> bool:
    """Return whether JSON can hold a value."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def differences(given: Any, built: Any, name: str = "", shapes: bool = True) -> Iterator[str]:
    """Yield the names of the attributes in which two objects differ; of learnt parameters only the shapes count.

    Args:
        given: The object of the user.
        built: Another one of its class.
        name: The name of both.
        shapes: Compare the shapes of learnt parameters.
    """
    yield from _differences(given, built, name, shapes, set())


def _differences(given: Any, built: Any, name: str, shapes: bool, seen: set[int]) -> Iterator[str]:
    if given is built or id(given) in seen:
        return
    if is_plain(given) or is_plain(built):
        if not _same_plain(given, built):
            yield name
        return
    seen.add(id(given))
    parts = _parts(given)
    if type(given) is not type(built) or (parts is None and not _same_value(given, built, shapes)):
        yield name
        return
    others = _parts(built) or {}
    if isinstance(given, Mapping | Sequence) and (parts or {}).keys() != others.keys():
        yield name
    for key, value in (parts or {}).items():
        # An attribute that no constructor sets is state of the last call, unless it hides a constant of the class.
        other = others.get(key, getattr(built, str(key), _ABSENT) if is_plain(value) else _ABSENT)
        if other is not _ABSENT:
            yield from _differences(value, other, f"{name}.{key}".lstrip("."), shapes, seen)
    yield from (f"{name}.{key}".lstrip(".") for key in others if key not in (parts or {}))


def _same_value(given: Any, built: Any, shapes: bool) -> bool:
    """Return whether two values of one type, which have no parts, are equal."""
    import torch

    if isinstance(given, torch.Tensor | np.ndarray):
        is_learnt = isinstance(given, torch.nn.Parameter)
        return (is_learnt and not shapes) or _array(given, is_learnt) == _array(built, is_learnt)
    if isinstance(given, set | frozenset):
        return bool(given == built)
    return _pickled(given) == _pickled(built)


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return what a value consists of, by name; None for one that is a single value."""
    import torch

    if isinstance(value, torch.Tensor | np.ndarray):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, partial):
        return {"function": value.func, "arguments": value.args, "keywords": value.keywords}
    if inspect.isfunction(value):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        code = value.__code__
        constants = [constant for constant in code.co_consts if is_plain(constant)]
        return {"code": code.co_code.hex(), "names": code.co_names, "values": [constants, cells, value.__defaults__]}
    if inspect.ismethod(value):
        return {"function": value.__func__}
    return _attributes(value) if hasattr(value, "__dict__") and not isinstance(value, type) else None


def _attributes(part: Any) -> dict[str, Any]:
    """Return the attributes of an object; of a module with its parameters, buffers and modules, without torch's own."""
    import torch

    values = dict(vars(part)) if hasattr(part, "__dict__") else {}
    if not isinstance(part, torch.nn.Module):
        return values
    inner = dict([*part.named_parameters("", False), *part.named_buffers("", False), *part.named_children()])
    left_out = {*vars(torch.nn.Module()), _TIMMS_OWN}
    return {**{name: value for name, value in values.items() if name not in left_out}, **inner}


def _same_plain(given: Any, built: Any) -> bool:
    if isinstance(given, list | tuple) and isinstance(built, list | tuple):
        return len(given) == len(built) and all(map(_same_plain, given, built))
    return bool(is_plain(given) and is_plain(built) and (given == built or (given != given and built != built)))


def _array(value: Any, is_learnt: bool = False) -> tuple[Any, ...]:
    """Return the shape of an array or a tensor, with the digest of its values unless it is learnt."""
    import torch

    shape = list(value.shape)
    if is_learnt:
        return (shape,)
    values = value.detach().cpu().resolve_conj().resolve_neg() if isinstance(value, torch.Tensor) else value
    data = values.float().numpy() if isinstance(values, torch.Tensor) and values.is_floating_point() else values
    return shape, hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:12]


def _pickled(value: Any) -> bytes | None:
    try:
        return pickle.dumps(value)
    except Exception:  # as of a lock, of which nothing can be compared
        return None


def _text(value: Any, depth: int = 2) -> str:
    import torch

    if is_plain(value):
        return repr(value)
    if isinstance(value, torch.Tensor | np.ndarray):
        shape, *digest = _array(value, isinstance(value, torch.nn.Parameter))
        return " ".join([type(value).__name__, str(shape), *digest])
    if isinstance(value, type) or inspect.isroutine(value):
        return str(value.__qualname__)
    parts = (_parts(value) if depth else None) or {}
    shown = (f"{name}={_text(part, depth - 1)}" for name, part in parts.items() if not str(name).startswith("_"))
    return f"{type(value).__name__}({', '.join(shown)})"
