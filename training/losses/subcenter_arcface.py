"""Sub-center ArcFace (Deng et al. 2020, Sub-center ArcFace: Boosting Face Recognition by Large-Scale Noisy Web Faces).

    L = -mean log(exp(z_y) / (exp(z_y) + sum_{j != y} exp(scale cos theta_j))),  z_y = scale cos(theta_y + margin_y)
    cos theta_c = max_k cos(embedding, w_ck)

w_ck are the centres of class c. Margins by class size are those of Ha et al. 2020, Google Landmark Recognition 2020
Competition Third Place Solution: an affine function of n_c^-power, n_c the number of images of class c, so that small
classes have large margins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from training.batch import check_classes, read_batch
from training.losses.arcface import add_angle
from training.losses.base import unit_vectors
from training.losses.proxies import ClassificationLoss, shift_target_logits
from training.pml import ClassParts
from zoo.errors import RecipeError


class SubCenterArcFaceLoss(ClassificationLoss):
    """ArcFace with several centres per class, of which the nearest counts, and with a margin for each class.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        margin: Angle in degrees of the smallest class, and of all classes if they have equal sizes.
        scale: Factor of the cosines.
        sub_centers: Centres per class.
        least_margin: Angle of the largest class; equal to `margin`, all margins are, as in Deng et al. 2020.
        power: Exponent of the class sizes, 1/4 in Ha et al. 2020.
        class_sizes: Number of training images of each class; an empty class counts as one image. None: equal sizes.
        start: Distribution of the first class vectors, see `class_vectors`.
        parts: See `MetricLoss` and `ClassVectorLoss`.

    Raises:
        RecipeError: If a number is out of range, or there is not one size per class.
    """

    main_constant = "scale"
    margins: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64.0,
        sub_centers: int = 3,
        *,
        least_margin: float = 2.86,
        power: float = 0.25,
        class_sizes: Sequence[int] | np.ndarray | None = None,
        start: str = "normal",
        **parts: Unpack[ClassParts],
    ) -> None:
        if sub_centers < 1 or not 0 <= least_margin <= margin or power < 0:
            raise RecipeError(
                f"subcenter got {sub_centers} centres, margins from {least_margin} to {margin} and power {power}; "
                "take 1 centre or more, a least_margin from 0 to margin, and a power of 0 or more.",
                code="invalid-value",
            )
        # The first axis counts a class's centres: the greatest cosine is then taken along rows in memory.
        super().__init__(num_classes, embedding_size, start, sub_centers, **parts)
        self.margin, self.scale, self.sub_centers = margin, scale, sub_centers
        self.least_margin, self.power = least_margin, power
        sizes = np.ones(num_classes) if class_sizes is None else np.asarray(class_sizes)
        if sizes.shape != (num_classes,):
            raise RecipeError(f"there are {len(sizes)} class sizes for {num_classes} classes.", code="invalid-value")
        margins = torch.from_numpy(np.radians(margins_by_size(sizes, margin, least_margin, power))).float()
        self.register_buffer("margins", margins, persistent=False)

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows, without the margin."""
        return self.scale * self._cosines(rows)

    def shifted_logits(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the logits [b, classes] of unit rows with the margin, whose cross entropy is the loss."""
        cosines = self._cosines(rows)
        targets = cosines.gather(1, labels[:, None])[:, 0]
        shift = self.scale * (add_angle(targets, self.margins[labels].to(rows.dtype)) - targets)
        return shift_target_logits(self.scale * cosines, labels, shift)

    @torch.no_grad()
    def get_outliers(self, embeddings: Tensor, labels: Tensor, threshold: float = 75.0) -> tuple[Tensor, Tensor]:
        """Return the samples that are far from their class, and the dominant centre of each class (section 3.3).

        A class's dominant centre is the one that most of its samples are nearest to.

        Args:
            embeddings: [b, d].
            labels: [b].
            threshold: An outlier's angle to the dominant centre of its class is larger, in degrees.

        Returns:
            Indices of the outliers, int64 [t], and the dominant centres as columns [d, classes], 0 of a class without
            samples.
        """
        batch = read_batch(embeddings, labels)
        check_classes(batch.labels, self.num_classes)
        cosines = linear(batch.rows, unit_vectors(self.centres, batch.rows).flatten(0, 1))
        own = cosines.unflatten(1, self.centres.shape[:2]).transpose(1, 2)[torch.arange(len(labels)), batch.labels]
        votes = torch.zeros(self.num_classes, self.sub_centers, dtype=torch.int64, device=embeddings.device)
        votes.index_put_((batch.labels, own.argmax(1)), torch.ones_like(batch.labels), accumulate=True)
        dominant, has_samples = votes.argmax(1), votes.any(1)
        is_far = own.gather(1, dominant[batch.labels, None])[:, 0] < math.cos(math.radians(threshold))
        centres = self.centres[dominant, torch.arange(self.num_classes)] * has_samples[:, None]
        return is_far.nonzero()[:, 0], centres.T.to(batch.rows.dtype)

    def _cosines(self, rows: Tensor) -> Tensor:
        """Return the cosines [b, classes] of unit rows with the nearest centre of each class."""
        centres = unit_vectors(self.centres, rows)
        return linear(rows, centres.flatten(0, 1)).unflatten(1, centres.shape[:2]).amax(1)


def margins_by_size(sizes: np.ndarray, margin: float, least_margin: float, power: float) -> np.ndarray:
    """Return margins float64 [classes] of classes of these sizes, affine in size^-power from least_margin to margin."""
    terms = np.maximum(sizes, 1).astype(np.float64) ** -power
    span = terms.max(initial=0) - terms.min(initial=1)
    if span <= 0:
        return np.full(len(sizes), margin)
    margins: np.ndarray = least_margin + (margin - least_margin) * (terms - terms.min()) / span
    return margins
