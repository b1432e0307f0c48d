"""Ensemble recipes: their members are trained once, and joined."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.training.toys import noise, recipe
from training import api
from training.recipe import EnsembleRecipe, Schedule


def test_members_are_trained_once_and_joined(own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [np.full((16, 16, 3), 40 * i, np.uint8) for i in range(4)]
    data = dataclasses.replace(noise(), golden=images)
    monkeypatch.setattr(api.training_data, "prepare", lambda *_: data)
    members = tuple(recipe(name=f"pair.{seed}", seed=seed, schedule=Schedule(1, 1)) for seed in range(2))
    ensemble = EnsembleRecipe("pair", "pair", members)
    first = api.train(ensemble, progress=False, evaluate=False)
    assert first.epochs == 2
    joined = zoo.load("pair").embed(images)
    alone = np.concatenate([zoo.load(f"pair.{seed}").embed(images) for seed in range(2)], 1)
    np.testing.assert_allclose(joined, alone / np.linalg.norm(alone, axis=1, keepdims=True), atol=1e-6)
    assert api.train(ensemble, progress=False, evaluate=False).epochs == 0
    changed = dataclasses.replace(ensemble, members=(members[0], dataclasses.replace(members[1], seed=5)))
    assert api.train(changed, progress=False, evaluate=False).epochs == 1
