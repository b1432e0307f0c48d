"""A loss and a miner of ours in a plain PyTorch loop, with a network and an optimiser of your own.

    python examples/plain_loop.py                                                 glyphs, which are drawn from fonts
    python examples/plain_loop.py --images pictures/ --loss TripletMarginLoss --miner SemihardMiner
    python examples/plain_loop.py --loss ProxyAnchorLoss --miner none             losses that take no mined tuples

The names are those of `zoo.losses` and `zoo.miners`. R@1 and MAP@R are of classes that are not trained on.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from zoo import losses, miners, samplers
from zoo.data import load_dataset
from zoo.data.dataset import Dataset, subset
from zoo.data.folder import read_training_folder, split_classes
from zoo.data.preprocessing import Preprocessing, to_pixels
from zoo.evaluation import retrieval_metrics

PIXELS = Preprocessing(resize=32, crop=32, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
GLYPH_CLASSES = {"train": 60, "test": 30}
"""As many as are enough to see the effect in seconds."""


class Net(nn.Module):
    """Small convolutional network whose embeddings are unit rows of `dim` numbers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = [3, 24, 48, 64]
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in pairwise(widths)
        ]
        self.layers = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(widths[-1] * 4 * 4, dim))

    def forward(self, images: Tensor) -> Tensor:
        return normalize(self.layers(images), dim=1)


def read_images(dataset: Dataset) -> Tensor:
    """Return the normalised images, float32 [n, 3, 32, 32]."""
    pixels = np.stack([to_pixels(image, PIXELS) for image in dataset.images])
    mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (PIXELS.mean, PIXELS.std))
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - mean) / std


def read_splits(folder: str | None) -> tuple[Dataset, Dataset]:
    """Return the training and the test images, of different classes: of a folder, or glyphs."""
    if folder is not None:
        split = split_classes(read_training_folder(folder).dataset, 0.3, 0)
        return split.train, split.test
    splits = {name: load_dataset("glyphs", name) for name in GLYPH_CLASSES}
    train, test = (subset(split, split.labels < GLYPH_CLASSES[name], name) for name, split in splits.items())
    return train, test


def measure(net: Net, images: Tensor, labels: np.ndarray) -> dict[str, float]:
    """Return R@1 and MAP@R; each image searches all others."""
    net.eval()
    with torch.inference_mode():
        rows = torch.cat([net(batch) for batch in images.split(256)]).numpy()
    metrics = retrieval_metrics(rows, labels, k=(1,))
    return {name: metrics[name] for name in ("recall_at_1", "map_at_r")}


def make(kind: type, facts: Mapping[str, Any]) -> Any:
    """Return an object of a class, with those of the facts that it takes."""
    return kind(**{name: value for name, value in facts.items() if name in signature(kind).parameters})


def train(net: Net, images: Tensor, labels: np.ndarray, options: Namespace) -> None:
    """Train the network: the sampler draws classes, the miner chooses tuples of a batch, the loss compares them."""
    facts = {"num_classes": int(labels.max()) + 1, "embedding_size": options.dim, "probability": 0.3}
    loss = make(getattr(losses, options.loss), facts)
    miner = None if options.miner == "none" else make(getattr(miners, options.miner), facts)
    per_class = 4
    sampler = samplers.SPC(labels, per_class * min(16, facts["num_classes"]), per_class, seed=0)
    optimizer = torch.optim.AdamW([*net.parameters(), *loss.parameters()], lr=3e-3)
    net.train()
    for rows in sampler.epoch(0, options.steps):
        embeddings, targets = net(images[rows]), torch.from_numpy(labels[rows])
        value = loss(embeddings, targets, None if miner is None else miner(embeddings, targets))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def main(words: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Train, print the scores before and after, and return them."""
    parser = ArgumentParser(description="train with a loss and a miner of ours in a plain PyTorch loop")
    parser.add_argument("--images", metavar="DIR", help="one subfolder per class (default: glyphs)")
    parser.add_argument("--loss", choices=dir(losses), default="MarginLoss")
    parser.add_argument("--miner", choices=["none", *dir(miners)], default="DistanceWeightedMiner")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(words)
    torch.manual_seed(0)
    training, test = read_splits(options.images)
    net, images = Net(options.dim), read_images(test)
    scores = {"before": measure(net, images, test.labels)}
    train(net, read_images(training), training.labels, options)
    scores["after"] = measure(net, images, test.labels)
    print(f"{len(test)} images of {len(test.classes)} classes that were not trained on")
    for when, values in scores.items():
        print(f"{when:<7}", ", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    return scores


if __name__ == "__main__":
    main()
