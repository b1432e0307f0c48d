"""What of a trained network is embedded: all of it, one of its heads, its features, or these under a random head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.recipe import Recipe
from training.studies.study import EMBEDDING, FEATURES, RANDOM_HEAD, REDUCED
from zoo.errors import RecipeError
from zoo.models.network import Network, PixelNetwork, feature_count

CHUNK = 256

Embed = Callable[[Tensor], Tensor]


def embed_views(
    network: Network, recipe: Recipe, pixels: np.ndarray, views: Sequence[str], device: torch.device
) -> dict[str, np.ndarray]:
    """Unit rows float32 [n, d] of pixels uint8 [n, crop, crop, c] by view, from one pass through the trunk.

    Raises `RecipeError` for a head that the network lacks.
    """
    makers = {view: _maker(network, view, recipe.seed) for view in views}
    normalised = PixelNetwork(network, recipe.preprocessing).eval().to(device)
    found: dict[str, list[Tensor]] = {view: [] for view in views}
    with torch.inference_mode():
        for start in range(0, len(pixels), CHUNK):
            chunk = torch.from_numpy(pixels[start : start + CHUNK]).to(device)
            pooled = network.trunk(normalised.images(chunk))
            for view, make in makers.items():
                found[view].append(make(pooled).float().cpu())
    return {view: _reduced(torch.cat(rows), view).numpy() for view, rows in found.items()}


def _maker(network: Network, view: str, seed: int) -> Embed:
    """From pooled features [n, f] to the unit rows of a view."""
    if view == EMBEDDING:
        return network.embed
    if view == FEATURES:
        return lambda features: normalize(features, dim=1)
    if REDUCED.fullmatch(view):
        return lambda features: features
    if view == RANDOM_HEAD:
        return _random_head(network, seed)
    if view not in network.heads:
        raise RecipeError(
            f"the network has no head {view!r} to measure; its heads: {', '.join(network.heads) or 'none'}."
        )
    head = network.heads[view]
    return lambda features: normalize(head(features), dim=1)


def _reduced(rows: Tensor, view: str) -> Tensor:
    """The rows [n, f] of a reduced view along their principal components, of unit length; those of others as they are.

    As Reality reduces the features of backbones without training, to as many numbers as those of trained models.
    """
    found = REDUCED.fullmatch(view)
    if found is None:
        return rows
    centred = rows.double() - rows.double().mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[: int(found[1])]
    return normalize(centred @ directions.T, dim=1).float()


def _random_head(network: Network, seed: int) -> Embed:
    """A linear map to as many numbers as the first head's, drawn as PyTorch draws a head's first weights."""
    width = feature_count(network.trunk)
    dims = [int(head.out_features) for head in network.heads.values()]  # type: ignore[arg-type]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        weights = nn.Linear(width, dims[0] if dims else width).weight.detach()
    return lambda features: normalize(features @ weights.T.to(features), dim=1)
