"""The current embeddings of the training samples, for the samplers that choose batches by them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from training.data import TrainingData
from training.recipe import Augmentation
from training.run import Run


@torch.no_grad()
def embed_features(run: Run, features: Tensor) -> np.ndarray:
    """Unit embeddings float32 [b, dim] of pooled features [b, f]."""
    return run.network.embed(features.float()).cpu().numpy()


@torch.no_grad()
def embed_samples(run: Run, data: TrainingData, chunk: int = 256) -> np.ndarray:
    """Unit embeddings float32 [n, dim] of all training samples, not augmented, by the network as it is."""
    how = run.recipe.augmentation
    plain = Augmentation(background=how.background, oversample=how.oversample)
    training = run.network.training
    run.network.eval()
    rows = []
    for start in range(0, len(data.labels), chunk):
        samples = np.arange(start, min(start + chunk, len(data.labels)))
        images, turns, _ = data.batch(samples, run.device)
        rows.append(embed_features(run, run.features(images, turns, plain)))
    run.network.train(training)
    return np.concatenate(rows)
