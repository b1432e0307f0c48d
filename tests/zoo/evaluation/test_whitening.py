"""Whitening is compared with plain features on classes that it was not fitted on, and dropped if it is worse."""

from __future__ import annotations

import numpy as np
import pytest

from tests.raising import raises
from zoo.data.dataset import Dataset
from zoo.errors import UsageError
from zoo.evaluation.whitening import compare_whitening

MODEL = {"name": "toy", "fingerprint": "f" * 64}


def clusters(noisy: bool, classes: int = 20, count: int = 10) -> tuple[np.ndarray, Dataset]:
    """Features whose classes differ along two directions; many others hold noise, weak or as strong as the classes."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(classes, 2)) * 10
    labels = np.repeat(np.arange(classes), count)
    means = centres[labels] + draw.normal(size=(len(labels), 2))
    noise = draw.normal(size=(len(labels), 20)) * (0.01 if noisy else 0)
    common = draw.normal(size=(len(labels), 1)) * (0 if noisy else 100)
    wide = np.concatenate([means, noise if noisy else common], axis=1)
    return wide.astype(np.float32), of_classes([f"class{label}" for label in labels])


def of_classes(names: list[str]) -> Dataset:
    """Images of these classes, which are not opened."""
    classes, labels = np.unique(names, return_inverse=True)
    files = [f"missing/{number}.png" for number in range(len(names))]
    return Dataset("folder", "all", files, labels, tuple(classes.tolist()), files)


def test_noise_that_whitening_enlarges_makes_it_worse() -> None:
    features, classes = clusters(noisy=True)
    compared = compare_whitening(features, classes, MODEL, None, shrink=0)
    assert (compared.data.classes, compared.data.images, compared.worse, compared.kept) == (6, 60, True, False)
    assert all(row.difference_interval[1] < 0 for row in compared.rows)
    asked = compare_whitening(features, classes, MODEL, 2)  # without the noise
    assert (asked.dim, asked.kept) == (2, True)
    shrunk = compare_whitening(features, classes, MODEL, None)
    assert shrunk.kept, "the default enlarges noise less"


def test_a_direction_that_all_classes_share_makes_whitening_better() -> None:
    compared = compare_whitening(*clusters(noisy=False), MODEL, None, shrink=0)
    assert compared.kept
    assert next(row for row in compared.rows if row.metric == "map_at_r").difference > 0.1


def test_images_without_a_class_are_not_measured() -> None:
    features, images = clusters(noisy=False)
    names = [images.classes[label] for label in images.labels]
    few = of_classes(["" if name in ("class0", "class1") else name for name in names])
    compared = compare_whitening(features, few, MODEL, None)
    assert (compared.data.classes, compared.data.images, compared.fitted_images) == (
        5,
        50,
        150,
    )  # three tenths of 18 classes of ten images


@pytest.mark.parametrize("classes", [1, 7])
def test_few_classes_are_not_compared(classes: int) -> None:
    with raises(UsageError, "too-few-samples"):
        compare_whitening(*clusters(noisy=True, classes=classes), MODEL, None)
