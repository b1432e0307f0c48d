"""The search of Reality: bounds, trials that resume, and tested reruns."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.raising import raises
from tests.training.studies import toys
from tests.training.studies.test_study import data_of
from tests.zoo.report.test_model import Reader
from training.build import create_parts, create_sampler
from training.checkpoint import check_embeddings
from training.studies import cross_validation, measure, render_search, search
from training.studies.cross_validation import folds
from training.studies.render_search import as_markdown, build_report, write_report
from training.studies.results import Results
from training.studies.runner import claim_folder, create_study_context
from training.studies.search import SearchPlan, best_trial, load_trials, read_search, write_search
from training.studies.search_spaces import SPACES, find_space
from zoo import data as datasets
from zoo.cli.studies import Output, create_search_context, perform_search
from zoo.errors import DivergedError, MissingDependencyError, RecipeError, TrainingError, UsageError
from zoo.evaluation import retrieval_metrics


@pytest.mark.parametrize("name", ["margin", "margin-class"])
@pytest.mark.parametrize("dataset", ["omniglot", "cub"])
def test_margin_counts_triplets_as_in_reality_on_every_data_set(name: str, dataset: str) -> None:
    space = find_space(name)
    made = SearchPlan((name,), dataset).recipe(space, space.lower_bounds(), 0)
    assert made.objective.loss_args["by_triplets"] is True


@pytest.mark.parametrize("name", ["ms", "ms-miner"])
def test_multi_similarity_averages_over_all_anchors_on_every_data_set(name: str) -> None:
    """Reality's values are in the conventions of pytorch-metric-learning, which averages over all anchors."""
    space = find_space(name)
    for dataset in ("omniglot", "cub"):
        made = SearchPlan((name,), dataset).recipe(space, space.lower_bounds(), 0)
        assert not made.objective.loss_args.get("kept_only", False)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_the_losses_take_both_ends_of_their_bounds(name: str) -> None:
    space = find_space(name)
    for dataset in ("glyphs", "cifar100", "cub"):
        for end in ("low", "high"):
            values = {parameter.key: getattr(parameter, end) for parameter in space.parameters}
            made = SearchPlan((name,), dataset).recipe(space, values)
            assert made.data.validation == 0
            if dataset != "cub":
                data = data_of(made, dataset)
                held_out = folds(data.classes)[0]
                create_sampler(made, data.labels[len(held_out) * 20 :])
                if dataset == "glyphs":
                    create_parts(made, data)


def test_bounds_are_translated_into_our_conventions() -> None:
    assert find_space("arcface").parameters[0].setting(90) == "objective.loss_args.margin=90.0"
    assert find_space("proxynca").parameters[0].setting(9) == "objective.loss_args.softmax_scale=9.0"
    assert find_space("softtriple").parameters[-1].setting(0.25) == "objective.loss_args.tau=0.5"
    assert find_space("fastap").parameters[0].setting(7) == "objective.loss_args.num_bins=7"
    with raises(UsageError, "unknown-name") as caught:
        SearchPlan(("contrastiv",), "glyphs")
    assert "'contrastive'" in str(caught.value)


@pytest.fixture
def small(tmp_path: Path) -> SearchPlan:
    data = toys.images(tmp_path / "images", classes=9)
    settings = (*toys.SETTINGS, "schedule.epochs=1")
    return SearchPlan(("contrastive", "ntxent"), "glyphs", 2, 2, 2, 1, settings=settings, data=str(data))


def test_too_few_classes_outside_a_fold_are_refused_with_the_setting_that_works(small: SearchPlan) -> None:
    context = create_study_context(torch.device("cpu"), small.data)
    search.check_search(small, context)
    # The larger of two folds of nine classes has five: the other four fill batches of 8, two images of each.
    large = dataclasses.replace(small, settings=(*small.settings, "batch.size=10"))
    with raises(RecipeError, "too-few-classes", "--set batch.size=8") as caught:
        search.check_search(large, context)
    assert "per_class=" not in str(caught.value)
    search.check_search(dataclasses.replace(large, settings=(*large.settings, "batch.size=8")), context)
    with raises(UsageError, "invalid-value"):
        search.check_search(dataclasses.replace(small, folds=5), context)


def go(plan: SearchPlan, folder: Path, lines: list[str]) -> None:
    search.run_search(plan, folder, create_study_context(torch.device("cpu"), plan.data), lines.append)


@pytest.mark.slow
def test_a_killed_search_continues_and_is_reported(
    tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, trained = tmp_path / "search", []
    write_search(small, folder)
    train = cross_validation.fit

    def killed(*args: object, **kwargs: object) -> object:
        trained.append(args)
        if len(trained) == 4:  # in the second fold of the second trial
            raise KeyboardInterrupt
        return train(*args, **kwargs)

    monkeypatch.setattr(cross_validation, "fit", killed)
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        go(small, folder, lines)
    assert [line[:24] for line in lines] == ["contrastive, trial 1 of "]
    go(read_search(folder), folder, lines)
    # Two losses of two trials and two reruns, each of two folds: each once, except the fold that was killed.
    assert len(trained) == 2 * (2 + 2) * 2 + 1
    go(small, folder, lines)
    assert len(trained) == 17
    trials = load_trials(small, folder)
    assert {len(study.trials) for study in trials.values()} == {2}
    for study in trials.values():
        best = best_trial(study)
        assert best is not None
        assert best.value == max(trial.value for trial in study.trials)
    report = build_report(small, folder)
    write_report(small, report, folder)
    assert [row["reruns"] for row in json.loads((folder / "report.json").read_text())["losses"]] == [2, 2]
    markdown = as_markdown(small, report, folder)
    assert "| contrastive |" in markdown
    assert f"Trials ran from {report[0]['began']} to {report[1]['ended']}. Made with: " in markdown
    assert f"torch {torch.__version__.partition('+')[0]}" in markdown
    text = Reader((folder / "report.html").read_text()).text
    for says in ("Test scores", "contrastive, separated", "Best validation so far", "2 complete"):
        assert says in text
    assert not list(folder.rglob("checkpoint.safetensors"))


def test_without_trials_the_recipes_own_values_are_rerun(tmp_path: Path, small: SearchPlan) -> None:
    margin = "objective.loss_args.neg_margin=0.75"
    plan = dataclasses.replace(small, losses=("contrastive",), trials=0, settings=(*small.settings, margin))
    write_search(plan, tmp_path)
    lines: list[str] = []
    go(plan, tmp_path, lines)
    go(read_search(tmp_path), tmp_path, lines)
    assert [line.partition(":")[0] for line in lines] == [f"contrastive, rerun {n} of 2" for n in (1, 2)]
    results = Results(tmp_path)
    assert len([result for result in results.values() if "concatenated" in result]) == 2
    report = build_report(plan, tmp_path)
    assert (report[0]["reruns"], report[0]["best"], report[0]["validations"]) == (2, None, [])
    assert "| contrastive |" in as_markdown(plan, report, tmp_path)
    space = find_space("contrastive")
    assert plan.recipe(space, search.GIVEN).objective.loss_args["neg_margin"] == 0.75
    assert not search.has_remaining_work(plan, tmp_path)


def test_published_values_of_reality_are_rerun_until_validation_stops_rising() -> None:
    """CUB / CARS / SOP: at most 1,000 x 100 iterations, patience 9 / 14 / 39, validated every 2 / 5 / 20 epochs."""
    for dataset, patience, every in (("cub", 9, 2), ("cars", 14, 5), ("sop", 39, 20)):
        for loss in (name for name, space in SPACES.items() if not space.papers):
            assert search.usual_patience(loss, dataset) == patience
            made = SearchPlan((loss,), dataset, trials=0, patience=patience).recipe(find_space(loss), search.GIVEN)
            schedule = made.schedule
            assert (schedule.epochs, schedule.steps, schedule.validate_every) == (1000, 100, every)
    assert search.usual_patience("contrastive", "omniglot") == 9
    # Group, section 4.1: 10 epochs of pre-training and 60 of the loss.
    assert search.usual_patience("group", "cars") == 70
    assert SearchPlan(("group",), "cars", trials=0).first.backbone.architecture.startswith("densenet161")
    arcface = SearchPlan(("arcface",), "cars", trials=0).recipe(find_space("arcface"), search.GIVEN)
    assert arcface.optimizer.loss_lr == 7.39e-6
    assert arcface.objective.loss_args["margin"] == 20.52


def test_scores_are_of_separate_models_and_of_joined_embeddings(
    tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    embed = cross_validation.embed_pixels
    monkeypatch.setattr(cross_validation, "embed_pixels", lambda *args: rows.append(embed(*args)) or rows[-1])
    single = dataclasses.replace(small, losses=("ntxent",), trials=1, reruns=1)
    go(single, tmp_path, [])
    (scores,) = (row["scores"] for row in build_report(single, tmp_path))
    labels = datasets.load_dataset("folder", "test", small.data).labels
    separate = [retrieval_metrics(model_rows, labels, k=(1,))["map_at_r"] for model_rows in rows]
    assert scores["separated"]["map_at_r"]["mean"] == pytest.approx(np.mean(separate))
    joined = retrieval_metrics(np.hstack(rows), labels, k=(1,))["map_at_r"]
    assert scores["concatenated"]["map_at_r"]["mean"] == pytest.approx(joined)
    assert len(rows) == 2


def precision_and_map(
    queries: np.ndarray, query_labels: np.ndarray, gallery: np.ndarray, labels: np.ndarray
) -> list[float]:
    """P@1 and MAP@R, query by query and rank by rank."""
    first, averages = [], []
    for query, label in zip(queries.astype(np.float64), query_labels, strict=True):
        cosines = [query @ row / np.linalg.norm(row) for row in gallery.astype(np.float64)]
        relevant = [labels[i] == label for i in sorted(range(len(gallery)), key=lambda i: -cosines[i])]
        count = sum(relevant)
        hits = [sum(relevant[: rank + 1]) / (rank + 1) for rank in range(count) if relevant[rank]]
        first.append(relevant[0])
        averages.append(sum(hits) / count)
    return [float(np.mean(first)), float(np.mean(averages))]


@pytest.mark.slow
def test_queries_and_gallery_of_a_data_set_are_used_in_tests(
    tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gallery images are not queries, and queries are not found (as in In-Shop), by separate and by joined models."""
    load, rows, embed = measure.datasets.load_dataset, [], cross_validation.embed_pixels

    def parted(name: str, split: str, root: object) -> object:
        dataset = load(name, split, root)
        query = (np.arange(len(dataset)) % 4 == 1).astype(np.int64)  # one of four images per class
        return dataclasses.replace(dataset, factors={"query": query}) if split == "test" else dataset

    monkeypatch.setattr(measure.datasets, "load_dataset", parted)
    monkeypatch.setattr(cross_validation, "embed_pixels", lambda *args: rows.append(embed(*args)) or rows[-1])
    single = dataclasses.replace(small, losses=("ntxent",), trials=1, reruns=1)
    write_search(single, tmp_path)
    go(single, tmp_path, [])
    report = build_report(single, tmp_path)
    labels, is_query = load("folder", "test", small.data).labels, np.arange(36) % 4 == 1
    query_labels, gallery_labels = labels[is_query], labels[~is_query]
    expected = [
        precision_and_map(embeddings[is_query], query_labels, embeddings[~is_query], gallery_labels)
        for embeddings in (*rows, np.hstack(rows))
    ]
    for place, metric in enumerate(("precision_at_1", "map_at_r")):
        separate = np.mean([scores[place] for scores in expected[:-1]])
        assert report[0]["scores"]["separated"][metric]["mean"] == pytest.approx(separate)
        assert report[0]["scores"]["concatenated"][metric]["mean"] == pytest.approx(expected[-1][place])
    write_report(single, report, tmp_path)
    sentence = "Tested by: queries to gallery, cosine, exact."
    assert sentence in (tmp_path / "report.md").read_text()
    assert sentence in Reader((tmp_path / "report.html").read_text()).text
    (loss,) = json.loads((tmp_path / "report.json").read_text())["losses"]
    assert loss["tests"][0]["protocol"] == "queries to gallery, cosine, exact"
    protocol = {"protocol": "leave-one-out, cosine, exact"}  # every image is a query to all others
    toys.rewrite(tmp_path, {name: {**result, **protocol} for name, result in Results(tmp_path).items()})
    assert "Tested by: leave-one-out, cosine, exact." in as_markdown(single, build_report(single, tmp_path), tmp_path)
    before = len(rows)
    with raises(UsageError, "other-study") as caught:
        go(dataclasses.replace(single, reruns=2), tmp_path, [])
    assert "leave-one-out" in str(caught.value)
    assert len(rows) == before, "refused before anything is trained"


def test_a_search_reports_its_recipes_and_its_test_protocol(tmp_path: Path, small: SearchPlan) -> None:
    assert "The recipes are those of sop." in render_search.protocol(SearchPlan(("margin",), "inshop"))
    assert "The recipes are" not in render_search.protocol(SearchPlan(("margin",), "sop"))
    single = dataclasses.replace(small, losses=("ntxent",), trials=1, reruns=1)
    write_search(single, tmp_path)
    assert "Tested by" not in as_markdown(single, build_report(single, tmp_path), tmp_path)
    go(single, tmp_path, [])
    assert "Tested by: leave-one-out, cosine, exact." in as_markdown(single, build_report(single, tmp_path), tmp_path)


@pytest.mark.slow
def test_a_trial_held_by_another_process_is_skipped(tmp_path: Path, small: SearchPlan) -> None:
    single = dataclasses.replace(small, losses=("ntxent",))
    (study,) = load_trials(single, tmp_path).values()
    study.ask({p.key: search._distribution(p) for p in find_space("ntxent").parameters})
    lines: list[str] = []
    with claim_folder(tmp_path / "ntxent" / "trial-000"):
        go(single, tmp_path, lines)
        assert ["trial 2" in lines[0], "other processes" in lines[1]] == [True, True]
    go(single, tmp_path, lines)
    assert "trial 1 of 2" in lines[2]
    assert len(lines) == 5


def test_no_trial_reads_test_data(tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    load = measure.datasets.load_dataset

    def training_alone(name: str, split: str, root: object) -> object:
        assert split == "train"
        return load(name, split, root)

    monkeypatch.setattr(measure.datasets, "load_dataset", training_alone)
    lines: list[str] = []
    work, space = create_study_context(torch.device("cpu"), small.data), find_space("ntxent")
    trials = load_trials(small, tmp_path)["ntxent"]
    assert search._perform_trial(small, space, trials, tmp_path / "ntxent", work, lines.append)
    assert lines[0].startswith("ntxent, trial 1 of 2: validation MAP@R")


def test_values_that_break_the_loss_fail_only_their_trial(
    tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = dataclasses.replace(small, losses=("ntxent",), reruns=1)
    train = cross_validation.fit
    calls = []

    def first_breaks(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            raise DivergedError("the loss became nan")
        return train(*args, **kwargs)

    monkeypatch.setattr(cross_validation, "fit", first_breaks)
    lines: list[str] = []
    go(single, tmp_path, lines)
    assert "trial 1 of 2: failed: the loss became nan" in lines[0]
    assert build_report(single, tmp_path)[0]["trials"] == {"fail": 1, "complete": 1}


def test_heads_that_overflow_fail_their_trial(tmp_path: Path, small: SearchPlan) -> None:
    """They give rows of length 0, which are finite."""
    single = dataclasses.replace(
        small, losses=("ntxent",), trials=1, settings=(*small.settings, "schedule.steps=1", "optimizer.lr=1e3")
    )
    lines: list[str] = []
    go(single, tmp_path, lines)
    assert build_report(single, tmp_path)[0]["trials"] != {"running": 1}
    with pytest.raises(DivergedError):
        check_embeddings(np.array([[1.0, 0.0], [0.0, 0.0]]), "the weights")


def test_errors_that_values_do_not_cause_leave_the_trial_open(
    tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the command fails, and continues with the same trial after there is space again."""
    single, train = dataclasses.replace(small, losses=("ntxent",), trials=1, reruns=1), cross_validation.fit

    def full(*args: object, **kwargs: object) -> object:
        raise TrainingError("the checkpoint cannot be written")

    monkeypatch.setattr(cross_validation, "fit", full)
    with pytest.raises(TrainingError) as caught:
        go(single, tmp_path, [])
    assert not isinstance(caught.value, DivergedError)
    assert build_report(single, tmp_path)[0]["trials"] == {"running": 1}
    monkeypatch.setattr(cross_validation, "fit", train)
    lines: list[str] = []
    go(single, tmp_path, lines)
    assert build_report(single, tmp_path)[0]["trials"] == {"complete": 1}
    assert [line.partition(":")[0] for line in lines] == ["ntxent, trial 1 of 1", "ntxent, rerun 1 of 1"]


@pytest.mark.slow
def test_a_rerun_that_diverges_fails_the_command(
    tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverges(*args: object) -> object:
        raise DivergedError("the loss became inf")

    single, rerun = dataclasses.replace(small, losses=("ntxent",), trials=1, reruns=2), search.rerun
    monkeypatch.setattr(search, "rerun", diverges)
    write_search(single, tmp_path)
    context, output = create_search_context(single, None, "cpu"), Output(as_json=True)
    assert perform_search(single, tmp_path, context, output) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["failed"] == 2
    assert json.loads(out)["close"] == {}
    assert "rerun 2 of 2: failed: the loss became inf" in err
    monkeypatch.setattr(search, "rerun", rerun)
    assert perform_search(single, tmp_path, context, output) == 0


def test_weights_that_become_nan_fail_only_their_trials(tmp_path: Path, small: SearchPlan) -> None:
    # One step an epoch: the first loss is finite, and validation is the first to meet the weights.
    single = dataclasses.replace(
        small, losses=("ntxent",), settings=(*small.settings, "schedule.steps=1", "optimizer.lr=1e30")
    )
    lines: list[str] = []
    go(single, tmp_path, lines)
    assert [line.partition(": ")[0] for line in lines] == ["ntxent, trial 1 of 2", "ntxent, trial 2 of 2", "ntxent"]
    assert all("the weights after epoch 1 give embeddings with NaN or infinite" in line for line in lines[:2])
    assert "every trial failed" in lines[2]
    go(single, tmp_path, lines)
    assert len(lines) == 4, "both trials are over"
    assert build_report(single, tmp_path)[0]["trials"] == {"fail": 2}


def test_a_search_can_be_extended_but_not_changed(tmp_path: Path, small: SearchPlan) -> None:
    write_search(small, tmp_path)
    assert write_search(dataclasses.replace(small, trials=5), tmp_path).trials == 5
    assert write_search(small, tmp_path).trials == 5
    with raises(TrainingError, "other-study"):
        write_search(dataclasses.replace(small, folds=3), tmp_path)
    with raises(UsageError, "invalid-value"):
        dataclasses.replace(small, trials=-1)
    (tmp_path / "search.json").write_text("{}")
    with raises(TrainingError, "damaged-file"):
        read_search(tmp_path)


def test_a_search_keeps_its_first_versions_and_each_fold_its_own(
    tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "provenance", lambda: {"commit": "first"})
    write_search(small, tmp_path)
    monkeypatch.setattr(search, "provenance", lambda: {"commit": "second"})
    write_search(dataclasses.replace(small, trials=5), tmp_path)
    kept = json.loads((tmp_path / "search.json").read_text())
    assert (kept["commit"], kept["search"]["trials"]) == ("first", 5)
    single = dataclasses.replace(small, losses=("ntxent",), trials=1, reruns=1)
    work = create_study_context(torch.device("cpu"), single.data)
    work.made_with = {"commit": "third"}
    search.run_search(single, tmp_path, work, [].append)
    folds_written = [result for name, result in Results(tmp_path).items() if "/fold-" in name]
    assert [fold["commit"] for fold in folds_written] == ["third"] * 4


def test_a_recipe_that_has_changed_since_is_refused(tmp_path: Path, small: SearchPlan) -> None:
    write_search(small, tmp_path)
    kept = json.loads((tmp_path / "search.json").read_text())
    kept["recipes"]["ntxent"]["batch"]["per_class"] = 3
    (tmp_path / "search.json").write_text(json.dumps(kept))
    with raises(TrainingError, "other-study") as caught:
        write_search(small, tmp_path)
    assert "ntxent" in str(caught.value)
    with raises(TrainingError, "other-study"):
        read_search(tmp_path)
    del kept["recipes"]  # as a version that kept none wrote it
    (tmp_path / "search.json").write_text(json.dumps(kept))
    assert write_search(small, tmp_path) == small


def test_a_search_does_not_continue_from_another_model_of_the_name(tmp_path: Path, small: SearchPlan) -> None:
    plan = dataclasses.replace(small, settings=(*small.settings, "backbone.pretrained=margin-conv4-glyphs"))
    write_search(plan, tmp_path)
    assert write_search(plan, tmp_path) == plan
    kept = json.loads((tmp_path / "search.json").read_text())
    kept["parts"]["margin-conv4-glyphs"] = "f" * 64
    (tmp_path / "search.json").write_text(json.dumps(kept))
    with raises(TrainingError, "other-study"):
        write_search(plan, tmp_path)


@pytest.mark.slow
def test_trials_from_other_images_are_refused(tmp_path: Path, small: SearchPlan) -> None:
    single = dataclasses.replace(small, losses=("ntxent",), trials=1, reruns=1)
    write_search(single, tmp_path)
    go(single, tmp_path, [])
    others = toys.images(tmp_path / "others", classes=9)
    for path in others.rglob("0.png"):
        path.write_bytes(path.with_name("1.png").read_bytes())
    more = write_search(dataclasses.replace(single, trials=2, data=str(others)), tmp_path)
    with raises(UsageError, "other-study") as caught:
        go(more, tmp_path, [])
    assert str(tmp_path / "ntxent") in str(caught.value)
    lines: list[str] = []
    go(dataclasses.replace(more, data=single.data), tmp_path, lines)
    assert "ntxent, trial 2 of 2: validation MAP@R" in lines[0]


def test_without_optuna_the_extra_is_named(tmp_path: Path, small: SearchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingDependencyError) as caught:
        go(small, tmp_path, [])
    assert "optuna" in str(caught.value)
    assert "dml-zoo[train]" in str(caught.value)
