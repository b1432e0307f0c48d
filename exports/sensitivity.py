"""Which layers take a lower precision, where all of them together would change the embeddings too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from zoo.models.onnx_runtime import INPUT, OUTPUT, open_session

GROUPS = 12
"""How many parts of a network are tried by themselves."""

BATCH = 8


def insensitive(layers: Sequence[str], change: Callable[[Sequence[str]], float], allowed: float) -> list[str]:
    """As many of the layers as change the embeddings by at most `allowed` together; none where no part of them does.

    layers: names in the order of computation. change: how much it changes the embeddings to reduce these layers alone,
    as one minus the least cosine. Neighbours are tried together, in `GROUPS` parts. Roundings are independent, so that
    their squares add up, which one minus a cosine measures: the sum over the parts that change least says how many of
    them to begin with. What they change together decides.
    """
    parts = [part.tolist() for part in np.array_split(np.array(list(layers), object), min(GROUPS, len(layers) or 1))]
    alone = np.array([change(part) for part in parts])
    order = np.argsort(alone, kind="stable")
    for number in range(int((np.cumsum(alone[order]) <= allowed).sum()), 0, -1):
        chosen = [name for part in sorted(order[:number]) for name in parts[part]]
        if change(chosen) <= allowed:
            return chosen
    return []


def without(names: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """The names but those left out, in their order."""
    absent = set(left_out)
    return [name for name in names if name not in absent]


def embed(path: Path, pixels: np.ndarray) -> np.ndarray:
    """A graph's output on pixels uint8 [n, h, w, c], by ONNX Runtime on the CPU: [n, dim]."""
    session = open_session(path, "cpu")
    return np.concatenate(
        [session.run([OUTPUT], {INPUT: pixels[i : i + BATCH]})[0] for i in range(0, len(pixels), BATCH)]
    )


def least_cosine(rows: np.ndarray, expected: np.ndarray) -> float:
    """Of unit rows [n, dim]; NaN, which would compare as neither less nor more, counts as -1."""
    return float(np.nan_to_num((rows * expected).sum(1), nan=-1.0).min())
