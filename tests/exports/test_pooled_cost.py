"""What precisions cost on average of several models: by hand, and of real folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from exports import pooled_cost
from exports.pooled_cost import mean_of, pooled
from zoo.errors import UsageError
from zoo.evaluation.metrics import PerQuery
from zoo.registry import find


def measured(*recalls: float) -> PerQuery:
    values = {name: np.array(recalls) for name in ("recall_at_1", "map_at_r")}
    return PerQuery(values, np.arange(len(recalls)), np.array([0, 0, 1, 1]), 0)


def test_each_query_has_the_mean_of_the_models() -> None:
    both = mean_of([measured(1, 0, 0, 1), measured(1, 1, 0, 0)])
    np.testing.assert_array_equal(both.values["recall_at_1"], [1, 0.5, 0, 0.5])
    assert both.means()["map_at_r"] == 0.5


def test_the_interval_over_seeds_is_students() -> None:
    before = [measured(1, 1, 1, 1)] * 3
    after = [measured(1, 1, 1, 0), measured(1, 1, 0, 0), measured(1, 1, 1, 1)]
    found = pooled_cost._over_seeds(before, after)
    assert found["changes"] == [-0.25, -0.5, 0.0]
    half = 4.302653 * 0.25 / 3**0.5  # the 97.5 % point of Student's t with two degrees of freedom
    assert found["interval"] == pytest.approx([-0.25 - half, -0.25 + half], abs=1e-4)


def model(folder: Path, seed: int, lr: float = 1e-3) -> Path:
    shutil.copytree(find("margin-conv4-glyphs"), folder)
    recipe = {"name": f"margin-{seed}", "seed": seed, "optimizer": {"lr": lr}}
    (folder / "recipe.json").write_text(json.dumps({"recipe": recipe}))
    return folder


def test_only_models_of_one_recipe_and_different_seeds_are_pooled(tmp_path: Path) -> None:
    one, again = model(tmp_path / "a", 1), model(tmp_path / "b", 1)
    other = model(tmp_path / "c", 2, lr=1e-4)
    for folders in ([one], [one, again], [one, other]):
        with pytest.raises(UsageError, match="models of one recipe, two or more, each trained with a seed of its own"):
            pooled(folders)
