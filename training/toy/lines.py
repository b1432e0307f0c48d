"""The toy of Roth et al. 2020, Revisiting (figures 6 and 11, appendix E): lines in the plane, embedded on the circle.

The four training lines are pieces of the diagonal y = x: x + y tells them apart, x - y says nothing. Of the four test
lines two are vertical and two horizontal; x - y tells them apart, x + y does so in part. Coordinates, ReLUs and
constants are those of the published script.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.losses.contrastive import Contrastive
from training.miners.rho import Rho
from training.tuples import Pairs, Triplets, negative_mask, positive_mask, to_pairs

SAMPLES, PLACES = 15, 100
"""Samples a line, drawn without replacement from so many even places along it."""

TRAIN_LINES = tuple(((low, low), (high, high)) for low, high in ((0.1, 0.3), (0.35, 0.55), (0.6, 0.8), (0.85, 1.05)))
TEST_LINES = (
    ((0.2, 0.2), (0.2, 0.4)),
    ((0.2, 0.55), (0.2, 0.85)),
    ((0.4, 0.2), (0.6, 0.2)),
    ((0.7, 0.2), (0.9, 0.2)),
)
"""Each line's ends, ((x, y), (x, y))."""

LABELS = np.repeat(np.arange(4), SAMPLES)
"""int64 [60]: the line of each row, in either split."""

WIDTH, BATCH, RATE, STEPS, NEGATIVE_MARGIN = 30, 24, 0.03, 200, 0.1


class Split(NamedTuple):
    """Rows [60, 2] of the training and of the test lines; row i lies on line `LABELS[i]`."""

    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Form:
    """A way to train. rho: with exchanges; published: of the published miner's form; positive_term: with the pull."""

    rho: bool = True
    published: bool = False
    positive_term: bool = True


FORMS = {
    "none": Form(rho=False),
    "paper": Form(),
    "published-miner": Form(published=True),
    "published-script": Form(positive_term=False),
}
"""none: plain contrastive loss. paper: exchanged triplets are (a, p, p). published-miner: they are (a, a, p).

published-script: (a, p, p), and the loss has its negative term alone, as in the regularised run of the script that was
published for the figure. With probability 0 that is a run without positive term and without exchange.
"""


class ToyNet(nn.Module):
    """A perceptron with two hidden layers of 30 units; points [b, 2] to unit rows [b, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)
        )

    def forward(self, points: Tensor) -> Tensor:
        return normalize(self.layers(points), dim=1)


def draw_lines(seed: int) -> Split:
    """The points of a seed, float32."""
    rng = np.random.default_rng(seed)
    train, test = (np.concatenate([_along(line, rng) for line in lines]) for lines in (TRAIN_LINES, TEST_LINES))
    return Split(train, test)


def _along(line: tuple[tuple[float, float], tuple[float, float]], rng: np.random.Generator) -> np.ndarray:
    start, end = np.array(line)
    places: np.ndarray = np.sort(rng.choice(PLACES, SAMPLES, replace=False)) / (PLACES - 1)
    return (start + places[:, None] * (end - start)).astype(np.float32)


def every_triplet(embeddings: Tensor, labels: Tensor) -> Triplets:
    """All triplets of a batch, as in the published script; labels int64 [b]."""
    both = positive_mask(labels)[:, :, None] & negative_mask(labels)[:, None, :]
    return Triplets(*both.nonzero(as_tuple=True))


def miner_of(form: Form, probability: float) -> Callable[[Tensor, Tensor], Triplets | Pairs]:
    """What the loss of that form counts. Raises `RecipeError` for a probability outside 0..1."""
    mine = Rho(probability, every_triplet, form.published) if form.rho else every_triplet
    return mine if form.positive_term else lambda embeddings, labels: negatives_alone(mine(embeddings, labels))


def negatives_alone(tuples: Triplets | Pairs) -> Pairs:
    """Their negative pairs, and no positive ones."""
    pairs = to_pairs(tuples)
    none = pairs.anchors_n[:0]
    return Pairs(none, none, pairs.anchors_n, pairs.negatives)


def train(form: Form, probability: float, seed: int, steps: int = STEPS) -> Split:
    """The embeddings of a seed's points after so many steps, float32 unit rows; 0 steps: by the untrained net.

    A step is Adam's, on 24 of the 60 training points drawn without replacement, with all triplets among them. The seed
    decides points, initial weights and batches, so that the forms differ in nothing else, and rho's exchanges. Torch's
    global generator is left as it was.
    """
    lines, rng = draw_lines(seed), np.random.default_rng((seed, 1))
    points, labels = torch.from_numpy(lines.train), torch.from_numpy(LABELS)
    mine, loss = miner_of(form, probability), Contrastive(4, negative_margin=NEGATIVE_MARGIN)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ToyNet()
        optimiser = torch.optim.Adam(net.parameters(), RATE)
        for _ in range(steps):
            batch = torch.from_numpy(rng.choice(len(points), BATCH, replace=False))
            embeddings = net(points[batch])
            optimiser.zero_grad()
            loss(embeddings, labels[batch], mine(embeddings, labels[batch])).backward()
            optimiser.step()
    with torch.no_grad():
        return Split(net(points).numpy(), net(torch.from_numpy(lines.test)).numpy())
