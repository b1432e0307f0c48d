"""Small model folders for tests, with random weights of the project's own architecture."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from zoo.data.preprocessing import Preprocessing
from zoo.files import sha256_of
from zoo.models.card import Card, Head
from zoo.models.golden import write_golden

CARD = Card(
    name="toy-conv4-noise",
    method="toy",
    backbone="conv4",
    dataset="noise",
    architecture="conv4",
    architecture_args={"widths": [4, 8, 8, 16]},
    dim=12,
    preprocessing=Preprocessing(24, 20, "RGB", mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3)),
    heads=(Head("first", 8), Head("second", 4)),
)


def make_model(folder: Path, card: Card = CARD, seed: int = 0) -> Card:
    """Write a model folder with random weights and with running statistics of noise, so that no layer is dead."""
    import torch

    from zoo.models.network import Network, create_heads, create_trunk, feature_count, save_network
    from zoo.models.torch_runtime import open_model

    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    trunk = create_trunk(card.architecture, card.preprocessing.channels, card.architecture_args)
    network = Network(trunk, create_heads(card.heads, feature_count(trunk)))
    shape = card.preprocessing.channels, card.preprocessing.crop, card.preprocessing.crop
    for norm in (module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        norm.momentum = None  # use the statistics of the batch alone
    with torch.no_grad():
        network.train()(torch.randn(32, *shape))
    network.eval()
    files = save_network(network, card, folder)
    card = dataclasses.replace(card, files={name: sha256_of(folder / name) for name in files})
    card.write(folder)
    draw = np.random.default_rng(seed)
    images = [draw.integers(0, 256, (30 + i, 41 - i, 3), np.uint8) for i in range(3)]
    write_golden(folder, card, images, open_model(folder, card, device="cpu")[0])
    return card
