"""From a recipe's batch to its sampler."""

from __future__ import annotations

import numpy as np

from training.recipe import Recipe
from training.samplers import SAMPLERS, Sampler
from training.tables import make
from zoo.errors import RecipeError


def create_sampler(recipe: Recipe, labels: np.ndarray, stream: int = 0) -> Sampler:
    """The recipe's sampler, drawing by labels int64 [n]. Raises `RecipeError` where these cannot give such batches.

    stream: samplers of different streams draw independently.
    """
    batch = recipe.batch
    seed = recipe.seed if stream == 0 else int(np.random.SeedSequence((recipe.seed, stream)).generate_state(1)[0])
    offered = {"labels": labels, "size": batch.size, "per_class": batch.per_class, "seed": seed}
    sampler: Sampler = make(SAMPLERS, "sampler", batch.sampler, batch.args, {**offered, "dim": recipe.dim})
    if hasattr(sampler, "memory") and not recipe.dim:
        raise RecipeError(f"the sampler {batch.sampler!r} chooses by embeddings: the recipe needs a head.")
    return sampler
