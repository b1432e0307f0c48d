"""A toy model whose embeddings differ between images, and pictures to calibrate it on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.models import CARD
from zoo.files import sha256_of
from zoo.models.card import Card
from zoo.models.golden import write_golden
from zoo.models.network import Network, create_heads, create_trunk, feature_count, save_network
from zoo.models.torch_runtime import open_model


def make_toy(folder: Path, card: Card = CARD) -> Card:
    """Write a toy with random weights and batch norm statistics of random pictures, so that no layer is dead."""
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    trunk = create_trunk(card.architecture, card.preprocessing.channels, card.architecture_args)
    network = Network(trunk, create_heads(card.heads, feature_count(trunk)))
    pixels = torch.from_numpy(np.stack([picture(i, 20, 20) for i in range(64)])).float()
    images = (pixels.permute(0, 3, 1, 2) / 255 - 0.4) / 0.25
    with torch.no_grad():
        for _ in range(30):
            network.train()(images)
    network.eval()
    files = save_network(network, card, folder)
    card = dataclasses.replace(card, files={name: sha256_of(folder / name) for name in files})
    card.write(folder)
    golden = [picture(1000 + i, 30 + i, 41 - i) for i in range(4)]
    write_golden(folder, card, golden, open_model(folder, card, device="cpu")[0])
    return card


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """Draw a random colour gradient with some grain: uint8 [height, width, 3]."""
    draw = np.random.default_rng(seed)
    down, across = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[None, :, None]
    base, slope, other = draw.uniform(0, 255, (3, 1, 1, 3))
    grain = draw.normal(0, 20, (height, width, 3))
    image: np.ndarray = np.clip(base + (slope - 128) * down + (other - 128) * across + grain, 0, 255).astype(np.uint8)
    return image


def write_pictures(folder: Path, count: int, first: int = 2000) -> Path:
    folder.mkdir(parents=True)
    for seed in range(first, first + count):
        Image.fromarray(picture(seed, 28, 24)).save(folder / f"{seed}.png")
    return folder
