"""A loss that is not finite ends the run; what led to it is kept and named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from training.methods.base import Minibatch
from zoo.errors import DivergedError
from zoo.files import atomic_path

if TYPE_CHECKING:
    from training.run import Trainer


_NAMED = 8


def keep_bad_batch(run: Trainer, batch: Minibatch, terms: dict[str, Tensor], folder: Path, step: int) -> DivergedError:
    """Write the batch to `folder` (images as the network got them, labels, samples); the error to raise."""
    samples = batch.samples.cpu()
    where = _keep(batch, samples, folder / f"bad-batch-{run.place.processes.rank}.safetensors")
    named = run.data.names(samples.numpy())
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    values = ", ".join(f"{name} {term.item():.4g}" for name, term in terms.items())
    loss = sum(term.item() for term in terms.values())
    kept = f"the last checkpoint holds epoch {run.epoch}" if run.epoch else "no epoch ended, so there is no checkpoint"
    return DivergedError(
        f"the loss became {loss} in epoch {run.epoch + 1}, step {step} ({values}). "
        f"{where}; its images: {', '.join(named[:_NAMED])}{more}. Lower optimizer.lr; {kept}."
    )


def check_directions(rows: np.ndarray, what: str) -> None:
    """Raise `DivergedError` unless all embeddings, float [n, dim], are numbers and have a direction.

    Heads that overflow give rows that are all zero: something over infinity. what: gave them.
    """
    if not np.isfinite(rows).all() or not rows.any(axis=1).all():
        raise DivergedError(f"{what} give embeddings with NaN or infinite values, or of length 0. Lower optimizer.lr.")


def _keep(batch: Minibatch, samples: Tensor, path: Path) -> str:
    """Where the batch is; or why it could not be written, which must not hide what the run stops for."""
    tensors = {"images": batch.images, "labels": batch.labels, "samples": samples}
    try:
        with atomic_path(path) as temporary:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, temporary)
    except Exception as error:  # OSError, and safetensors' own type for what the system refused
        return f"Its batch could not be written to {path} ({error})"
    return f"Its batch is kept in {path}"
