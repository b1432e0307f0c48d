"""Start of linear heads on a pretrained trunk: the principal directions of the training images' features.

A head with random weights mixes the trunk's numbers at random and is a worse search than the trunk itself. This one
keeps the directions along which the training images differ most, half whitened, so that training begins at about the
trunk's quality.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.recipe import Recipe
from zoo.errors import ZooError
from zoo.models.card import read_card
from zoo.models.load import find_model
from zoo.models.network import load_network

SMALLEST = 1e-9
"""Least variance along a direction, as a share of the largest, that is more than rounding."""
SPARE_LENGTH = 0.1
"""Length of what rows without a direction add to an embedding, as a share of the others': not 0, so that they learn."""


@torch.no_grad()
def start_heads(heads: nn.ModuleDict, features: Tensor, base: nn.ModuleDict | None = None) -> None:
    """Give every head the principal directions of features.

    Args:
        heads: Linear maps from f numbers.
        features: Pooled features of the training images, float [n, f].
        base: The heads of the model that training starts from: their principal directions are taken, since they are
            trained already.
    """
    weight, bias = _base_map(base, features) if base else (torch.eye(features.shape[1]).double(), torch.zeros(1))
    values = features.double().cpu() @ weight.T + bias
    for head in heads.values():
        assert isinstance(head, nn.Linear)
        directions = principal_directions(values, head.out_features)
        rows = directions @ weight
        rows /= rows.norm(dim=1).mean()
        head.weight[: len(rows)] = rows.to(head.weight)
        centred = features.to(head.weight) - features.to(head.weight).mean(0)
        if len(spare := head.weight[len(rows) :]):  # more numbers than features: random rows that change cosines little
            spare *= SPARE_LENGTH * (centred @ head.weight[: len(rows)].T).norm() / (centred @ spare.T).norm()
        head.bias.copy_(-head.weight @ features.to(head.weight).mean(0))


def principal_directions(values: Tensor, count: int) -> Tensor:
    """Return the directions of the largest variance, half whitened, and random ones where the rows do not vary.

    Half whitened: each direction is divided by the square root of its standard deviation, which lies between PCA, where
    a few large directions decide, and whitening, which enlarges noise.
    A few images span few directions, but new classes vary along others too: random ones, as long as the last direction,
    stand for those.

    Args:
        values: Rows float64 [n, f].
        count: The number of directions.

    Returns:
        Orthogonal rows float64 [min(count, f), f], the largest variance first.
    """
    width = values.shape[1]
    variances, columns = torch.linalg.eigh(torch.cov(values.T).reshape(width, width))
    varied = int((variances > SMALLEST * variances[-1]).sum())
    kept = columns.flip(1)[:, : min(varied, count)].T
    # The sign of an eigenvector is arbitrary; this rule gives the same sign on every machine.
    kept = kept * kept.gather(1, kept.abs().argmax(1, keepdim=True)).sign()
    lengths = variances.flip(0)[: len(kept)] ** -0.25
    kept = kept * lengths[:, None]
    rest = min(count - len(kept), width - varied)
    if rest < 1:
        return kept
    mixed, _ = torch.linalg.qr(torch.randn(width - varied, rest, dtype=torch.float64))
    return torch.cat([kept, lengths[-1] * (columns[:, : width - varied] @ mixed).T])


def _base_map(base: nn.ModuleDict, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight [d, f] and bias [d] of all heads together, each scaled as in the joined embedding."""
    maps = []
    for head in base.values():
        assert isinstance(head, nn.Linear)
        weight, bias = head.weight.detach().double(), head.bias.detach().double()
        length = (features.double().cpu() @ weight.T + bias).norm(dim=1).mean()
        maps.append((weight / length, bias / length))
    return torch.cat([weight for weight, _ in maps]), torch.cat([bias for _, bias in maps])


def base_heads(recipe: Recipe) -> nn.ModuleDict | None:
    """Return the heads of the model that a recipe starts from; None if it starts from weights without heads."""
    start = recipe.backbone.pretrained
    if isinstance(start, bool):
        return None
    try:
        folder = find_model(start)
        card = read_card(folder)
    except ZooError:
        return None  # a folder or a file of weights alone
    return load_network(card, folder).heads if card.heads else None
