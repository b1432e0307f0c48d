"""What losses and miners are given: a batch's embeddings and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import RecipeError, UsageError


def check_batch(embeddings: Tensor, labels: Tensor, classes: int | None = None) -> None:
    """Raise `UsageError` unless embeddings are [b, d] and labels int64 [b]; with `classes` as `check_labels`, too.

    Looks at no embedding and so waits for no device: what is not finite is for the loss, and who trains by it, to find.
    """
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise UsageError(
            f"embeddings are [b, d] and labels [b], one a row, not {list(embeddings.shape)} and {list(labels.shape)}."
        )
    if labels.dtype != torch.int64:
        raise UsageError(
            f"labels are int64, not {str(labels.dtype).removeprefix('torch.')}; labels.long() makes them so."
        )
    if classes is not None:
        check_labels(labels, classes)


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise `RecipeError` for a label [b] outside 0 to classes - 1. On an accelerator, where looking would wait for it,
    its own index check speaks instead."""
    if labels.device.type == "cpu" and len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise RecipeError(
            f"labels must be from 0 to {classes - 1} for {classes} classes, not {labels.min()} to {labels.max()}."
        )
