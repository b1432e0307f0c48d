"""A small CLIP that is trained here in half a minute: pictures of two colours, and the words for them."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch.nn import functional

from tests.zoo.joint_hub import MEAN, SIDE, STD, Published, clip_tokenizer, new_clip, published_clip

COLOURS = {
    "black": (20, 20, 20),
    "white": (240, 240, 240),
    "red": (214, 40, 40),
    "yellow": (250, 220, 40),
    "green": (40, 160, 60),
    "blue": (40, 70, 200),
    "purple": (130, 50, 160),
}
NAMES = tuple(f"{colour} on {ground}" for colour, ground in permutations(COLOURS, 2))
TEMPLATES = ("{}", "a photo of {}")
UNSEEN = tuple(name for place, name in enumerate(NAMES) if place % 7 == place // 7 % 7)
"""One ground of each colour; the pairs are in no picture and no text of the training."""
BATCH, STEPS, RATE, EACH = 64, 300, 1e-3, 40


def draw(name: str, rng: np.random.Generator) -> np.ndarray:
    """Return a picture of a shape of one colour on a ground of another, of random size and place, with noise."""
    fill, ground = (
        tuple(int(value) for value in np.clip(np.array(COLOURS[colour]) + rng.normal(0, 12, 3), 0, 255))
        for colour in name.split(" on ")
    )
    image = Image.new("RGB", (SIDE, SIDE), ground)
    width, height = (int(side) for side in rng.integers(10, 22, 2))
    x, y = int(rng.integers(1, SIDE - width)), int(rng.integers(1, SIDE - height))
    pen = ImageDraw.Draw(image)
    (pen.ellipse if rng.random() < 0.5 else pen.rectangle)((x, y, x + width, y + height), fill)
    pixels = np.asarray(image, np.float64)
    return np.clip(pixels + rng.normal(0, 10, pixels.shape), 0, 255).astype(np.uint8)


def write_pictures(folder: Path, names: tuple[str, ...], each: int, seed: int) -> Path:
    """Write pictures into a folder per name."""
    rng = np.random.default_rng(seed)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            Image.fromarray(draw(name, rng)).save(folder / name / f"{number}.png")
    return folder


def trained_clip(seed: int = 0) -> Published:
    """Train a CLIP by its own loss (Radford et al. 2021, figure 3) on all names but the unseen ones."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    words = (*COLOURS, "on", "a", "photo", "of")
    tokenizer = clip_tokenizer(words)
    model = new_clip(tokenizer, patch=8, hidden_size=64, intermediate_size=128)
    known = [name for name in NAMES if name not in UNSEEN]
    pool = {name: [draw(name, rng) for _ in range(EACH)] for name in known}
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    model.train()
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))
        names = rng.choice(known, BATCH)
        pixels = torch.from_numpy(
            np.stack([pool[name][rng.integers(EACH)][:, :: rng.choice([-1, 1])] for name in names])
        )
        planes = ((pixels / 255.0 - mean) / std).permute(0, 3, 1, 2)
        different, labels = np.unique(names, return_inverse=True)
        texts = [rng.choice(TEMPLATES).format(name) for name in different]
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        images = functional.normalize(model.get_image_features(pixel_values=planes).pooler_output, dim=1)
        rows = functional.normalize(model.get_text_features(**inputs).pooler_output, dim=1)
        logits = model.logit_scale.exp() * images @ rows.T
        same = functional.one_hot(torch.from_numpy(labels), len(different)).float()
        loss = functional.cross_entropy(logits, torch.from_numpy(labels))
        loss = loss + functional.cross_entropy(logits.T, same.T / same.T.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return published_clip(model, tokenizer)
