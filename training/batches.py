"""What losses and miners are given: a batch's embeddings and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import UsageError


def check_batch(embeddings: Tensor, labels: Tensor) -> None:
    """Raise `UsageError` unless embeddings are [b, d] and labels int64 [b].

    Looks at no value and so waits for no device: what is not finite is for the loss, and who trains by it, to find.
    """
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
        raise UsageError(
            f"embeddings are [b, d] and labels [b], one a row, not {list(embeddings.shape)} and {list(labels.shape)}."
        )
    if labels.dtype != torch.int64:
        raise UsageError(
            f"labels are int64, not {str(labels.dtype).removeprefix('torch.')}; labels.long() makes them so."
        )
