"""Whitening is compared with plain features on classes that it was not fitted on, and dropped if it is worse."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.evaluation.whitening import compare_whitening


def clusters(noisy: bool, classes: int = 20, count: int = 10) -> tuple[np.ndarray, list[str]]:
    """Features whose classes differ along two directions; many others hold noise, weak or as strong as the classes."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(classes, 2)) * 10
    labels = np.repeat(np.arange(classes), count)
    means = centres[labels] + draw.normal(size=(len(labels), 2))
    noise = draw.normal(size=(len(labels), 20)) * (0.01 if noisy else 0)
    common = draw.normal(size=(len(labels), 1)) * (0 if noisy else 100)
    wide = np.concatenate([means, noise if noisy else common], axis=1)
    return wide.astype(np.float32), [f"class{label}" for label in labels]


def test_noise_that_whitening_enlarges_makes_it_worse() -> None:
    features, classes = clusters(noisy=True)
    compared = compare_whitening(features, classes, None)
    assert compared is not None
    assert (compared.classes, compared.images, compared.worse, compared.kept) == (6, 60, True, False)
    assert all(row.difference_interval[1] < 0 for row in compared.rows)
    asked = compare_whitening(features, classes, 2)  # without the noise
    assert asked is not None
    assert asked.kept


def test_a_direction_that_all_classes_share_makes_whitening_better() -> None:
    compared = compare_whitening(*clusters(noisy=False), None)
    assert compared is not None
    assert compared.kept
    assert next(row for row in compared.rows if row.metric == "map_at_r").difference > 0.1


def test_images_without_a_class_are_not_measured() -> None:
    features, classes = clusters(noisy=False)
    compared = compare_whitening(features, ["" if name in ("class0", "class1") else name for name in classes], None)
    assert compared is not None
    assert (compared.classes, compared.images) == (5, 50)  # three tenths of 18 classes of ten images


@pytest.mark.parametrize("classes", [1, 7])
def test_few_classes_are_not_compared(classes: int) -> None:
    features, names = clusters(noisy=True, classes=classes)
    assert compare_whitening(features, names, None) is None
