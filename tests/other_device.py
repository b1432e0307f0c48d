"""Torch device that computes as the CPU does and, as a GPU would, refuses operands on different devices.

It shows without a GPU if code leaves a tensor on the CPU. It needs torch's experimental backends in Python, and stays
registered for the rest of the process.
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
"""Operations that do not accept even a scalar from the CPU."""

_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations whose indices may be on the CPU or on the device of the indexed tensor."""


class DeviceTensor(torch.Tensor):
    """Tensor on the device; `inner` has its values on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DeviceTensor:
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.inner = inner
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _compute(function, args, kwargs or {})


class _Operations(TorchDispatchMode):
    """Mode that intercepts operations that create or move tensors."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(function, args, kwargs or {})


class _Conversions(TorchFunctionMode):
    """Mode that intercepts conversions between Python's numbers and the device, which `_Operations` does not see."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and _is_device(kwargs.get("device")):
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        if function is torch.Tensor.tolist and isinstance(args[0], DeviceTensor):
            return args[0].inner.tolist()
        return function(*args, **kwargs)


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Yield the device."""
    if backend_registration._privateuse1_backend_name != NAME:
        backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    with _Conversions(), _Operations():
        yield torch.device(NAME, 0)


def _is_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _compute(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    leaves = _leaves((args, kwargs))
    known = {id(leaf.inner): leaf for leaf in leaves if isinstance(leaf, DeviceTensor)}
    if known:
        _check(str(function).split(".")[1], args, leaves)
    on_device, kwargs = bool(known), dict(kwargs)
    if kwargs.get("device") is not None:
        on_device, kwargs["device"] = _is_device(kwargs["device"]), torch.device("cpu")
    out = function(*_map(_inner, args), **_map(_inner, kwargs))
    return _map(lambda leaf: _outer(leaf, known), out) if on_device else out


def _check(name: str, args: Any, leaves: Sequence[Any]) -> None:
    """Raise `RuntimeError` for an operand that must not be on the CPU."""
    if name in ("_to_copy", "copy_"):
        return
    operands = [args[0], *args[2:3]] if name in _INDEX else leaves
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    checked = [tensor for tensor in tensors if tensor.dim() or name in _ALL or tensor is args[0]]
    wrong = [tuple(tensor.shape) for tensor in checked if not isinstance(tensor, DeviceTensor)]
    if wrong:
        raise RuntimeError(f"{name} of tensors on different devices: on the CPU are those of shape {wrong}")


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of lists, tuples and dictionaries; torch's own `tree_map` would be slow."""
    if type(value) in (list, tuple):
        return type(value)([_map(function, item) for item in value])
    if type(value) is dict:
        return {name: _map(function, item) for name, item in value.items()}
    return function(value)


def _leaves(value: Any) -> list[Any]:
    leaves: list[Any] = []
    _map(leaves.append, value)
    return leaves


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, DeviceTensor) else value


def _outer(value: Any, known: Mapping[int, DeviceTensor]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else DeviceTensor(value)
