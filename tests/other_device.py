"""A device of torch that computes what the CPU does, and refuses what a GPU would: operands on different devices.

No machine of ours has a GPU, and code that leaves one tensor on the CPU works everywhere else. This needs torch's
experimental backends in Python. The device is torch's for the rest of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "other"

_ALL = {"cat", "stack", "mm", "bmm", "addmm", "convolution", "gather", "index_add", "index_select", "scatter"}
"""Operations that do not even take a number from the CPU."""

_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Indices may lie on the CPU, and nowhere else but with what they index."""


class There(torch.Tensor):
    """A tensor on the device: `held` is what it holds."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> There:
        made: There = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _compute(function, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """What makes tensors, or moves them, is seen here."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(function, args, kwargs or {})


class _Conversions(TorchFunctionMode):
    """What goes from Python's numbers to a device, or back, below what `_Operations` sees."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and _is_there(kwargs.get("device")):
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        if function is torch.Tensor.tolist and isinstance(args[0], There):
            return args[0].held.tolist()
        return function(*args, **kwargs)


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@contextmanager
def other_device() -> Iterator[torch.device]:
    """The device, for as long as this lasts."""
    if backend_registration._privateuse1_backend_name != NAME:
        backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    with _Conversions(), _Operations():
        yield torch.device(NAME, 0)


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _compute(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    leaves = _leaves((args, kwargs))
    known = {id(one.held): one for one in leaves if isinstance(one, There)}
    if known:
        _check(str(function).split(".")[1], args, leaves)
    stays, kwargs = bool(known), dict(kwargs)
    if kwargs.get("device") is not None:
        stays, kwargs["device"] = _is_there(kwargs["device"]), torch.device("cpu")
    out = function(*_map(_inner, args), **_map(_inner, kwargs))
    return _map(lambda one: _outer(one, known), out) if stays else out


def _check(name: str, args: Any, leaves: Sequence[Any]) -> None:
    """Raise `RuntimeError` where an operand is on the CPU that must not be."""
    if name in ("_to_copy", "copy_"):
        return
    operands = [args[0], *args[2:3]] if name in _INDEX else leaves
    must = [one for one in operands if isinstance(one, torch.Tensor) and (one.dim() or name in _ALL or one is args[0])]
    wrong = [tuple(one.shape) for one in must if not isinstance(one, There)]
    if wrong:
        raise RuntimeError(f"{name} of tensors on different devices: on the CPU lie those of shape {wrong}")


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """By the function whatever lists, tuples and dictionaries hold; torch's own `tree_map` takes most of a run."""
    if type(value) in (list, tuple):
        return type(value)([_map(function, one) for one in value])
    if type(value) is dict:
        return {name: _map(function, one) for name, one in value.items()}
    return function(value)


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    _map(found.append, value)
    return found


def _inner(value: Any) -> Any:
    return value.held if isinstance(value, There) else value


def _outer(value: Any, known: Mapping[int, There]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else There(value)
