"""Sub-center ArcFace (Deng et al. 2020, Sub-center ArcFace: Boosting Face Recognition by Large-Scale Noisy Web Faces).

    L = -mean log(exp(z_y) / (exp(z_y) + sum_{j != y} exp(scale cos theta_j))),  z_y = scale cos(theta_y + margin_y)
    cos theta_c = max_k cos(embedding, w_ck)

w_ck are the centres of class c. Margins by class size are those of Ha et al. 2020, Google Landmark Recognition 2020
Competition Third Place Solution: an affine function of n_c^-power, n_c the number of images of class c, so that small
classes have large margins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, normalize

from training.functional import check_batch
from training.losses.arcface import add_angle
from training.losses.proxies import class_vectors, shift_target_logits
from zoo.errors import RecipeError


class SubCenterArcFaceLoss(nn.Module):
    """ArcFace with several centres per class, of which the nearest counts, and with a margin for each class.

    Args:
        classes: Number of training classes.
        dim: Dimension of the embeddings.
        centres: Centres per class.
        scale: Factor of the cosines.
        margin: Angle in radians of the smallest class, and of all classes if they have equal sizes.
        least_margin: Angle of the largest class; equal to `margin`, all margins are, as in Deng et al. 2020.
        power: Exponent of the class sizes, 1/4 in Ha et al. 2020.
        class_sizes: Number of training images of each class; an empty class counts as one image. None: equal sizes.
        start: Distribution of the first class vectors, see `class_vectors`.

    Raises:
        RecipeError: If a number is out of range, or there is not one size per class.
    """

    margins: Tensor

    def __init__(
        self,
        classes: int,
        dim: int,
        centres: int = 3,
        scale: float = 64.0,
        margin: float = 0.5,
        least_margin: float = 0.05,
        power: float = 0.25,
        class_sizes: Sequence[int] | np.ndarray | None = None,
        start: str = "uniform",
    ) -> None:
        super().__init__()
        if centres < 1 or not 0 <= least_margin <= margin or power < 0:
            raise RecipeError(
                f"subcenter got {centres} centres, margins from {least_margin} to {margin} and power {power}; "
                "take 1 centre or more, a least_margin from 0 to margin, and a power of 0 or more.",
                code="invalid-value",
            )
        self.scale = scale
        # The first axis counts a class's centres: the greatest cosine is then taken along rows in memory.
        self.centres = nn.Parameter(class_vectors(centres, classes, dim, start=start))
        sizes = np.ones(classes) if class_sizes is None else np.asarray(class_sizes)
        if sizes.shape != (classes,):
            raise RecipeError(f"there are {len(sizes)} class sizes for {classes} classes.", code="invalid-value")
        margins = torch.from_numpy(margins_by_size(sizes, margin, least_margin, power)).float()
        self.register_buffer("margins", margins, persistent=False)

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
            RecipeError: If a label is outside 0 to classes - 1.
        """
        check_batch(embeddings, labels, self.centres.shape[1])
        return cross_entropy(self.shifted_logits(embeddings, labels), labels)

    def shifted_logits(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] with the margin, whose cross entropy is the loss."""
        centres = normalize(self.centres, dim=2)
        cosines = linear(embeddings, centres.flatten(0, 1)).unflatten(1, centres.shape[:2]).amax(1)
        targets = cosines.gather(1, labels[:, None])[:, 0]
        shift = self.scale * (add_angle(targets, self.margins[labels]) - targets)
        return shift_target_logits(self.scale * cosines, labels, shift)


def margins_by_size(sizes: np.ndarray, margin: float, least_margin: float, power: float) -> np.ndarray:
    """Return margins float64 [classes] of classes of these sizes, affine in size^-power from least_margin to margin."""
    terms = np.maximum(sizes, 1).astype(np.float64) ** -power
    span = terms.max(initial=0) - terms.min(initial=1)
    if span <= 0:
        return np.full(len(sizes), margin)
    margins: np.ndarray = least_margin + (margin - least_margin) * (terms - terms.min()) / span
    return margins
