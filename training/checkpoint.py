"""Checkpoints: a run's state as one safetensors file, without pickles, and the batch that made a run diverge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.methods.base import Minibatch
from zoo.errors import DivergedError, TrainingError
from zoo.files import atomic_path

_SHOWN = 8
"""Images of a bad batch that the message names."""


def keep_bad_batch(
    batch: Minibatch, names: Sequence[str], terms: Mapping[str, Tensor], path: Path, step: int
) -> DivergedError:
    """Write the batch of an infinite loss to a file and return the error to raise.

    The file has the images as the network got them, the labels and the sample numbers.

    Args:
        batch: The batch of the step.
        names: The names of its images.
        terms: The terms of the loss, scalars by name.
        path: The file.
        step: The number of the step in the epoch.
    """
    location = _keep(batch, path)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    values = ", ".join(f"{name} {term.item():.4g}" for name, term in terms.items())
    loss = sum(term.item() for term in terms.values())
    last_checkpoint = (
        f"the last checkpoint holds epoch {batch.epoch}" if batch.epoch else "no epoch ended, so there is no checkpoint"
    )
    return DivergedError(
        f"the loss became {loss} in epoch {batch.epoch + 1}, step {step} ({values}). "
        f"{location}; its images: {', '.join(names[:_SHOWN])}{more}. Lower optimizer.lr; {last_checkpoint}."
    )


def check_embeddings(rows: np.ndarray, source: str) -> None:
    """Check that all embeddings are finite and have a direction; heads that overflow give rows of zeros.

    Args:
        rows: float [n, dim].
        source: What gave them, for the message, in the plural.

    Raises:
        DivergedError: If a row has NaN or infinite values, or length 0.
    """
    if not np.isfinite(rows).all() or not rows.any(axis=1).all():
        raise DivergedError(
            f"{source} give embeddings with NaN or infinite values, or of length 0. Lower optimizer.lr."
        )


def _keep(batch: Minibatch, path: Path) -> str:
    """Write the batch and say where it is, or why it could not be written, which must not hide the error of the run."""
    tensors = {"images": batch.images, "labels": batch.labels, "samples": batch.samples}
    try:
        with atomic_path(path) as temporary:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)
    except Exception as error:  # OSError, and safetensors' own type for what the system refused
        return f"Its batch could not be written to {path} ({error})"
    return f"Its batch is kept in {path}"


_TENSOR, _PAIRS = "__tensor__", "__pairs__"


def save(state: dict[str, Any], path: Path) -> None:
    """Write the state atomically: a full disk or a kill leaves the last good file.

    Args:
        state: Nested dicts and lists of tensors and JSON values.
        path: The file.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_detach(state, tensors))
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"tree": tree})


def load(path: Path) -> dict[str, Any]:
    """Read the state that `save` wrote.

    Raises:
        TrainingError: If the file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tree = json.loads(file.metadata()["tree"])
            return _attach(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  (no mapping)
    except Exception as error:  # safetensors, JSON and key errors alike: not a checkpoint of ours
        raise TrainingError(
            f"checkpoint {path} cannot be read ({error}). Start again with --restart.", code="unreadable-file"
        ) from None


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
    """Return the state of torch's generators, from which augmentation and mining draw."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_state(states: dict[str, Tensor]) -> None:
    """Set torch's generators to a state of `random_state`."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
