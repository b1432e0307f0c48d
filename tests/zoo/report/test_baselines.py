"""`zoo benchmark baselines`: models on one folder, the fits on other classes, and the recommendation."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.raising import raises
from zoo.cli.main import main
from zoo.data import load_dataset
from zoo.data.dataset import FOLDER
from zoo.errors import UsageError
from zoo.report import baselines
from zoo.report.baselines import (
    LINEAR,
    PLAIN,
    WHITENED,
    BaselineScore,
    available_models,
    compare_baselines,
    fit_linear,
    recommend,
    suitable_models,
)

MODELS = ("margin-conv4-glyphs", "r-margin-conv4-glyphs")


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """Ten classes of thirty pictures, bars of one angle with noise."""
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    rng = np.random.default_rng(3)
    x, y = np.meshgrid(np.arange(32) - 16, np.arange(32) - 16)
    for label in range(10):
        folder = tmp_path / "pictures" / f"angle{label}"
        folder.mkdir(parents=True)
        for number in range(30):
            angle = np.pi * (label + 0.2 * rng.standard_normal()) / 10
            bar = np.abs(np.cos(angle) * x + np.sin(angle) * y) < 3
            noisy = np.clip(200 * bar + 30 * rng.standard_normal(bar.shape), 0, 255)
            Image.fromarray(noisy.astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def map_at_r(rows: np.ndarray, labels: np.ndarray) -> float:
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    scores = []
    for query, similar in enumerate(unit @ unit.T):
        similar[query] = -np.inf
        relatives = int((labels == labels[query]).sum()) - 1
        hits = (labels == labels[query])[np.argsort(-similar, kind="stable")[:relatives]]
        scores.append(sum(hits[: i + 1].mean() for i in range(relatives) if hits[i]) / relatives)
    return float(np.mean(scores))


@pytest.mark.slow
def test_scores_are_of_classes_that_nothing_was_fitted_on(pictures, capsys):
    words = [word for name in MODELS for word in ("--model", name)]
    assert main(["benchmark", "baselines", "--data", str(pictures), "--json", *words]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert {(row["model"], row["form"]) for row in comparison["rows"]} == {
        (name, form) for name in MODELS for form in (PLAIN, WHITENED, LINEAR)
    }
    assert (comparison["images"], comparison["classes"], comparison["fitted_images"], comparison["fitted_classes"]) == (
        150,
        5,
        150,
        5,
    )
    images = load_dataset(FOLDER, "all", pictures)
    drawn = np.random.default_rng(0).choice(10, 5, replace=False)  # as the folder's other divisions by class
    measured = np.isin(images.labels, drawn)
    embedder = zoo.load(MODELS[0], runtime="onnx")
    rows, labels = embedder.embed(images.images), images.labels
    plain = next(row for row in comparison["rows"] if (row["model"], row["form"]) == (MODELS[0], PLAIN))
    assert plain["metrics"]["map_at_r"] == pytest.approx(map_at_r(rows[measured], labels[measured]), abs=1e-6)
    linear = next(row for row in comparison["rows"] if (row["model"], row["form"]) == (MODELS[0], LINEAR))
    weight, bias = fit_linear(rows[~measured], labels[~measured])
    expected = map_at_r(rows[measured] @ weight.T + bias, labels[measured])
    assert linear["metrics"]["map_at_r"] == pytest.approx(expected, abs=1e-6)
    assert plain["bytes"] == 4 * embedder.dim
    assert plain["milliseconds"] > 0
    assert comparison["recommendation"]


def test_an_interrupted_run_continues_with_the_rows_that_exist(pictures, monkeypatch):
    images = load_dataset(FOLDER, "all", pictures)
    first = compare_baselines(images, available_models(MODELS[:1]))
    monkeypatch.setattr(baselines, "load", lambda *_, **__: pytest.fail("the rows exist"))
    assert compare_baselines(images, available_models(MODELS[:1])) == first
    with pytest.raises(pytest.fail.Exception):
        compare_baselines(images, available_models(MODELS[1:]))


def test_a_page(pictures, tmp_path):
    command = ["benchmark", "baselines", "--data", str(pictures), "--model", MODELS[0]]
    assert main([*command, "--out", str(tmp_path / "comparison.html")]) == 0
    assert MODELS[0] in (tmp_path / "comparison.html").read_text()
    assert main([*command, "--out", str(tmp_path / "comparison.png")]) == 2


def test_models_that_are_missing_are_named_with_the_reason(pictures, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    images = load_dataset(FOLDER, "all", pictures)
    comparison = compare_baselines(images, available_models([MODELS[0], "no-such-model"]))
    assert list(comparison.left_out) == ["no-such-model"]
    with raises(UsageError, "no-images"):
        compare_baselines(images, available_models(["no-such-model"]))


def test_shipped_models_and_packages_need_no_hub():
    names = {model.name for model in available_models(hub=False)}
    assert {"photos", "margin-conv4-glyphs", "lite0"} <= names
    assert "dinov2-s14" not in names
    assert "dinov2-s14" in {model.name for model in available_models()}


def test_models_of_characters_are_not_measured_on_photographs(pictures):
    grey = load_dataset(FOLDER, "all", pictures)
    colour = replace(grey, images=[np.full((80, 90, 3), (200, 60, 10), np.uint8)] * len(grey))
    small = replace(grey, images=[np.full((32, 32, 3), (200, 60, 10), np.uint8)] * len(grey))
    models = available_models(hub=False)
    assert suitable_models(models, grey) == suitable_models(models, small) == (models, {})
    kept, left_out = suitable_models(models, colour)
    assert "photos" in {model.name for model in kept}
    assert {name for name in left_out if "glyphs" in name} == {m.name for m in models if m.name.endswith("-glyphs")}
    assert not left_out.keys() & {model.name for model in kept}


def test_what_is_not_whitened_is_said(pictures):
    images = load_dataset(FOLDER, "all", pictures)
    few = zoo.data.dataset.subset(images, np.arange(300) % 30 < 5, "all")
    comparison = compare_baselines(few, available_models(["margin-conv4-glyphs"]))
    assert {row.form for row in comparison.rows} == {PLAIN, LINEAR}
    assert list(comparison.not_whitened) == ["margin-conv4-glyphs"]
    assert any("25 images" in remark for remark in baselines.remarks(comparison))


def test_few_classes_are_measured_plain(pictures):
    images = load_dataset(FOLDER, "all", pictures)
    few = zoo.data.dataset.subset(images, images.labels < 4, "all")
    comparison = compare_baselines(few, available_models(MODELS[:1]))
    assert [(row.form, comparison.fitted_images) for row in comparison.rows] == [(PLAIN, 0)]
    with raises(UsageError, "too-few-samples"):
        compare_baselines(
            zoo.data.dataset.subset(images, np.arange(300) % 30 == 0, "all"), available_models(MODELS[:1])
        )


def test_two_classes_of_three_images_are_measured(pictures):
    """Each image has five neighbours, fewer than the eight of the usual R@8."""
    images = load_dataset(FOLDER, "all", pictures)
    few = zoo.data.dataset.subset(images, (images.labels < 2) & (np.arange(300) % 30 < 3), "all")
    (row,) = compare_baselines(few, available_models(MODELS[:1])).rows
    assert 0 <= row.metrics["map_at_r"] <= row.metrics["recall_at_1"] <= 1


def test_the_linear_map_makes_the_scatter_within_classes_a_sphere():
    rng = np.random.default_rng(1)
    labels = np.arange(600) % 20
    rows = rng.standard_normal((600, 6)) @ rng.standard_normal((6, 6)) + 3 * rng.standard_normal((20, 6))[labels]
    weight, bias = fit_linear(rows, labels, shrink=0)
    mapped = rows @ weight.T + bias
    within = mapped - np.stack([mapped[labels == label].mean(axis=0) for label in range(20)])[labels]
    np.testing.assert_allclose(within.T @ within / 580, np.eye(6), atol=1e-4)
    np.testing.assert_allclose(mapped.mean(axis=0), 0, atol=1e-4)


def test_overlapping_intervals_are_undecided_and_clear_ones_are_not():
    def row(model: str, form: str, scores: list[float], milliseconds: float) -> BaselineScore:
        per_class = {"queries": (10,) * len(scores), "map_at_r": tuple(scores)}
        means = {"map_at_r": float(np.mean(scores)), "recall_at_1": 0.5}
        return BaselineScore(model, "f", form, 8, 32, milliseconds, "onnx", means, {}, per_class)

    good, bad = [0.8, 0.7, 0.9, 0.8, 0.75, 0.85], [0.3, 0.2, 0.4, 0.35, 0.3, 0.25]
    noisy = [0.9, 0.6, 0.8, 0.9, 0.65, 0.8]
    clear = " ".join(recommend([row("a", PLAIN, good, 9), row("b", PLAIN, bad, 1)]))
    assert "a, plain is best" in clear
    assert "best" not in " ".join(recommend([row("a", PLAIN, good, 9)])), "a single row is compared with nothing"
    tied = " ".join(recommend([row("a", PLAIN, good, 9), row("c", WHITENED, noisy, 2), row("b", PLAIN, bad, 1)]))
    assert tied.startswith("Undecided between a, plain")
    assert "c, whitened is the fastest" in tied
    whitened = list(recommend([row("c", WHITENED, good, 2), row("b", PLAIN, bad, 1)], "my pictures"))
    commands = [shlex.split(text.partition(": zoo ")[2]) for text in whitened if ": zoo " in text]
    assert commands[0] == ["baseline", "c", "--as", "c-whitened", "--whiten", "my pictures"]
    assert [words[: words.index("--model") + 2] for words in commands if "--model" in words] == [
        ["gallery", "rebuild", "GALLERY", "--model", "c-whitened"]
    ]
    better = [row("a", LINEAR, [score + 0.1 * score for score in good], 9), row("a", PLAIN, good, 9)]
    assert "Training helps" in " ".join(recommend(better))
    worse = [better[1], replace(better[0], class_scores=row("a", LINEAR, bad, 9).class_scores)]
    assert "do not help" in " ".join(recommend(worse))


def test_the_recommendation_ends_with_the_command_to_run_next():
    """The next step is to train, or to start with a model: training does not help, or it is undecided or not known."""
    good, bad, noisy = (
        [0.8, 0.7, 0.9, 0.8, 0.75, 0.85],
        [0.3, 0.2, 0.4, 0.35, 0.3, 0.25],
        [0.9, 0.6, 0.8, 0.9, 0.6, 0.8],
    )

    def row(model: str, form: str, scores: list[float], milliseconds: float = 1) -> BaselineScore:
        per_class = {"queries": (10,) * len(scores), "map_at_r": tuple(scores)}
        means = {"map_at_r": float(np.mean(scores)), "recall_at_1": 0.5}
        return BaselineScore(model, "f", form, 8, 32, milliseconds, "onnx", means, {}, per_class)

    def commands(*rows: BaselineScore) -> list[list[str]]:
        lines = [*recommend(rows, "my pictures")]
        assert ": zoo " in lines[-1]
        return [shlex.split(line.partition(": zoo ")[2]) for line in lines if ": zoo " in line]

    plain, index = row("a", PLAIN, good), ["index", "a", "my pictures", "--out", "GALLERY"]
    finetune = ["finetune", "my pictures", "--from", "a"]
    assert commands(row("a", LINEAR, [score + 0.1 * score for score in good]), plain)[-1] == finetune
    for trained in ([row("a", LINEAR, noisy)], [row("a", LINEAR, bad)], []):
        found = commands(plain, *trained)
        assert found[-1] == index
        assert (finetune in found) is bool(trained)
    tied = commands(row("a", PLAIN, good, 9), row("c", WHITENED, noisy, 2), row("b", PLAIN, bad))
    made = tied.index(["baseline", "c", "--as", "c-whitened", "--whiten", "my pictures"])
    assert tied.index(index) < made < tied.index(["index", "c-whitened", "my pictures", "--out", "GALLERY"])


def test_a_model_that_learnt_from_the_measured_classes_is_not_recommended_over_one_that_did_not():
    def row(model: str, score: float, *notes: str) -> BaselineScore:
        scores = tuple(score * (1 + step / 100) for step in range(6))
        per_class = {"queries": (10,) * 6, "map_at_r": scores}
        means = {"map_at_r": float(np.mean(scores)), "recall_at_1": 0.5}
        return BaselineScore(model, "f", PLAIN, 8, 32, 1.0, "onnx", means, {}, per_class, notes)

    learnt, fair, worse = row("learnt", 0.9, "learnt has seen them"), row("fair", 0.6), row("worse", 0.3)
    text = " ".join(recommend([learnt, fair, worse]))
    assert text.startswith("fair, plain is best")
    assert "Not chosen: learnt has seen them" in text
    assert " ".join(recommend([learnt, fair])).startswith("fair, plain")
    assert " ".join(recommend([learnt])).startswith("learnt, plain")
