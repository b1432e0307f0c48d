"""Which way is up (Gidaris et al. 2018, Unsupervised Representation Learning by Predicting Image Rotations)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.methods.auxiliary.task import Auxiliary
from training.minibatch import Minibatch


class Rotation(Auxiliary):
    """Cross entropy of a linear classifier on the head that tells by how many quarters an image was turned.

    Every image is seen in all four turns, so that a step takes four passes through the trunk. Images are square.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self._head = (head,)
        self.classifier = nn.Linear(head.out_features, 4)

    def loss(self, raw: Tensor, batch: Minibatch) -> Tensor:
        # One pass a turn: the features of several processes come in the order of the turns then.
        turned = [self._head[0](batch.features_of(batch.images.rot90(turn, (2, 3)))) for turn in (1, 2, 3)]
        turns = torch.arange(4, device=raw.device).repeat_interleave(len(raw))
        return cross_entropy(self.classifier(torch.cat([raw, *turned])), turns)
