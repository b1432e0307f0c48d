from __future__ import annotations

import dataclasses
import json
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import pytest
from scipy import stats

from training.studies.compare import compare_tables, find_runs, runs_of_recipe
from training.studies.compare_page import FORMATS
from zoo.cli.benchmark import Format
from zoo.data.preprocessing import Preprocessing
from zoo.models.card import Card, read_card
from zoo.models.published import Paper, PublishedScore, PublishedTable, published_table
from zoo.models.results import Evaluation, add_result

RECIPE = {
    "name": "margin-r50-cub",
    "seed": 0,
    "sources": ["a"],
    "objective": {"loss": "margin", "loss_args": {"beta": 1.2}},
    "schedule": {"epochs": 150},
    "definitions": {"augmentation": 1, "loss margin": 1},
}
SCORE = PublishedScore("Margin", "cub", "recall_at_1", 0.63, "r50", 128, sd=0.005, recipe="margin-r50-cub")


def table_of(*scores: PublishedScore, title: str = "t") -> PublishedTable:
    return PublishedTable(
        "toy-1", Paper("Toy", "Nobody 2020", "arXiv:2001.00001"), "table 1", title, "best epoch on the test set", scores
    )


def model(home: Path, name: str, recipe: dict | None, dim: int = 128, best: int | None = None, **scores: float) -> Path:
    """A model folder as far as a comparison looks at it: card, recipe, results."""
    folder = home / "models" / name
    folder.mkdir(parents=True)
    Card(name, "margin", "r50", "cub", "resnet50", dim, Preprocessing(256, 224)).write(folder)
    if recipe is not None:
        (folder / "recipe.json").write_text(json.dumps({"recipe": {**recipe, "name": name}, "best_epoch": best}))
    if scores:
        save(folder, evaluation(name, **scores))
    return folder


def save(folder: Path, measured: Evaluation) -> None:
    """Add a measurement of the model in a folder to its results."""
    add_result(folder, dataclasses.replace(measured, fingerprint=read_card(folder).fingerprint))


def evaluation(name: str, split: str = "test", runtime: str = "torch", **scores: float) -> Evaluation:
    intervals = {metric: (value - 0.01, value + 0.01) for metric, value in scores.items()}
    facts = ("leave-one-out, cosine, exact", runtime, "fp32", 128, 10, 0, 5)
    return Evaluation(name, "cub", split, *facts, scores, intervals, "2026-01-01T00:00:00+00:00")


def test_nothing_is_trained_yet(own_zoo):
    rows = compare_tables([table_of(SCORE, PublishedScore("phi alone", "cub", "recall_at_1", 0.5, "r50", 128))])
    assert [row.status for row in rows] == ["not run", "no recipe"]
    assert all(row.ours is None and row.difference is None for row in rows)


def test_several_seeds_by_hand(own_zoo):
    """.60, .62, .64: mean .62, sd .02, and t(2) = 4.303 makes the interval .62 -+ 4.303 x .02 / sqrt 3."""
    for seed, value in enumerate((0.60, 0.62, 0.64)):
        name = "margin-r50-cub" + (f"-seed{seed}" if seed else "")
        model(own_zoo, name, {**RECIPE, "seed": seed}, recall_at_1=value)
    (row,) = compare_tables([table_of(SCORE)])
    assert row.status == "measured"
    assert row.ours is not None
    assert row.ours.value == pytest.approx(0.62)
    assert row.ours.sd == pytest.approx(0.02)
    assert row.ours.interval == pytest.approx((0.62 - 0.049687, 0.62 + 0.049687), abs=1e-5)
    assert (row.ours.over, row.ours.seeds) == ("seeds", (0, 1, 2))
    assert row.ours.protocol == "last of 150 epochs; leave-one-out, cosine, exact; torch fp32"
    assert row.difference == pytest.approx(-0.01)


def test_a_model_trained_with_changes_is_not_compared_with_its_recipe(own_zoo):
    folder = model(own_zoo, "margin-r50-cub", {**RECIPE, "schedule": {"epochs": 1}}, recall_at_1=0.9)
    record = json.loads((folder / "recipe.json").read_text())
    changes = {"origin": "margin-r50-cub", "settings": {"schedule.epochs": 1}}
    (folder / "recipe.json").write_text(json.dumps(record | changes))
    (row,) = compare_tables([table_of(SCORE)])
    assert row.status == "not run"
    model(own_zoo, "margin-r50-cub-seed3", {**RECIPE, "seed": 3}, recall_at_1=0.6)
    (row,) = compare_tables([table_of(SCORE)])
    assert (row.ours.value, row.ours.over) == (0.6, "classes")


def test_one_seed_has_the_interval_of_its_measurement(own_zoo):
    model(own_zoo, "margin-r50-cub", RECIPE, best=12, recall_at_1=0.6)
    (row,) = compare_tables([table_of(SCORE)])
    assert row.ours is not None
    assert (row.ours.sd, row.ours.over) == (None, "classes")
    assert row.ours.interval == pytest.approx((0.59, 0.61))
    assert row.ours.protocol.startswith("best epoch on held-out training classes (12 of 150)")


def test_the_runs_of_a_recipe_are_recognised_by_their_settings(own_zoo):
    model(own_zoo, "margin-r50-cub", RECIPE)
    model(own_zoo, "mine", {**RECIPE, "seed": 7, "sources": []})
    model(own_zoo, "newer", {**RECIPE, "seed": 8, "definitions": {"augmentation": 1, "loss margin": 2}})
    model(own_zoo, "again", RECIPE)
    model(own_zoo, "shorter", {**RECIPE, "seed": 9, "schedule": {"epochs": 1}})
    model(own_zoo, "other-args", {**RECIPE, "seed": 9, "objective": {"loss": "margin", "loss_args": {}}})
    model(own_zoo, "foreign", None)
    assert [run.name for run in runs_of_recipe("margin-r50-cub", find_runs())] == ["margin-r50-cub", "mine"]
    assert [run.name for run in runs_of_recipe("foreign", find_runs())] == ["foreign"]
    assert runs_of_recipe("margin-r50-cars", find_runs()) == []


def test_models_that_start_from_other_weights_of_one_name_are_not_averaged(own_zoo):
    """The fault: a recipe names the model that it starts from, not its weights."""
    for name, seed, start in (("margin-r50-cub", 0, "a"), ("one", 1, "a"), ("other", 2, "b"), ("unknown", 3, None)):
        folder = model(own_zoo, name, {**RECIPE, "seed": seed})
        record = json.loads((folder / "recipe.json").read_text())
        base = {"base": {"name": "start", "fingerprint": start}} if start else {}
        (folder / "recipe.json").write_text(json.dumps(record | base))
    assert [run.name for run in runs_of_recipe("margin-r50-cub", find_runs())] == ["margin-r50-cub", "one", "unknown"]


def test_without_a_model_of_the_recipes_name_the_lowest_seed_is_the_standard(own_zoo):
    model(own_zoo, "margin-r50-cub-seed10", {**RECIPE, "seed": 10, "schedule": {"epochs": 2}})
    model(own_zoo, "margin-r50-cub-seed2", {**RECIPE, "seed": 2})
    model(own_zoo, "margin-r50-cub-seedling", {**RECIPE, "seed": 3, "schedule": {"epochs": 3}})
    assert [run.seed for run in runs_of_recipe("margin-r50-cub", find_runs())] == [2]


def test_another_dimension_metric_or_split_is_not_the_same_quantity(own_zoo):
    model(own_zoo, "margin-r50-cub", RECIPE, dim=512, recall_at_1=0.9)
    folder = model(own_zoo, "snr-r50-cub", {**RECIPE, "method": "snr"}, recall_at_1=0.6)
    decay = PublishedScore("SNR", "cub", "spectral_decay", 0.3, "r50", 128, split="train", recipe="snr-r50-cub")
    rows = compare_tables([table_of(SCORE, decay)])
    assert [row.status for row in rows] == ["not run", "not measured"]
    save(folder, evaluation("snr-r50-cub", "test", spectral_decay=0.1))
    assert compare_tables([table_of(decay)])[0].status == "not measured"
    save(folder, evaluation("snr-r50-cub", "train", spectral_decay=0.2))
    assert compare_tables([table_of(decay)])[0].ours.value == 0.2


def test_torch_in_fp32_comes_first_and_the_newest_of_the_rest(own_zoo):
    folder = model(own_zoo, "margin-r50-cub", RECIPE)
    for runtime, value in (("torch", 0.61), ("onnx", 0.62)):
        save(folder, evaluation("margin-r50-cub", runtime=runtime, recall_at_1=value))
    assert compare_tables([table_of(SCORE)])[0].ours.value == 0.61


def test_a_damaged_recipe_hides_no_score(own_zoo):
    folder = model(own_zoo, "margin-r50-cub", None, recall_at_1=0.6)
    for text in ("{", "[]", '{"recipe": 3}', '{"recipe": {"seed": "x", "schedule": 1}}'):
        (folder / "recipe.json").write_text(text)
        assert compare_tables([table_of(SCORE)])[0].ours.value == 0.6


def test_an_ensemble_stands_alone(own_zoo):
    folder = model(own_zoo, "margin-r50-cub", None, recall_at_1=0.6)
    (folder / "recipe.json").write_text(json.dumps({"ensemble": [{"name": "a"}, {"name": "b"}]}))
    ours = compare_tables([table_of(SCORE)])[0].ours
    assert (ours.seeds, ours.protocol.partition(";")[0]) == ((None,), "2 models joined")


def test_the_interval_of_many_seeds_is_scipys(own_zoo):
    values = [0.5 + 0.01 * (i % 7) for i in range(40)]
    for seed, value in enumerate(values):
        model(own_zoo, f"margin-r50-cub-seed{seed}", {**RECIPE, "seed": seed}, recall_at_1=value)
    (row,) = compare_tables([table_of(SCORE)])
    half = stats.t.ppf(0.975, 39) * statistics.stdev(values) / 40**0.5
    assert row.ours.interval[1] - row.ours.value == pytest.approx(half, rel=1e-3)


@pytest.fixture
def rows(own_zoo):
    model(own_zoo, "margin-r50-cub", RECIPE, recall_at_1=0.612345)
    bad = PublishedScore(
        "<b>a|b</b>", "cub", "spectral_decay", 0.179, "r50", 128, split="train", recipe="margin-r50-cub"
    )
    return compare_tables([table_of(SCORE, bad, title="<script>alert(1)</script>")])


def test_every_format_is_offered_and_empty_without_rows(rows):
    assert tuple(FORMATS) == get_args(Format)
    assert all(form([]) is not None for form in FORMATS.values())


def test_json_holds_fractions_and_everything(rows):
    first, second = json.loads(FORMATS["json"](rows))
    assert (first["published"], first["published_sd"], first["ours"]) == (0.63, 0.005, 0.612345)
    assert first["ours_interval"] == pytest.approx([0.602345, 0.622345])
    assert first["published_protocol"] == "best epoch on the test set"
    assert (second["status"], second["ours"], second["row"]) == ("not measured", None, "<b>a|b</b>")


def test_intervals_and_marks_of_published_numbers_are_shown(own_zoo):
    """67.21 with half an interval of 0.49 is 66.72 to 67.70."""
    searched = PublishedScore("Contrastive", "cub", "precision_at_1", 0.6721, "ibn", 512, ci95=0.0049)
    quoted = PublishedScore(
        "Margin", "cub", "nmi", 0.69, quoted_from="Wu et al. 2017", contradicts="table 2 prints 70.1"
    )
    best = PublishedScore("Mine", "cub", "recall_at_1", 0.5, best_on_test=True)
    found = compare_tables([table_of(searched, quoted, best)])
    first, second, third = json.loads(FORMATS["json"](found))
    assert first["published_interval"] == pytest.approx([0.6672, 0.6770])
    assert (second["quoted_from"], second["contradicts"]) == ("Wu et al. 2017", "table 2 prints 70.1")
    assert (second["dim"], second["backbone"], second["best_on_test"], third["best_on_test"]) == (
        None,
        None,
        False,
        True,
    )
    for output in ("table", "html"):
        text = FORMATS[output](found)
        for part in ("0.6721 (0.6672 to 0.6770)", "quoted from Wu et al. 2017; but table 2 prints 70.1", "(table 1)"):
            assert part in text
    assert "marks" not in FORMATS["table"](compare_tables([table_of(SCORE)]))


def test_the_table_states_both_protocols(rows):
    text = FORMATS["table"](rows)
    assert "Published: best epoch on the test set" in text
    assert "last of 150 epochs" in text
    assert "not measured" in text


def test_a_score_that_was_not_run_names_the_command(own_zoo):
    rows = compare_tables([table_of(SCORE, PublishedScore("phi", "cub", "recall_at_1", 0.5, "r50", 128))])
    text = FORMATS["table"](rows)
    assert text.count("zoo train") == 1
    assert "zoo train margin-r50-cub" in text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_html_escapes_names(rows):
    text = FORMATS["html"](rows)
    reader = Tags()
    reader.feed(text)
    assert not {"script", "b", "link"} & set(reader.tags)
    assert "&lt;b&gt;a|b&lt;/b&gt;" in text


def test_the_papers_own_tables_are_compared_whole(own_zoo):
    assert len(compare_tables([published_table("revisiting-2")], "sop")) == 2 * 21
    assert {row.status for row in compare_tables([published_table("revisiting-1")])} == {"not run"}
