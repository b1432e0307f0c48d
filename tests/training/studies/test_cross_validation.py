"""Class-disjoint folds: their classes, the held-out data, and the end of training by patience."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.raising import raises
from tests.training.toys import CPU, noise, recipe
from training.recipe import Schedule
from training.studies.cross_validation import folds, hold_out
from training.trainer import fit
from zoo.errors import UsageError


@pytest.mark.parametrize(("classes", "count"), [(100, 4), (136, 4), (50, 4), (7, 3), (4, 2)])
def test_folds_are_contiguous_disjoint_and_cover_all_classes(classes: int, count: int) -> None:
    parts = folds(classes, count)
    assert len(parts) == count
    assert np.concatenate(parts).tolist() == list(range(classes))
    assert all((np.diff(part) == 1).all() for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_folds_of_a_single_class_are_refused() -> None:
    with raises(UsageError, "invalid-value") as caught:
        folds(7)
    assert "7 training classes" in str(caught.value)


def test_held_out_classes_are_not_in_the_training_data() -> None:
    all_classes = dataclasses.replace(noise(60, 15), turns=4)
    labels = np.arange(60) % 15
    squares = all_classes.squares.numpy()
    for held_out in folds(15):
        data = hold_out(all_classes, held_out, labels, squares)
        assert data.validation is not None
        pixels, validated = data.validation
        assert set(validated) == set(held_out)
        assert len(data.squares) + len(pixels) == 60
        trained = [all_classes.squares[i] for i in range(60) if labels[i] not in held_out]
        assert torch.equal(data.squares, torch.stack(trained))
        assert data.classes == 4 * (15 - len(held_out))
        assert data.labels.tolist()[:8] == [0, 1, 2, 3, 4, 5, 6, 7] or held_out[0] > 0
        # A sample's class is its image's, under its new number.
        images = labels[~np.isin(labels, held_out)]
        names = {new: {images[i // 4] for i in np.flatnonzero(data.labels // 4 == new)} for new in range(3)}
        assert all(len(originals) == 1 for originals in names.values())
        assert [source in data.sources for source in all_classes.sources] == [label not in held_out for label in labels]


def test_patience_ends_a_run_and_a_resumed_run(tmp_path: Path) -> None:
    data = hold_out(noise(), np.arange(5), np.arange(60) % 15, noise().squares.numpy())
    long = recipe(schedule=Schedule(40, 1, patience=2))
    trained = fit(long, data, tmp_path, CPU, progress=False)
    scores = [record["validation_map_at_r"] for record in trained.log]
    assert trained.best_epoch == 1 + int(np.argmax(scores))
    assert len(scores) == trained.best_epoch + 2 < 40
    again = fit(long, data, tmp_path, CPU, progress=False)
    assert (again.resumed_at, len(again.log)) == (len(scores), len(scores))


@pytest.mark.slow
@pytest.mark.parametrize(("every", "patience"), [(2, 9), (5, 14), (3, 1)])
def test_validation_at_intervals_ends_a_run_where_the_published_code_ends_it(
    every: int, patience: int, tmp_path: Path
) -> None:
    """The published code looks at every k-th epoch alone, and stops when the best one is more than the patience ago."""
    data = hold_out(noise(), np.arange(5), np.arange(60) % 15, noise().squares.numpy())
    long = recipe(schedule=Schedule(60, 1, validate_every=every, patience=patience))
    trained = fit(long, data, tmp_path, CPU, progress=False)
    scores = {r["epoch"]: r["validation_map_at_r"] for r in trained.log if "validation_map_at_r" in r}
    best = stopped = 0
    for epoch in range(1, 61):
        if epoch % every == 0:
            if not best or scores[epoch] > scores[best]:
                best = epoch
            if epoch - best > patience:
                break
        stopped = epoch + 1
    assert list(scores) == list(range(every, min(stopped, 60) + 1, every))
    assert (trained.best_epoch, len(trained.log)) == (best, min(stopped, 60))


def test_the_last_epoch_is_validated_even_between_intervals(tmp_path: Path) -> None:
    data = hold_out(noise(), np.arange(5), np.arange(60) % 15, noise().squares.numpy())
    trained = fit(recipe(schedule=Schedule(5, 1, validate_every=3)), data, tmp_path, CPU, progress=False)
    assert [r["epoch"] for r in trained.log if "validation_map_at_r" in r] == [3, 5]
