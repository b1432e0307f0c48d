"""A run's state as one safetensors file: nested dicts and lists of tensors and plain values, nothing pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zoo.errors import TrainingError
from zoo.files import atomic_path

_TENSOR, _PAIRS = "__tensor__", "__pairs__"


def save(state: dict[str, Any], path: Path) -> None:
    """Write atomically: a full disk or a kill leaves the last good file."""
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_detach(state, tensors))
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"tree": tree})


def load(path: Path) -> dict[str, Any]:
    """What `save` wrote. Raises `TrainingError` where the file cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            tree = json.loads(file.metadata()["tree"])
            return _attach(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  (no mapping)
    except Exception as error:  # safetensors, JSON and key errors alike: the file is no checkpoint of ours
        raise TrainingError(f"checkpoint {path} cannot be read ({error}). Start afresh with --restart.") from None


def _detach(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {_TENSOR: name}
    if isinstance(value, dict):
        # As pairs, because optimisers key their state by integers, which JSON would turn to text.
        return {_PAIRS: [[key, _detach(inner, tensors)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        return [_detach(inner, tensors) for inner in value]
    return value


def _attach(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_attach(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensors[value[_TENSOR]]
    return {key: _attach(inner, tensors) for key, inner in value[_PAIRS]}


def random_state() -> dict[str, Tensor]:
    """The state of torch's generators, from which augmentation and mining draw."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
