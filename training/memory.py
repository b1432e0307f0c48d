"""What the network makes of all training samples, for methods that cluster them and samplers that choose by them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from training.frozen.data import CachedData
from training.recipe import Augmentation
from training.run import Trainer


@torch.no_grad()
def observe(run: Trainer, chunk: int = 256) -> Tensor:
    """Pooled features float32 [n, f] of all training samples, not augmented, by the network as it is."""
    if isinstance(run.data, CachedData):
        return run.data.plain().to(run.place.device)
    how = run.recipe.augmentation
    plain = Augmentation(background=how.background, oversample=how.oversample)
    training = run.network.training
    run.network.eval()
    processes, total = run.place.processes, len(run.data.labels)
    rows = []
    # Looking draws from the generators, for nothing, and must not move them: other numbers of processes look in other
    # steps.
    with run.place.forked_generators():
        for start in range(0, total, chunk * processes.count):
            samples = np.arange(start, min(start + chunk * processes.count, total))
            # Every process has as many: the last sample stands in for those that are lacking.
            filled = np.pad(samples, (0, -len(samples) % processes.count), mode="edge")
            squares = run.data.images(filled[processes.part(len(filled))])
            rows.append(run.features(run.view(filled, squares, plain))[: len(samples)])
    run.network.train(training)
    return torch.cat(rows)


@torch.no_grad()
def embed_features(run: Trainer, features: Tensor) -> np.ndarray:
    """Unit embeddings float32 [b, dim] of pooled features [b, f]."""
    return run.network.embed(features.float()).cpu().numpy()
