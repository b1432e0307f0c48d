"""Comparisons of models that were measured here, calculated by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.raising import raises
from tests.training.studies.test_compare import RECIPE, model
from training.studies.compare import LEARNT, NO_EPOCH, NOT_TRAINED, SEEN, find_runs
from training.studies.compare_own import own_scores
from training.studies.compare_page import origin_text
from zoo.cli.main import main
from zoo.errors import UsageError
from zoo.models.card import read_card

CONTRASTIVE = {**RECIPE, "objective": {"loss": "contrastive"}}


@pytest.fixture
def two_methods(own_zoo: Path) -> Path:
    """Margin with the seeds 0, 1 and 2, contrastive with 0, 1, 2 and 3, and a model that is on its own."""
    for seed, value in enumerate((0.60, 0.62, 0.64)):
        model(own_zoo, f"margin-r50-cub-seed{seed}", {**RECIPE, "seed": seed}, recall_at_1=value)
    for seed, value in enumerate((0.61, 0.64, 0.66, 0.10)):
        name = "contrastive" if seed == 0 else f"contrastive-seed{seed}"
        model(own_zoo, name, {**CONTRASTIVE, "seed": seed}, recall_at_1=value)
    model(own_zoo, "alone", None, recall_at_1=0.5, mrr=0.7)
    return own_zoo


def on_cub(**options: object) -> dict:
    rows = own_scores(find_runs(), dataset="cub", **options)  # the shipped models were measured on glyphs
    return {(row.name, row.metric): row for row in rows}


def test_seeds_are_one_row_and_differences_are_paired(two_methods: Path) -> None:
    """.01, .02, .02 by seed: mean .016667, sd .0057735; t(2) = 4.303 times sd / sqrt 3 is .014343."""
    rows = on_cub(against="margin-r50-cub")
    assert {name for name, _ in rows} == {"margin-r50-cub", "contrastive", "alone"}
    margin, contrastive = rows["margin-r50-cub", "recall_at_1"], rows["contrastive", "recall_at_1"]
    assert margin.ours.value == pytest.approx(0.62)
    assert margin.ours.seeds == (0, 1, 2)
    assert margin.difference is None
    assert contrastive.ours.value == pytest.approx((0.61 + 0.64 + 0.66 + 0.10) / 4)
    assert contrastive.difference is not None
    assert contrastive.difference.seeds == (0, 1, 2)
    assert contrastive.difference.estimate.mean == pytest.approx(0.05 / 3)
    assert contrastive.difference.estimate.interval == pytest.approx(
        (0.016667 - 0.014343, 0.016667 + 0.014343), abs=1e-5
    )
    assert rows["alone", "recall_at_1"].difference is None
    assert rows["alone", "recall_at_1"].ours.interval == pytest.approx((0.49, 0.51))


def test_the_mean_over_seeds_names_its_models_and_states_the_protocol_once(own_zoo: Path) -> None:
    """Two seeds kept other epochs and were measured alike."""
    names = ("first", "second")
    cards = {}
    for seed, name in enumerate(names):
        folder = model(own_zoo, name, {**RECIPE, "seed": seed}, best=12 + seed, recall_at_1=0.6)
        cards[name] = read_card(folder)
    score = on_cub()["first", "recall_at_1"].ours
    text = origin_text(score)
    assert [text.count(part) for part in ("leave-one-out, cosine, exact", "torch fp32")] == [1, 1]
    assert [text.count(part) for part in ("(12 of 150)", "(13 of 150)")] == [1, 1]
    assert all(f"{name} {card.fingerprint[:8]}" in text for name, card in cards.items())


def test_every_seed_is_compared_with_weights_that_were_not_trained(two_methods: Path) -> None:
    """Margin .60, .62, .64 less .50: mean .12, sd .02; t(2) = 4.303 times sd / sqrt 3 is .04969."""
    folder = model(two_methods, "backbone", None, recall_at_1=0.5)
    (folder / "card.json").write_text((folder / "card.json").read_text().replace('"margin"', '"pretrained"'))
    less = on_cub(against="backbone", metrics=["recall_at_1"])["margin-r50-cub", "recall_at_1"].difference
    more = on_cub(against="margin-r50-cub", metrics=["recall_at_1"])["backbone", "recall_at_1"].difference
    assert less is not None
    assert more is not None
    assert less.seeds == more.seeds == (0, 1, 2)
    assert (less.estimate.mean, more.estimate.mean) == (pytest.approx(0.12), pytest.approx(-0.12))
    assert less.estimate.interval == pytest.approx((0.12 - 0.04969, 0.12 + 0.04969), abs=1e-4)


def test_an_untrained_run_is_not_said_to_have_a_last_epoch(own_zoo: Path) -> None:
    model(own_zoo, "mine", {**RECIPE, "schedule": {"epochs": 0}}, recall_at_1=0.5)
    (run,) = (run for run in find_runs() if run.name == "mine")
    assert run.selection == NO_EPOCH


def test_named_models_without_a_score_and_unknown_metrics_are_reported(
    two_methods: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(two_methods, "unmeasured", None)
    assert main(["benchmark", "models", "alone", "unmeasured", "--dataset", "cub"]) == 0
    assert "unmeasured" in capsys.readouterr().err
    with raises(UsageError, "unknown-name") as caught:
        on_cub(metrics=["recal_at_1"])
    assert "'recall_at_1'" in str(caught.value)


def test_pretrained_weights_are_not_said_to_be_trained(own_zoo: Path) -> None:
    folder = model(own_zoo, "backbone", None, recall_at_1=0.5)
    (folder / "card.json").write_text((folder / "card.json").read_text().replace('"margin"', '"pretrained"'))
    (run,) = (run for run in find_runs() if run.name == "backbone")
    assert run.selection == NOT_TRAINED


@pytest.mark.parametrize(("split", "said"), [("all", True), ("test", False)])
def test_a_score_on_images_that_may_have_been_learnt_says_so(own_zoo: Path, split: str, said: bool) -> None:
    folder = model(own_zoo, "mine", {**RECIPE, "data": {"dataset": "folder"}}, recall_at_1=0.5)
    path = folder / "results.json"
    (result,) = json.loads(path.read_text())
    path.write_text(json.dumps([{**result, "dataset": "folder", "split": split}]))
    (row,) = own_scores(find_runs(), names=["mine"])
    assert (SEEN in row.ours.protocol) == said


def test_measurements_of_other_images_are_not_compared(two_methods: Path) -> None:
    for seed in (1, 2):
        path = two_methods / "models" / f"contrastive-seed{seed}" / "results.json"
        (result,) = json.loads(path.read_text())
        path.write_text(json.dumps([result | {"queries": 11}]))
    less = on_cub(against="margin-r50-cub-seed1")["contrastive", "recall_at_1"].difference
    assert less is not None
    assert (less.seeds, less.estimate.interval) == ((0,), None)
    assert less.estimate.mean == pytest.approx(0.01)


def put_data(home: Path, name: str, letter: str) -> None:
    path = home / "models" / name / "results.json"
    data = {"name": "cub", "sha256": letter * 64, "images": 10, "classes": 5}
    path.write_text(json.dumps([result | {"data": data} for result in json.loads(path.read_text())]))


def test_seeds_on_other_images_are_another_row(two_methods: Path) -> None:
    """Margin: .60 and .62 on the images a, .64 on b; contrastive: .61 and .64 on a."""
    for seed, letter in enumerate("aab"):
        put_data(two_methods, f"margin-r50-cub-seed{seed}", letter)
        put_data(two_methods, "contrastive" if seed == 0 else f"contrastive-seed{seed}", "a" if seed < 2 else "c")
    rows = own_scores(find_runs(), dataset="cub", metrics=["recall_at_1"], against="margin-r50-cub")
    found = {(row.name, row.images.key[:1]): row for row in rows}
    assert found["margin-r50-cub", "a"].ours.value == pytest.approx(0.61)
    assert found["margin-r50-cub-seed2", "b"].ours.value == pytest.approx(0.64)
    difference = found["contrastive", "a"].difference
    assert difference is not None
    assert (difference.seeds, difference.estimate.mean) == ((0, 1), pytest.approx(0.015))
    assert found["contrastive-seed2", "c"].no_difference == "not measured on these images"


@pytest.mark.parametrize(("images", "others"), [("a", "a"), ("b", "b"), (None, "b")])
def test_models_of_other_training_images_are_no_seeds_of_one_recipe(
    own_zoo: Path, images: str | None, others: str
) -> None:
    """On the user's own images, seeds of a recipe are those whose training images are recorded and equal."""
    for seed, name, letter in ((0, "first", "a"), (1, "second", "a"), (2, "other", images)):
        folder = model(own_zoo, name, {**RECIPE, "seed": seed, "data": {"dataset": "folder"}}, recall_at_1=0.5)
        record = json.loads((folder / "recipe.json").read_text())
        data = {} if letter is None else {"training_data": {"sha256": letter * 64}}
        (folder / "recipe.json").write_text(json.dumps(record | data))
    rows = {row.name: row.ours for row in own_scores(find_runs(), dataset="cub", metrics=["recall_at_1"])}
    assert {name: ours.runs for name, ours in rows.items()} == (
        {"first": ("first", "second", "other")}
        if others == "a"
        else {"first": ("first", "second"), "other": ("other",)}
    )


def test_a_score_on_the_training_images_says_so(own_zoo: Path) -> None:
    folder = model(own_zoo, "mine", RECIPE, recall_at_1=0.5)
    put_data(own_zoo, "mine", "a")
    record = json.loads((folder / "recipe.json").read_text())
    for letter, said in (("a", True), ("b", False)):
        (folder / "recipe.json").write_text(json.dumps(record | {"training_data": {"sha256": letter * 64}}))
        (row,) = own_scores(find_runs(), names=["mine"])
        assert (LEARNT in row.ours.protocol) == said


def test_a_row_is_named_after_a_model_that_was_measured(two_methods: Path) -> None:
    (two_methods / "models" / "contrastive" / "results.json").unlink()
    for seed in (1, 2):
        put_data(two_methods, f"contrastive-seed{seed}", "b")
    put_data(two_methods, "contrastive-seed3", "a")
    rows = own_scores(find_runs(), dataset="cub", names=["contrastive"], metrics=["recall_at_1"])
    assert {(row.name, row.ours.runs) for row in rows} == {
        ("contrastive", ("contrastive-seed1", "contrastive-seed2")),
        ("contrastive-seed3", ("contrastive-seed3",)),
    }


def test_names_and_metrics_select_scores(two_methods: Path) -> None:
    assert [name for name, _ in on_cub(names=["contrastive-seed2"])] == ["contrastive"]
    assert list(on_cub(metrics=["mrr"])) == [("alone", "mrr")]
    assert own_scores(find_runs(), dataset="cars") == []
    with raises(UsageError, "unknown-name") as caught:
        on_cub(names=["contrastiv"])
    assert "'contrastive'" in str(caught.value)


def test_the_command_prints_every_format(two_methods: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["benchmark", "models", "--dataset", "cub", "--metric", "recall_at_1", "--metric", "mrr"]
    assert main([*words, "--against", "margin-r50-cub"]) == 0
    heading, _, _, *rows = capsys.readouterr().out.splitlines()
    assert heading.startswith("cub (images not recorded), test split, 5 classes")
    lines: dict[str, str] = {}
    for line in rows:
        if line.startswith(("recall_at_1", "mrr")):  # not the wrapped ones
            lines[line.split()[1]] = lines.get(line.split()[1], "") + line
    assert "0.6200 ± 0.0200" in lines["margin-r50-cub"]
    assert "the model itself" in lines["margin-r50-cub"]
    assert "+0.0167" in lines["contrastive"]
    assert "0.0023 to 0.0310 over 3 seeds" in lines["contrastive"]
    assert "not measured on these images" in lines["alone"]  # mrr, which margin does not have
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["metric"] for row in rows] == ["recall_at_1"] * 3 + ["mrr"]
    assert rows[-1]["ours"]["value"] == 0.7
    assert main(["benchmark", "models", "--dataset", "cars"]) == 0
    assert "zoo evaluate MODEL --save" in capsys.readouterr().err


def test_a_single_seed_is_found_without_its_number(own_zoo: Path) -> None:
    model(own_zoo, "margin-r50-cub-seed1", {**RECIPE, "seed": 1}, recall_at_1=0.6)
    model(own_zoo, "contrastive-seed1", {**CONTRASTIVE, "seed": 1}, recall_at_1=0.5)
    rows = on_cub(names=["contrastive", "contrastive-seed1"], metrics=["recall_at_1"] * 2, against="margin-r50-cub")
    ((key, row),) = rows.items()
    assert key == ("contrastive-seed1", "recall_at_1")
    assert row.difference is not None
    assert row.difference.estimate.mean == pytest.approx(-0.1)


def test_an_unknown_data_set_gets_the_nearest_name(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "models", "--dataset", "glyfs"]) == 2
    assert "'glyphs'" in capsys.readouterr().err
