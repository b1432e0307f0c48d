"""Training on cached features: the data of a run, the replacement of its trunk, and the views that methods see."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training.cached.feature_folder import Features, read_features
from training.cached.views import CachedViews, draw_views
from training.data import TrainingData, held_out_classes
from training.recipe import Recipe
from zoo.data.dataset import DataIdentity
from zoo.errors import RecipeError
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files
from zoo.models.names import find_model
from zoo.models.network import load_network


@dataclass(frozen=True)
class CachedData:
    """Cached features of the classes that are trained on, and of those held out for validation.

    Attributes:
        features: The features of all images.
        rows: int64 [n], the rows of the training samples among them.
        labels: int64 [n], of `classes` classes.
        classes: The number of classes.
        validation: Plain features float32 [v, f] and labels [v] of classes that are not trained on, or None.
        folder: The folder of the model whose trunk made the features.
        card: Its card.
        skipped: The names of images that were left out.
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
        """Return the number of features of an image."""
        return int(self.features.plain.shape[1])

    @property
    def digest(self) -> str:
        """Return eight hexadecimal digits that differ for other features, labels or held-out classes."""
        about = self.features.about
        # The views follow from these facts and the images.
        facts = {"fingerprint": about.fingerprint, "augmentation": dict(about.augmentation), "seed": about.seed}
        total = hashlib.sha256(json.dumps({**facts, "views": len(self.features.views)}, sort_keys=True).encode())
        for array in (self.features.plain, self.rows, self.labels):
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()[:8]

    @property
    def identity(self) -> DataIdentity:
        """Return that of all images with features."""
        return self.features.identity

    @property
    def class_names(self) -> Sequence[str]:
        return self.features.classes

    @property
    def golden(self) -> list[np.ndarray]:
        return list(self.features.golden)

    def images(self, samples: np.ndarray) -> Tensor:
        """Return all views of samples, [b, v, f]; the plain features as the only view if there are no others."""
        rows = self.rows[samples]
        views = self.features.views[:, rows] if len(self.features.views) else self.features.plain[None, rows]
        return torch.from_numpy(np.ascontiguousarray(views.swapaxes(0, 1)))

    def plain(self) -> Tensor:
        """Return the features float32 [n, f] of all training samples, not augmented."""
        return torch.from_numpy(self.features.plain[self.rows].astype(np.float32))

    def names(self, samples: np.ndarray) -> list[str]:
        return [self.features.sources[row] for row in self.rows[samples]]

    def trunk(self) -> nn.Module:
        """Return the trunk that made the features, with its weights."""
        return load_network(self.card, self.folder).trunk


Samples = TrainingData | CachedData
ADVICE = (
    "Cached features have no images and no trunk; train it without --features. For more views of each image, make them "
    "again: zoo features MODEL DIR -o OUT --views 8"
)


def load_cached_data(recipe: Recipe) -> CachedData:
    """Return the features that a recipe names, for the trunk that it names.

    Raises:
        UsageError: If the features cannot be used or another model made it.
        ModelNotFoundError: If the model is not found.
        ModelFolderError: If the model is damaged.
        RecipeError: If the recipe's backbone or preprocessing is not that of the model.
    """
    features = read_features(recipe.data.features)
    folder = find_model(str(recipe.backbone.pretrained))
    card = read_card(folder)
    features.check_model(card)
    check_files(folder, card)
    if (recipe.backbone.architecture, recipe.preprocessing) != (card.architecture, card.preprocessing):
        raise RecipeError(
            f"the recipe's backbone is not that of {card.name}; use `zoo train NAME --features DIR`.",
            code="conflicting-settings",
        )
    held_out = held_out_classes(len(features.classes), recipe.data, recipe.seed)
    validates = np.isin(features.labels, held_out)
    rows = np.flatnonzero(~validates)
    _, labels = np.unique(features.labels[rows], return_inverse=True)
    validation = None
    if validates.any():
        validation = features.plain[validates].astype(np.float32), features.labels[validates]
    return CachedData(features, rows, labels, int(labels.max()) + 1, validation, folder, card)


class CachedTrunk(nn.Module):
    """The replacement of a trunk: features [n, f, 1, 1] become [n, f], nothing is learnt or computed."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.num_features = features

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(1)

    @property
    def feature_info(self) -> list[dict[str, object]]:
        raise RecipeError(f"the method works on the trunk's layers. {ADVICE}", code="conflicting-settings")


def draw_features(features: Tensor, size: int, part: slice, gather: Callable[[Tensor], Tensor]) -> CachedViews:
    """Draw a random view of each sample from its features.

    Args:
        features: All views of this process's samples, [n, v, f].
        size: The size of the whole batch.
        part: This process's part of it.
        gather: Collects the parts of all processes.

    Returns:
        The views, [n, f, 1, 1].
    """
    rows = torch.arange(len(features), device=features.device)

    def read(views: Tensor) -> Tensor:
        return features[rows, views.to(features.device)].float()[:, :, None, None]

    def forward(images: Tensor, trunk: nn.Module | None) -> Tensor:
        if not isinstance(trunk, CachedTrunk | None):
            raise RecipeError(f"the method has a trunk of its own. {ADVICE}", code="conflicting-settings")
        return gather(images.flatten(1))

    return draw_views(read, features.shape[1], size, part, forward, ADVICE)
