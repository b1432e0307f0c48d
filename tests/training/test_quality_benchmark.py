"""Comparison of training with other libraries: its queue, its measurement, its arms and its tables."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.benchmarks.quality import study, tables
from tests.benchmarks.quality.__main__ import main
from tests.benchmarks.quality.arms import ARMS, FROZEN, PAIRS, SEEDS, Arm, find_arms, peer_recipe
from tests.benchmarks.quality.peers import METHOD, PEERS, PeerMethod, library_version
from tests.benchmarks.quality.study import Queue, Run, class_scores
from tests.raising import raises
from tests.training import toys
from tests.training.cached.pictures import noise
from training.methods import METHODS
from training.recipe import Data, Recipe
from training.studies.runner import StudyContext, create_study_context
from training.trainer import fit
from zoo.data import DATASETS
from zoo.data.dataset import identify
from zoo.errors import RecipeError, UsageError
from zoo.evaluation import intervals_over_classes

TINY = "tiny"


def tiny_recipe(dataset: str = TINY) -> Recipe:
    recipe = toys.recipe(data=Data(dataset, side=16, validation=0.25), name=f"margin-toy-{dataset}")
    return replace(recipe, batch=replace(recipe.batch, size=8), schedule=replace(recipe.schedule, epochs=2, steps=1))


TOY = Arm("toy", "dml-zoo", tiny_recipe)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> StudyContext:
    """The context of a study with a data set of grey noise."""
    monkeypatch.setitem(DATASETS, TINY, lambda split, data: replace(noise(8), name=TINY, split=split))
    return create_study_context(torch.device("cpu"), None)


def read(folder: Path, run: Run) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f"{run.key}.json").read_text())
    return record


def test_a_killed_queue_continues_with_the_trained_epochs(
    context: StudyContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    queue = Queue([TOY], {TINY: 1}, tmp_path)
    (run,) = queue.runs()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(study, "measure", killed)
        queue.perform(context)
    assert not list(tmp_path.glob("*.json"))
    (log,) = tmp_path.rglob("log.jsonl")
    epochs = [json.loads(line) for line in log.read_text().splitlines()]
    assert queue.perform(context) == 0
    record = read(tmp_path, run)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert record["log"] == epochs  # the seconds too: no epoch was trained again
    assert (record["steps"], record["images_per_step"], record["seed"]) == (2, 8, 0)
    assert set(record["views"]) == {"embedding", "features"}
    assert not list((tmp_path / "checkpoints").iterdir())
    written = (tmp_path / f"{run.key}.json").stat().st_mtime_ns
    assert queue.perform(context) == 0
    assert (tmp_path / f"{run.key}.json").stat().st_mtime_ns == written
    assert "### tiny" in tables.markdown(tmp_path)


def test_a_run_of_an_older_recipe_is_not_finished(context: StudyContext, tmp_path: Path) -> None:
    short, long = (Queue([TOY], {TINY: 1}, tmp_path, steps=steps) for steps in (1, None))
    short.perform(context)
    (old,), (new,) = short.runs(), long.runs()
    assert old.key == new.key
    assert study.finished_record(old, tmp_path)
    assert not study.finished_record(new, tmp_path)
    long.perform(context)
    assert read(tmp_path, new)["steps"] == 2


def test_settings_change_every_recipe_of_a_queue(tmp_path: Path) -> None:
    queue = Queue(find_arms(["ms", "pml-ms"]), {"cub2010": 2}, tmp_path, settings=["optimizer.accumulate=2"])
    runs = list(queue.runs())
    assert len(runs) == 4
    for run in runs:
        assert run.recipe.optimizer.accumulate == 2
    with raises(RecipeError, "unknown-setting"):
        list(Queue(find_arms(["ms"]), {"cub2010": 1}, tmp_path, settings=["backbone.frozen=2"]).runs())


def test_a_failed_run_leaves_no_file_and_the_others_follow(context: StudyContext, tmp_path: Path) -> None:
    def impossible(dataset: str) -> Recipe:
        recipe = tiny_recipe(dataset)
        return replace(recipe, batch=replace(recipe.batch, size=4096))

    queue = Queue([Arm("impossible", "dml-zoo", impossible), TOY], {TINY: 1}, tmp_path)
    assert queue.perform(context) == 1
    assert [path.name.partition(".")[0] for path in tmp_path.glob("*.json")] == ["toy"]


def test_two_queues_do_not_share_a_folder(context: StudyContext, tmp_path: Path) -> None:
    with study.lock_folder(tmp_path), raises(UsageError, "busy"):
        Queue([TOY], {TINY: 1}, tmp_path).perform(context)


def test_validation_of_the_first_seed_selects_the_rate(tmp_path: Path) -> None:
    queue = Queue([TOY], {TINY: 3}, tmp_path, trials=True)
    runs = queue.runs()
    first, third = next(runs), next(runs)
    assert third.recipe.optimizer.lr == pytest.approx(first.recipe.optimizer.lr / 3)
    assert [run.recipe.seed for run in (first, third)] == [0, 0]
    for run, score in ((first, 0.2), (third, 0.3)):
        record = {"digest": run.recipe.digest, "validation": {"map_at_r": score, "recall_at_1": 1 - score}}
        (tmp_path / f"{run.key}.json").write_text(json.dumps(record))
    later = list(runs)
    assert [run.recipe.seed for run in later] == [1, 2]
    assert {run.recipe.optimizer.lr for run in later} == {third.recipe.optimizer.lr}
    untried = Queue([TOY], {TINY: 2}, tmp_path)
    assert {run.recipe.optimizer.lr for run in untried.runs()} == {first.recipe.optimizer.lr}


def test_scores_of_classes_equal_a_plain_loop() -> None:
    draw = np.random.default_rng(0)
    labels = np.repeat([4, 2, 7], [3, 5, 2])
    rows = draw.normal(size=(10, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    hits: dict[int, list[float]] = {2: [], 4: [], 7: []}
    precisions: dict[int, list[float]] = {2: [], 4: [], 7: []}
    for i, label in enumerate(labels.tolist()):
        order = sorted((j for j in range(10) if j != i), key=lambda j: -float(rows[i] @ rows[j]))
        relevant = [labels[j] == label for j in order[: int((labels == label).sum()) - 1]]
        hits[label].append(float(relevant[0]))
        terms = [np.mean(relevant[: n + 1]) if relevant[n] else 0.0 for n in range(len(relevant))]
        precisions[label].append(float(np.mean(terms)))
    found = class_scores(rows.astype(np.float32), labels)
    assert found["queries"] == [5, 3, 2]
    for name, values in (("recall_at_1", hits), ("map_at_r", precisions)):
        assert found["classes"][name] == pytest.approx([np.mean(values[label]) for label in (2, 4, 7)])
        assert found["scores"][name] == pytest.approx(np.mean([v for rows in values.values() for v in rows]))


def record(arm: str, seed: int, classes: list[float], rate: float = 1e-3, validation: float = 0.5) -> dict[str, Any]:
    """A record on birds whose classes have 1, 2 and 3 queries; the trunk's scores are half of the head's."""
    queries = [1, 2, 3]

    def view(dim: int, means: list[float]) -> dict[str, Any]:
        mean = float(np.average(means, weights=queries))
        names = ("recall_at_1", "map_at_r")
        return {
            "dim": dim,
            "scores": dict.fromkeys(names, mean),
            "queries": queries,
            "classes": dict.fromkeys(names, means),
        }

    return {
        "arm": arm,
        "library": "dml-zoo",
        "dataset": "cub2010",
        "seed": seed,
        "rate": rate,
        "steps": 240,
        "images_per_step": 112,
        "images_per_second": 56.0,
        "validation": {"map_at_r": validation},
        "views": {"embedding": view(512, classes), "features": view(1280, [value / 2 for value in classes])},
        "measured": asdict(identify("cub2010", list("abcdef"), [1, 2, 2, 3, 3, 3])),
        "computation": {"precision": "fp32", "memory_format": "contiguous"},
        "versions": {"torch": "2"},
        "hardware": {"cpu": "a processor"},
        "threads": 1,
        "date": "2026-11-27T00:00:00+00:00",
    }


def write(folder: Path, *records: dict[str, Any]) -> Path:
    for number, value in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(value))
    return folder


def cells(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_score_is_the_mean_over_seeds_with_an_interval_over_classes(tmp_path: Path) -> None:
    ours = [record("margin", 0, [1.0, 0.5, 0.0]), record("margin", 1, [0.0, 0.5, 1.0])]
    text = tables.markdown(write(tmp_path, *ours, {"other": 1}))
    row = cells(text, "margin")
    # By hand: (1 + 1 + 0) / 6 = 1/3 and (0 + 1 + 3) / 6 = 2/3; classes of the mean are all 0.5.
    assert row[2:5] == ["head, 512", "50.00", "50.0 to 50.0"]
    assert row[7:] == ["0.001 (of 1)", "2", "240", "26880", "2.00"]
    assert "not CUB-200-2011" in text
    assert "a processor" in text
    first = tables.group_records(ours[:1])[0]
    values = {"recall_at_1": np.array([1, 0.5, 0.5, 0, 0, 0])}
    low, high = intervals_over_classes(values, np.array([1, 2, 2, 3, 3, 3]))["recall_at_1"]
    assert tables.score_cells(first, "embedding")[4] == f"{100 * low:.1f} to {100 * high:.1f}"


def test_a_difference_pairs_classes_and_common_seeds() -> None:
    ours = [record("ms", seed, [0.6, 0.6, 0.6]) for seed in (0, 1)]
    peer = [record("pml-ms", 0, [0.5, 0.5, 0.5])]
    row = tables.difference_table(tables.group_records([*ours, *peer])).rows[0]
    assert row == ["ms", "pml-ms", "+10.00", "+10.0 to +10.0", "+10.00", "+10.0 to +10.0", "1"]


def test_the_table_has_the_selected_rate() -> None:
    trials = [record("pa", 0, [0.9] * 3, 1e-3, 0.1), record("pa", 0, [0.2] * 3, 1e-4, 0.3)]
    (result,) = tables.group_records([*trials, record("pa", 1, [0.4] * 3, 1e-4)])
    assert (result.seeds, result.trials) == ([0, 1], 2)
    assert result.score("embedding", "recall_at_1") == pytest.approx(0.3)


def test_shorter_runs_neither_count_nor_select_a_rate() -> None:
    check = {**record("pa", 0, [0.9] * 3, 1e-3, validation=0.9), "steps": 20}
    (result,) = tables.group_records([check, record("pa", 0, [0.2] * 3, 1e-4)])
    assert [(run["rate"], run["steps"]) for run in result.records] == [(1e-4, 240)]
    assert result.trials == 1


def test_runs_on_other_images_are_not_compared() -> None:
    other = record("ms", 0, [0.5] * 3)
    other["measured"]["sha256"] = "0"
    with raises(UsageError, "other-study"):
        tables.group_records([record("margin", 0, [0.5] * 3), other])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with raises(UsageError, "no-results"):
        tables.markdown(tmp_path)
    assert main(["table", str(tmp_path)]) == 1


@pytest.mark.parametrize("dataset", SEEDS)
def test_arms_differ_neither_in_images_nor_in_their_number(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, METHOD, PeerMethod)

    def shared(recipe: Recipe) -> tuple[Any, ...]:
        return recipe.data, recipe.preprocessing, recipe.augmentation, recipe.backbone.architecture

    recipes = {arm.name: arm.recipe(dataset, 1, 1.0) for arm in ARMS}
    (first, *others) = recipes.values()
    assert all(shared(recipe) == shared(first) for recipe in others)
    trained = [recipe for name, recipe in recipes.items() if name != FROZEN]
    assert len({(study.steps_of(recipe), recipe.batch.size) for recipe in trained}) == 1
    assert recipes[FROZEN].schedule.epochs == 0
    assert {name for pair in PAIRS for name in pair} <= recipes.keys()
    assert len({recipe.digest for recipe in recipes.values()}) == len(recipes)


def test_a_rate_scales_all_rates_of_a_peer() -> None:
    arm = next(arm for arm in ARMS if arm.name == "pml-pa")
    full, third = (arm.recipe("cub2010", 0, factor) for factor in (1.0, 1 / 3))
    for rate in (
        lambda recipe: recipe.optimizer.lr,
        lambda recipe: recipe.optimizer.loss_lr,
        lambda recipe: recipe.objective.method_args["head_lr"],
    ):
        assert rate(third) == pytest.approx(rate(full) / 3)


def test_arms_are_found_by_name() -> None:
    assert [arm.name for arm in find_arms(["pml-ms", "contrastive", "pml-ms"])] == ["pml-ms", "contrastive"]
    with raises(UsageError, "unknown-name"):
        find_arms(["margen"])


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_trains_trunk_and_head(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library_version(PEERS[name].library) is None:
        pytest.skip(f"{PEERS[name].library} is not installed")
    monkeypatch.setitem(METHODS, METHOD, PeerMethod)
    toy = toys.recipe(name="margin-toy")
    recipe = peer_recipe(name, replace(toy, optimizer=replace(toy.optimizer, lr=1e-3)))

    def weights(epochs: int) -> dict[str, torch.Tensor]:
        trained = replace(recipe, schedule=replace(recipe.schedule, epochs=epochs))
        return fit(trained, toys.noise(), tmp_path / str(epochs), toys.CPU, progress=False).network.state_dict()

    before, after = weights(0), weights(1)
    changed = {key.partition(".")[0] for key in after if not after[key].equal(before[key])}
    assert changed == ({"trunk", "heads"} if PEERS[name].head else {"trunk"})
    assert all(tensor.isfinite().all() for tensor in after.values())


COMMITTED = [Path(__file__).parents[2] / "docs" / "studies" / name for name in ("peers-birds-frozen", "peers-photos")]


@pytest.mark.slow
@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_the_committed_table_is_that_of_the_records(folder: Path) -> None:
    assert (folder / "report.md").read_text(encoding="utf-8") == tables.markdown(folder)
