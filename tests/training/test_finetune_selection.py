"""Selection: metrics before and after, the share held out, and the model that `zoo finetune` keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import training.finetune
import zoo
from tests.training.cached.pictures import make_model, noise, write_pictures
from training.finetune import FinetuneRequest, finetune
from training.studies.compare import BASE_KEPT, find_runs
from zoo.cli.main import main
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.selection import measure_change, select, validation_share
from zoo.models import trunk_graph
from zoo.models.baselines import UNTRAINED
from zoo.models.card import Head
from zoo.models.results import few_classes_note, read_results

pytestmark = pytest.mark.slow

REQUEST = FinetuneRequest("toy", "mine", views=1, device="cpu")
HARMFUL = ["schedule.epochs=2", "schedule.steps=3", "optimizer.lr=5"]


def rows_of(classes: int, quality: float) -> np.ndarray:
    """Return embeddings of `noise(classes)`, which are the nearer to their classes the higher the quality."""
    draw = np.random.default_rng(0)
    labels = noise(classes).labels
    return draw.standard_normal((len(labels), 8)) + quality * draw.standard_normal((classes, 8))[labels]


def test_the_table_has_the_metrics_and_the_difference_of_the_same_queries() -> None:
    images = noise(6)
    before, after = rows_of(6, 0.5), rows_of(6, 2)
    for row in measure_change(before, after, images):
        first, second = (retrieval_metrics(rows, images.labels, k=(1,))[row.metric] for rows in (before, after))
        assert (row.before, row.after) == (first, second)
        assert row.difference == pytest.approx(second - first)
        assert row.difference_interval[0] <= row.difference <= row.difference_interval[1]
    same = measure_change(before, before, images)[0]
    assert (same.difference, same.difference_interval) == (0, (0, 0))


def test_queries_of_a_data_set_search_its_gallery() -> None:
    queries = np.arange(36) % 6 == 0
    images = replace(noise(6), factors={"query": queries.astype(np.int64)})
    before, after = rows_of(6, 0.5), rows_of(6, 2)
    for row in measure_change(before, after, images):
        expected = [
            retrieval_metrics(r[~queries], images.labels[~queries], (1,), r[queries], images.labels[queries])
            for r in (before, after)
        ]
        assert [row.before, row.after] == [metrics[row.metric] for metrics in expected]


@pytest.mark.parametrize(
    ("classes", "held_out"), [(2, 0), (3, 0), (4, 2), (7, 2), (8, 2), (14, 4), (100, 25), (120, 30), (5000, 30)]
)
def test_a_quarter_of_the_classes_and_at_least_two_are_held_out(classes: int, held_out: int) -> None:
    assert round(classes * validation_share(classes)) == held_out
    assert round(classes * validation_share(classes, 8)) == (held_out if classes >= 8 else 0)


def test_the_better_on_held_out_classes_is_kept() -> None:
    images = noise(6)
    worse, better = rows_of(6, 0.5), rows_of(6, 2)
    chosen = [select(*rows, images, epoch) for rows, epoch in (((worse, better), 3), ((worse, better), 0))]
    assert [(choice.kept, choice.epoch) for choice in chosen] == [("trained", 3), ("start", 0)]
    harmed = select(better, worse, images, 3)
    assert (harmed.kept, harmed.epoch, harmed.classes, harmed.images) == ("base", None, 6, 36)
    assert select(better, better, images, 3).kept == "trained"


def test_a_harmful_finetune_keeps_the_base_under_the_new_name(
    own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base has 16 numbers that separate brightness; a head of 1 number at a large rate cannot be better."""
    base = make_model(own_zoo / "models" / "toy")
    root = write_pictures(tmp_path, classes=12)
    settings = [*HARMFUL, 'heads=[{"name":"embedding","dim":1}]']
    words = [part for setting in settings for part in ("--set", setting)]
    call = ["finetune", str(root), "--from", "toy", "--as", "mine", "--views", "1", "--quiet"]
    assert main([*call, *words, "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept"] == found["selection"]["kept"] == "base"
    assert (found["selection"]["classes"], found["selection"]["images"]) == (2, 12)
    assert found["dim"] == {"before": base.dim, "after": base.dim}
    assert {row["difference"] for row in found["rows"]} == {0.0}
    model = zoo.load("mine", device="cpu")
    assert (model.card.name, model.card.fingerprint, model.card.dataset) == ("mine", base.fingerprint, base.dataset)
    assert main(["verify", "mine", "--quick", "--device", "cpu"]) == 0
    record = json.loads((model.folder / "recipe.json").read_text())
    assert (record["kept"], record["model"]["name"], record["base"]["name"]) == ("base", "mine", "toy")
    shown = zoo.info("mine")
    assert (shown.kept, shown.training_data) == ("base", {})
    assert (shown.method, shown.card.sources) == (base.method, base.sources)
    (run,) = (run for run in find_runs() if run.name == "mine")
    assert run.selection == BASE_KEPT  # not "best epoch ..."
    capsys.readouterr()
    # The classes that were held out are measured again as by any finetuned model.
    assert main(["evaluate", "mine", "--data", str(root), "--device", "cpu", "-k", "1", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"]["map_at_r"] == found["rows"][1]["after"]


def test_two_classes_that_choose_are_said_to_be_few(
    own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(own_zoo / "models" / "toy")
    root = write_pictures(tmp_path, classes=20)
    call = ["finetune", str(root), "--from", "toy", "--views", "1", "--quiet", "--device", "cpu"]
    short = ["--set", "schedule.epochs=1", "--set", "schedule.steps=1"]
    for share, said in ((2 / 14, True), (10 / 14, False)):
        name = f"chosen-{said}".lower()
        assert main([*call, "--as", name, *short, "--set", f"data.validation={share}"]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "kept: " in line)
        assert (few_classes_note(2) in line) is said


def test_two_of_four_training_classes_choose(own_zoo: Path, tmp_path: Path) -> None:
    base = make_model(own_zoo / "models" / "toy")
    root = write_pictures(tmp_path, classes=6)
    settings = [*HARMFUL, 'heads=[{"name":"embedding","dim":1}]']
    fitted = finetune(root, replace(REQUEST, settings=settings))
    chosen = fitted.to_json()["selection"]
    assert (len(fitted.split.train.classes), chosen["classes"], chosen["chosen_by"]) == (4, 2, "held-out-classes")
    assert chosen["kept"] == "base"
    assert zoo.load("mine", device="cpu").card.fingerprint == base.fingerprint


def test_fewer_than_four_training_classes_keep_the_base(
    own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = make_model(own_zoo / "models" / "toy")
    root = write_pictures(tmp_path, classes=5)
    call = ["finetune", str(root), "--from", "toy", "--views", "1", "--quiet", "--device", "cpu"]
    assert main([*call, "--as", "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["split"]["train_classes"]) == 3
    chosen = found["selection"]
    assert (chosen["kept"], chosen["chosen_by"], chosen["classes"]) == ("base", "too-few-classes", 0)
    assert (found["epochs"], {row["difference"] for row in found["rows"]}) == (0, {0.0})
    card = zoo.load("mine", device="cpu").card
    assert card.fingerprint == base.fingerprint
    assert "did not help" not in card.description  # nothing was tried
    assert json.loads((own_zoo / "models" / "mine" / "recipe.json").read_text())["selection"] == chosen
    assert main([*call, "--as", "text"]) == 0
    assert "3 training classes" in capsys.readouterr().out

    words = [part for setting in [*HARMFUL, "data.validation=0"] for part in ("--set", setting)]
    assert main([*call, "--as", "other", *words, "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["selection"]
    assert (chosen["kept"], chosen["chosen_by"], chosen["metric"]) == ("trained", "last-epoch", None)
    assert zoo.load("other", device="cpu").card.fingerprint != base.fingerprint


@pytest.mark.parametrize("dim", [16, 8])
def test_a_start_that_is_kept_names_only_what_shaped_it(
    dim: int, own_zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A head of the base's size is its own head; others are principal directions. The learning rate changes nothing."""
    base = make_model(own_zoo / "models" / "toy", heads=(Head("embedding", 16),))
    base = replace(base, method="margin", dataset="omniglot", sources=("arXiv:1706.07567",))
    base.write(own_zoo / "models" / "toy")
    root = write_pictures(tmp_path, classes=12)
    draw = np.random.default_rng(0)
    for folder in root.iterdir():  # a colour for each class, so that every head separates them
        colour = draw.integers(0, 200, 3)
        for file in folder.iterdir():
            Image.fromarray((colour + draw.integers(0, 4, (26, 30, 3))).astype(np.uint8)).save(file)
    settings = ["schedule.epochs=1", "schedule.steps=1", "optimizer.lr=1e-12", f'heads=[{{"name":"e","dim":{dim}}}]']
    fitted = finetune(root, replace(REQUEST, method="ms", settings=settings))
    assert fitted.outcome.best_epoch == 0
    shown = zoo.info("mine")
    assert (shown.kept, shown.training_data, shown.dataset) == ("start", {}, "omniglot")
    assert shown.method == ("margin" if dim == 16 else UNTRAINED)
    assert shown.card.sources == base.sources
    assert main(["info", "mine"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1)
    assert "kept" in rows
    assert main(["verify", "mine", "--quick", "--device", "cpu"]) == 0


def test_the_record_of_a_kept_base_names_the_runtime_of_its_rows(
    own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second load would make a graph now, as a load on another moment's machine may."""
    make_model(own_zoo / "models" / "toy")
    keep = training.finetune._keep

    def keep_and_allow_graphs(*words: Any) -> None:
        keep(*words)
        monkeypatch.setattr(trunk_graph, "MAKING_SECONDS", -1.0)

    monkeypatch.setattr(training.finetune, "_keep", keep_and_allow_graphs)
    assert finetune(write_pictures(tmp_path, classes=5), REQUEST).selection.kept == "base"
    (result,) = read_results(own_zoo / "models" / "mine")
    assert (result["runtime"], result["model"]) == ("torch", "mine")
    assert zoo.load("mine", "auto", device="cpu", images=8).runtime == "onnx"
