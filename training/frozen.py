"""Heads on cached features: data and trunk.

Cached features in the place of training images.

What stands in for the trunk of a run on cached features, and what methods see of a batch of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.data import TrainingData, held_out_classes
from training.feature_file import Features, read_features
from training.recipe import Recipe
from zoo.errors import RecipeError
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files
from zoo.models.load import find_model
from zoo.models.network import load_network


@dataclass(frozen=True)
class CachedData:
    """Features of the classes that are trained on, and of those held out for validation.

    rows: int64 [n], where the training samples lie in the file. labels: int64 [n], of `classes` classes. validation:
    plain features float32 [v, f] and labels [v] of classes that are not trained on, or None. folder, card: the model
    whose trunk made the features.
    """

    features: Features
    rows: np.ndarray
    labels: np.ndarray
    classes: int
    validation: tuple[np.ndarray, np.ndarray] | None
    folder: Path
    card: Card
    skipped: Sequence[str] = ()

    @property
    def dim(self) -> int:
        """How many features an image has."""
        return int(self.features.plain.shape[1])

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that differ for other features, labels or held-out classes."""
        about = self.features.about
        made = {"fingerprint": about.fingerprint, "augmentation": dict(about.augmentation), "seed": about.seed}
        # From these and the images the views follow.
        total = hashlib.sha256(json.dumps({**made, "views": len(self.features.views)}, sort_keys=True).encode())
        for array in (self.features.plain, self.rows, self.labels):
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()[:8]

    @property
    def golden(self) -> list[np.ndarray]:
        return list(self.features.golden)

    def images(self, samples: np.ndarray) -> Tensor:
        """All views of samples, [b, v, f]; the plain features as the only one where the file has no views."""
        rows = self.rows[samples]
        views = self.features.views[:, rows] if len(self.features.views) else self.features.plain[None, rows]
        return torch.from_numpy(np.ascontiguousarray(views.swapaxes(0, 1)))

    def plain(self) -> Tensor:
        """Features float32 [n, f] of all training samples, not augmented."""
        return torch.from_numpy(self.features.plain[self.rows].astype(np.float32))

    def names(self, samples: np.ndarray) -> list[str]:
        return [self.features.sources[row] for row in self.rows[samples]]

    def trunk(self) -> nn.Module:
        """The trunk that made the features, with its weights."""
        return load_network(self.card, self.folder).trunk


Samples = TrainingData | CachedData


def load_cached_data(recipe: Recipe) -> CachedData:
    """The features that the recipe names, of the trunk that it names.

    Raises `UsageError` for a file that cannot be used or is of another model, `ModelNotFoundError` and
    `ModelFolderError` for the model, and `RecipeError` for a recipe that is none for these features.
    """
    features = read_features(recipe.data.features)
    folder = find_model(str(recipe.backbone.pretrained))
    card = read_card(folder)
    features.check_model(card)
    check_files(folder, card)
    if (recipe.backbone.architecture, recipe.preprocessing) != (card.architecture, card.preprocessing):
        raise RecipeError(f"the recipe's backbone is not that of {card.name}; use `zoo train NAME --features FILE`.")
    held_out = held_out_classes(len(features.classes), recipe.data, recipe.seed)
    validates = np.isin(features.labels, held_out)
    rows = np.flatnonzero(~validates)
    _, labels = np.unique(features.labels[rows], return_inverse=True)
    validation = None
    if validates.any():
        validation = features.plain[validates].astype(np.float32), features.labels[validates]
    return CachedData(features, rows, labels, int(labels.max()) + 1, validation, folder, card)


class CachedTrunk(nn.Module):
    """Features [n, f, 1, 1] to features [n, f]: nothing is learnt or computed."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.num_features = features

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(1)

    @property
    def feature_info(self) -> list[dict[str, object]]:
        raise RecipeError(f"the method works on the trunk's layers. {_INSTEAD}")


class CachedViews(NamedTuple):
    """One view of each sample of this process, [n, f, 1, 1], how to draw another one, and what puts them through."""

    first: Tensor
    another: Callable[[], Tensor]
    forward: Callable[[Tensor, nn.Module | None], Tensor]


def draw_views(cached: Tensor, size: int, part: slice, gather: Callable[[Tensor], Tensor]) -> CachedViews:
    """A random view of each sample, from all of them, cached [n, v, f] of this process's part of a batch of `size`.

    Draws for the whole batch from torch's global generator. The views stand in for images, so that methods that only
    pass these on work as ever. One that would put anything else through the trunk gets a `RecipeError`, and so does
    one that asks for another view where there is only one.
    """
    n, count, _ = cached.shape
    chosen = torch.randint(count, (size,))[part]
    handed: list[Tensor] = []

    def pick(views: Tensor) -> Tensor:
        rows = torch.arange(n, device=cached.device)
        handed.append(cached[rows, views.to(cached.device)].float()[:, :, None, None])
        return handed[-1]

    def another() -> Tensor:
        if count < 2:
            raise RecipeError(
                "the method compares two views of each image, and the features hold one. Make them again with more: "
                "zoo features ... --views 8"
            )
        return pick((chosen + 1 + torch.randint(count - 1, (size,))[part]) % count)

    def forward(images: Tensor, trunk: nn.Module | None) -> Tensor:
        if not any(images is view for view in handed) or not isinstance(trunk, CachedTrunk | None):
            raise RecipeError(f"the method puts images of its own through the trunk. {_INSTEAD}")
        return gather(images.flatten(1))

    return CachedViews(pick(chosen), another, forward)


_INSTEAD = "Cached features have no images and no trunk; train it without --features."
