"""Finished runs of studies beside published numbers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.raising import raises
from tests.training.studies import toys
from tests.training.studies.test_compare import RECIPE, SCORE, Tags, model, table_of
from training.studies import papers
from training.studies.compare import Comparison, compare_tables, find_runs
from training.studies.compare_page import FORMATS
from training.studies.plan import RunSchedule, write_plan
from training.studies.results import RESULTS_FILE
from training.studies.runner import create_study_context, perform_runs
from training.studies.search import SearchPlan, write_search
from training.studies.search_spaces import find_space
from training.studies.study import Arm
from zoo.cli.main import main
from zoo.errors import UsageError
from zoo.files import append_json_line
from zoo.models.published import PublishedScore
from zoo.models.published import published_table as published

UNNAMED = {"definitions": {"augmentation": 1}}
"""The versions of a recipe that names no definition."""


def finished(home: Path, study: str, arm: str, seed: int, value: float, selection: str = "last", **facts: Any) -> Path:
    """Add the parts of a run's result that a comparison reads, and return the file."""
    name = f"seed-{seed}" if selection == "last" else f"seed-{seed}-{selection}"
    resolved = {**RECIPE, "seed": seed, "data": {"validation": 0.0 if selection == "last" else 0.1}}
    part = {"dataset": "cub", "split": "test", "protocol": "leave-one-out, cosine, exact", "dim": 128}
    evaluations = [
        {**part, "view": "features", "dim": 512, "metrics": {"recall_at_1": 0.9}},
        {**part, "view": "embedding", "metrics": {"recall_at_1": value}, "intervals": {"recall_at_1": [0.5, 0.7]}},
    ]
    log = [{"epoch": 1, "validation_recall_at_1": 0.25}] if selection != "last" else [{"epoch": 1}]
    training = [{"epochs": 150, "measured_epoch": 12 if selection != "last" else 150, "log": log}]
    result: dict[str, Any] = {"run": f"{arm.replace(' ', '-')}/{name}", "arm": arm, "seed": seed}
    result |= {"selection": selection, "evaluations": evaluations, "training": training}
    result |= {"recipe": "margin-r50-cub", "changed": [], "settings": [], "resolved": [resolved], **facts}
    append_json_line(home / "studies" / study / RESULTS_FILE, result)
    return home / "studies" / study / RESULTS_FILE


def planned(home: Path, folder: str, study: str) -> None:
    """Write the plan of a study into a folder of any name."""
    (home / "studies" / folder / "plan.json").write_text(json.dumps({"study": study, "settings": []}))


def measured(dim: int, **views: float) -> list[dict[str, Any]]:
    """Return measurements of a run on CUB: R@1 of embeddings of `dim` numbers, and of heads with half as many."""
    part = {"dataset": "cub", "split": "test", "protocol": "leave-one-out, cosine, exact"}
    dims = {view: dim if view == "embedding" else dim // 2 for view in views}
    return [{**part, "view": view, "dim": dims[view], "metrics": {"recall_at_1": r}} for view, r in views.items()]


def compared(table: str, row: str) -> Comparison:
    """Return the comparison of R@1 of a row on CUB."""
    rows = compare_tables([published(table)], "cub")
    (found,) = [each for each in rows if (each.score.row, each.score.metric) == (row, "recall_at_1")]
    return found


def test_untrained_backbones_are_compared_with_table_1(own_zoo: Path) -> None:
    """No recipe has 0 epochs: the published rows name the study and the arm that measure them."""
    rows = compare_tables([published("revisiting-1")], "cub")
    assert [row.status for row in rows] == ["not run"] * 3
    assert "zoo benchmark run revisiting/table-1-published --dataset cub" in FORMATS["html"](rows)
    for arm, values in {"gn": (0.44, 0.46), "r50": (0.4, 0.42)}.items():
        for seed, value in enumerate(values):
            facts = {
                "changed": ["schedule.epochs=0"],
                "recipe": "margin-r50-cub",
                "evaluations": measured({"gn": 512, "r50": 128}[arm], embedding=value),
            }
            resolved = [{**UNNAMED, "name": arm, "seed": seed, "backbone": arm, "schedule": {"epochs": 0}}]
            untrained = [{"epochs": 0, "measured_epoch": 0, "log": []}]
            finished(own_zoo, "mine", arm, seed, value, **facts, resolved=resolved, training=untrained)
    planned(own_zoo, "mine", "revisiting/table-1-published")
    found = {row.score.backbone: row for row in compare_tables([published("revisiting-1")], "cub")}
    assert {name: row.status for name, row in found.items()} == {"gn": "measured", "ibn": "not run", "r50": "measured"}
    assert (found["gn"].ours.value, found["r50"].ours.value) == (pytest.approx(0.45), pytest.approx(0.41))
    assert found["gn"].difference == pytest.approx(0.45 - 0.4541)
    assert found["gn"].ours.seeds == (0, 1)
    assert found["gn"].ours.protocol.startswith("not trained, study mine; ")
    assert {row.status for row in compare_tables([published("revisiting-1")], "cars")} == {"not run"}
    planned(own_zoo, "mine", "somebody/else")
    assert {row.status for row in compare_tables([published("revisiting-1")])} == {"not run"}


def test_joined_models_are_compared_with_published_ensembles(own_zoo: Path) -> None:
    for seed in range(2):
        members = [{**UNNAMED, "name": f"m{i}", "seed": 5 * seed + i, "method": "group"} for i in range(5)]
        trained = 5 * [{"epochs": 70, "measured_epoch": 70, "log": [{"epoch": 70}]}]
        facts = {"recipe": "group-ibn-cub", "changed": ["5 copies"], "resolved": members, "training": trained}
        five = measured(2560, embedding=0.65 + seed / 100)
        finished(own_zoo, "joined", "5 models", seed, 0.0, **facts, evaluations=five)
        alone = {"resolved": members[:1], "changed": [], "evaluations": measured(512, embedding=0.6)}
        finished(own_zoo, "joined", "one model", seed, 0.0, **{**facts, **alone})
    planned(own_zoo, "joined", "group/ensembles")
    row = compared("group-2", "Group loss, 5 models")
    assert (row.ours.value, row.ours.seeds) == (pytest.approx(0.655), (0, 1))
    assert row.ours.protocol.startswith("5 models joined, last of 70 epochs, study joined; ")
    assert compared("group-1", "Group loss").ours.value == 0.6


def test_heads_of_a_model_are_compared_with_published_heads(own_zoo: Path) -> None:
    """phi and phi* are measured as views of the whole; the arm sets what is its method's default, and so changes
    nothing, but is written down as changed."""
    for seed, up in enumerate((0.0, 0.02)):
        views = {"embedding": 0.68 + up, "discriminative": 0.65 + up, "shared": 0.66 + up, "random head": 0.1}
        recipe = {"recipe": "shared-r50-cub", "changed": ["objective.method_args.arm=decorrelated"]}
        finished(own_zoo, "gap", "margin, shared", seed, 0.0, **recipe, evaluations=measured(256, **views))
        finished(own_zoo, "gap", "separate", seed, 0.0, **recipe, evaluations=measured(256, embedding=0.1))
    names = ["Margin, phi + phi*", "Margin, phi", "Margin, phi*", "Margin, baseline of 256"]
    assert {compared("sharing-4", name).status for name in names} == {"not run"}
    planned(own_zoo, "gap", "sharing/table-4")
    rows = [compared("sharing-4", name) for name in names]
    assert [row.status for row in rows] == ["measured", "measured", "measured", "not run"]
    assert [row.ours.value for row in rows[:3]] == pytest.approx([0.69, 0.66, 0.67])
    assert rows[1].ours.runs == (
        "gap/margin,-shared/seed-0:discriminative",
        "gap/margin,-shared/seed-1:discriminative",
    )
    Tags().feed(FORMATS["html"](rows))
    facts = json.loads(FORMATS["json"](rows))[2]
    assert (facts["study"], facts["arm"], facts["view"]) == ("sharing/table-4", "margin, shared", "shared")


def test_the_study_with_more_seeds_is_compared(own_zoo: Path) -> None:
    """Arms of two studies may write the same recipe differently; their seeds are not combined."""
    finished(own_zoo, "a", "margin", 0, 0.5)
    for seed in range(3):
        finished(own_zoo, "b", "margin", seed, 0.6, resolved=[{**RECIPE, "objective": {"loss_args": {"margin": 0.2}}}])
    ours = compare_tables([table_of(SCORE)])[0].ours
    assert (ours.value, ours.seeds) == (pytest.approx(0.6), (0, 1, 2))


def test_runs_as_published_are_not_mixed_with_those_of_the_paper(own_zoo: Path) -> None:
    code = {**RECIPE, "as_published": True, "objective": {"loss": "margin", "loss_args": {"beta": 1.2}}}
    for seed in range(3):
        finished(own_zoo, "revisiting-table-2-as-published-cub", "margin", seed, 0.9, resolved=[{**code, "seed": seed}])
    assert compare_tables([table_of(SCORE)])[0].status == "not run"
    finished(own_zoo, "revisiting-table-2-cub", "margin", 0, 0.6, resolved=[{**RECIPE, "as_published": False}])
    ours = compare_tables([table_of(SCORE)])[0].ours
    assert ours is not None
    assert (ours.value, ours.seeds) == (0.6, (0,))


def test_the_seeds_of_a_study_by_hand(own_zoo: Path) -> None:
    for seed, value in enumerate((0.60, 0.62, 0.64)):
        finished(own_zoo, "claims-rho-cub", "margin", seed, value)
        finished(own_zoo, "claims-rho-cub", "margin", seed, 0.1, "validation")
        finished(own_zoo, "other-cub", "untrained", seed, 0.2, changed=["schedule.epochs=0"])
        finished(own_zoo, "quick-cub", "margin", seed, 0.3, settings=["schedule.epochs=2"], resolved=[{"schedule": 2}])
    (row,) = compare_tables([table_of(SCORE)])
    assert row.ours is not None
    assert (row.ours.value, row.ours.sd) == pytest.approx((0.62, 0.02))
    assert row.ours.interval == pytest.approx((0.62 - 0.049687, 0.62 + 0.049687), abs=1e-5)
    assert row.ours.seeds == (0, 1, 2)
    assert row.ours.runs[0] == "claims-rho-cub/margin/seed-0"
    protocol = "last of 150 epochs, study claims-rho-cub; leave-one-out, cosine, exact; torch fp32"
    assert row.ours.protocol == protocol
    assert "0.5703 to 0.6697 over seeds" in FORMATS["html"]([row])


def test_the_protocol_names_settings_and_the_selection_of_a_study(own_zoo: Path) -> None:
    finished(own_zoo, "quick", "margin", 0, 0.3, "validation", settings=["schedule.epochs=2"])
    (row,) = compare_tables([table_of(SCORE)])
    assert row.ours is not None
    best = "best epoch on held-out training classes (12 of 150), study quick with schedule.epochs=2"
    assert row.ours.protocol.startswith(best)
    assert (row.ours.over, row.ours.interval) == ("classes", (0.5, 0.7))


def test_models_or_studies_with_more_seeds_are_compared(own_zoo: Path) -> None:
    model(own_zoo, "margin-r50-cub", {**RECIPE, "schedule": {"epochs": 9}}, recall_at_1=0.5)
    finished(own_zoo, "a", "margin", 0, 0.6)
    assert compare_tables([table_of(SCORE)])[0].ours.value == 0.5
    finished(own_zoo, "b", "margin", 1, 0.7, resolved=[{**RECIPE, "seed": 1, "data": {"validation": 0.0}}])
    row = compare_tables([table_of(SCORE)])[0].ours
    assert (row.value, row.seeds) == (pytest.approx(0.65), (0, 1))


def test_an_ensemble_is_not_a_seed_of_one_model(own_zoo: Path) -> None:
    finished(own_zoo, "a", "margin", 0, 0.6)
    for seed in (1, 2, 3):
        finished(own_zoo, "a", "two", seed, 0.7, changed=["2 copies"], resolved=[RECIPE, {**RECIPE, "seed": 1}])
    ours = compare_tables([table_of(SCORE)])[0].ours
    assert (ours.value, ours.seeds) == (0.6, (0,))


def test_other_folders_are_read_and_damaged_lines_are_skipped(
    own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        path = finished(tmp_path, "mine", "margin", seed, 0.6 + seed / 100)
    with path.open("a") as file:
        file.write('{\n[]\n{"run": "margin/seed-9", "resolved": [], "seed": 9}\n{"run": "margin/seed-8", "seed"')
    assert compare_tables([table_of(SCORE)])[0].ours is None
    for folder in (tmp_path / "studies", tmp_path / "studies" / "mine"):
        row = compare_tables([table_of(SCORE)], runs=find_runs([folder]))[0].ours
        assert (row.value, row.seeds) == (pytest.approx(0.605), (0, 1))
        arguments = ["benchmark", "compare", "revisiting-2", "--dataset", "cub", "--studies", str(folder)]
        assert main([*arguments, "--format", "json"]) == 0
        assert ["mine/margin/seed-0", "mine/margin/seed-1"] in [
            row["ours_runs"] for row in json.loads(capsys.readouterr().out)
        ]
    with raises(UsageError, "not-found") as caught:
        find_runs([tmp_path / "nowhere"])
    assert str(tmp_path / "nowhere") in str(caught.value)


def test_the_page_draws_the_epochs_of_studies(own_zoo: Path) -> None:
    finished(own_zoo, "claims-rho-cub", "margin", 0, 0.6, "validation")
    text = FORMATS["html"](compare_tables([table_of(SCORE)]))
    Tags().feed(text)
    assert "claims-rho-cub/margin/seed-0-validation, validation_recall_at_1" in text


def test_a_comparison_reads_the_results_of_a_study(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(papers.STUDIES, toys.STUDY.name, toys.STUDY)
    plan, folder = toys.plan(toys.images(tmp_path / "images")), own_zoo / "studies" / "toys-two-glyphs"
    tally = perform_runs(
        RunSchedule(write_plan(plan, folder), folder),
        plan.runs(folder),
        create_study_context(torch.device("cpu"), plan.data),
        [].append,
    )
    measured = [run.result()["evaluations"][0] for run in tally.done if run.arm.label == "margin"]
    dim = measured[0]["dim"]
    wanted = PublishedScore("m", "folder", "recall_at_1", 0.5, "conv4", dim, recipe="margin-conv4-glyphs")
    (row,) = compare_tables([table_of(wanted)])
    values = [evaluation["metrics"]["recall_at_1"] for evaluation in measured]
    assert row.ours.value == pytest.approx(sum(values) / 2)
    assert row.ours.seeds == (0, 1)
    assert "last of 2 epochs, study toys-two-glyphs with data.dataset=folder, data.side=16" in row.ours.protocol


@pytest.mark.slow
def test_copies_views_and_unchanged_settings_are_compared(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = ("objective.miner=distance-weighted", "objective.loss_args.beta=1.2")
    arms = (
        Arm("said twice", "margin-$backbone-$dataset", same),
        Arm("pair", "margin-$backbone-$dataset", copies=2),
    )
    study = dataclasses.replace(toys.STUDY, arms=arms, claims=())
    monkeypatch.setitem(papers.STUDIES, study.name, study)
    plan, folder = (
        dataclasses.replace(toys.plan(toys.images(tmp_path / "images")), study=study),
        own_zoo / "studies" / "x",
    )
    tally = perform_runs(
        RunSchedule(write_plan(plan, folder), folder),
        plan.runs(folder),
        create_study_context(torch.device("cpu"), plan.data),
        [].append,
    )
    results = {(run.arm.label, run.seed): run.result() for run in tally.done}
    assert results["said twice", 0]["changed"] == []
    assert results["pair", 0]["changed"] == ["2 copies"]

    def mean(arm: str, view: str) -> tuple[float, int]:
        evaluations = [
            e for seed in (0, 1) for e in results[arm, seed]["evaluations"] if (e["view"], e["split"]) == (view, "test")
        ]
        return sum(evaluation["metrics"]["recall_at_1"] for evaluation in evaluations) / 2, evaluations[0]["dim"]

    for arm, view, named in (
        ("said twice", "embedding", {"recipe": "margin-conv4-glyphs"}),
        ("pair", "embedding", {"study": study.name, "arm": "pair"}),
        ("pair", "features", {"study": study.name, "arm": "pair", "view": "features"}),
    ):
        value, dim = mean(arm, view)
        (row,) = compare_tables([table_of(PublishedScore("m", "folder", "recall_at_1", 0.5, "conv4", dim, **named))])
        assert (row.ours.value, row.ours.seeds) == (pytest.approx(value), (0, 1))


def test_reruns_of_a_search_are_compared_with_separated_and_concatenated_rows(own_zoo: Path) -> None:
    """Four models of 128 numbers per rerun; the mean of two reruns stands beside each row of Reality's table 3."""
    rows = {row.score.row: row for row in compare_tables([published("reality-3")], "cub")}
    assert rows["Contrastive, concatenated"].status == "not run"
    plan = SearchPlan(("contrastive",), "cub", trials=0, reruns=2)
    folder = own_zoo / "studies" / "search-cub"
    write_search(plan, folder)
    images = {"name": "cub", "sha256": "0" * 64, "images": 5924, "classes": 100}
    for number, (apart, joined) in enumerate([(0.19, 0.24), (0.21, 0.28)]):
        recipe = plan.recipe(find_space("contrastive"), {}, 1 + number)
        scores = {"separated": {"map_at_r": apart}, "concatenated": {"map_at_r": joined}}
        facts = {"protocol": "leave-one-out, cosine, exact", "images": images, "dim": 128, "date": "2026-01-01"}
        result = {"run": f"contrastive/rerun-{recipe.digest}", "seed": recipe.seed, **scores, **facts}
        append_json_line(folder / RESULTS_FILE, result)
    found = {
        row.score.row: row
        for row in compare_tables([published("reality-3")], "cub")
        if row.score.metric == "map_at_r" and row.score.row.startswith("Contrastive")
    }
    for kind, mean in (("separated", 0.2), ("concatenated", 0.26)):
        row = found[f"Contrastive, {kind}"]
        assert row.ours is not None
        assert (row.ours.value, row.ours.seeds) == (pytest.approx(mean), (1, 2))
        assert row.difference == pytest.approx(mean - row.score.value)
    assert main(["benchmark", "compare", "reality-3", "--format", "json"]) == 0


def test_a_search_of_other_recipes_is_not_compared(own_zoo: Path) -> None:
    """Its values mean something else today."""
    folder = own_zoo / "studies" / "search-cub"
    write_search(SearchPlan(("contrastive",), "cub", trials=0), folder)
    record = json.loads((folder / "search.json").read_text())
    record["recipes"]["contrastive"]["definitions"]["loss contrastive"] = 0
    (folder / "search.json").write_text(json.dumps(record))
    (folder / RESULTS_FILE).write_text("")
    assert {run.search for run in find_runs()} == {None}
