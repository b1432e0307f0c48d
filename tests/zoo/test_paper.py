"""Tables, figures and plans of researchers: tables in LaTeX and CSV, curves, several seeds, the forecast of a run."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator

import zoo
from tests.commandline import run_here
from zoo.paths import SHIPPED
from zoo.render import Table

MODEL = "margin-conv4-glyphs"


def test_latex_escapes_what_latex_would_run() -> None:
    table = Table(("a_b", "50 %"), [["x & y", "0.5 ± 0.1"], [r"\input{x}", None]], numbers=("50 %",))
    text = table.latex()
    assert text.startswith("\\begin{tabular}{lr}\n\\toprule\na\\_b & 50 \\% \\\\\n\\midrule\n")
    assert "x \\& y & 0.5 $\\pm$ 0.1 \\\\" in text
    assert "\\input" not in text
    assert text.endswith("\\bottomrule\n\\end{tabular}")


def test_published_tables_are_latex_and_csv(capsys: pytest.CaptureFixture[str]) -> None:
    run_here("benchmark compare", "revisiting-2", "--dataset", "cub", "--format", "latex")
    latex = capsys.readouterr().out
    run_here("benchmark compare", "--format", "csv")
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 1
    assert {len(row) for row in rows} == {len(rows[0])}


def test_curves_of_several_runs_are_one_figure_and_one_table(tmp_path: Path) -> None:
    names = (MODEL, "group-conv4-glyphs")
    for suffix, start in ((".pdf", b"%PDF"), (".png", b"\x89PNG"), (".svg", b"<?xml")):
        run_here("benchmark curves", *names, "--out", tmp_path / f"curves{suffix}")
        assert (tmp_path / f"curves{suffix}").read_bytes().startswith(start)
    run_here("benchmark curves", *names, "--out", tmp_path / "curves.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "curves.csv").read_text(encoding="utf-8"))))
    log = (SHIPPED / MODEL / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ours = [float(row["loss"]) for row in rows if row["model"] == MODEL]
    assert ours == [json.loads(line)["loss"] for line in log]
    with pytest.raises(zoo.errors.UsageError):
        run_here("benchmark curves", MODEL, "--metric", "nosuch", "--out", tmp_path / "x.csv")


@pytest.mark.slow
def test_seeds_are_models_and_one_row(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--set", "schedule.epochs=1", "--set", "schedule.steps=2", "--as", "tiny", "--quiet", "--json")
    run_here("train", MODEL, "--seeds", "2", *options)
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert all(set(row["ours"]["runs"]) == {"tiny", "tiny-seed1"} for row in rows)
    recipes = [json.loads((own_zoo / "models" / name / "recipe.json").read_text()) for name in ("tiny", "tiny-seed1")]
    assert [recipe["recipe"]["seed"] for recipe in recipes] == [0, 1]


def test_show_says_what_a_run_will_take(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here("train", MODEL, "--set", "schedule.epochs=3", "--show")
    shown = capsys.readouterr()
    assert json.loads(shown.out)["schedule"]["epochs"] == 3
    assert "3 epochs of 100 steps of 128 images" in shown.err
    assert str(own_zoo / "runs") in shown.err


def test_show_loads_no_torch() -> None:
    code = f"""import sys
from zoo.cli.main import run
run(["train", "{MODEL}", "--set", "schedule.epochs=3", "--show"])
sys.exit("torch" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_tracker_gets_every_step(own_zoo: Path) -> None:
    settings = {"schedule.epochs": 2, "schedule.steps": 3}
    zoo.train(MODEL, settings=settings, name="tracked", track=["tensorboard"], evaluate=False)
    (folder,) = (own_zoo / "runs").glob("tracked-*/tensorboard")
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    losses, epochs = events.Scalars("step/loss"), events.Scalars("loss")
    assert [event.step for event in losses] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in epochs] == [3, 6]
    assert epochs[0].value == pytest.approx(torch.tensor([event.value for event in losses[:3]]).mean().item())


@pytest.mark.slow
def test_trackio_gets_every_step(own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for another Pillow than ours, so that no extra brings it; with it installed by hand this test runs."""
    pytest.importorskip("trackio")
    own = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    train = ["-m", "zoo.cli.main", "train", MODEL, "--as", "tracked", "--track", "trackio", "--no-eval"]
    steps = ["--set", "schedule.epochs=2", "--set", "schedule.steps=3"]
    subprocess.run([sys.executable, *train, *steps], env=own, check=True, capture_output=True)
    ask = ["get", "metric", "--project", "dml-zoo", "--run", "tracked", "--json", "--metric"]
    code = "from trackio.cli import main; main()"
    values = {}
    for metric in ("step/loss", "loss"):
        command = [sys.executable, "-c", code, *ask, metric]
        printed = subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout
        values[metric] = {row["step"]: row["value"] for row in json.loads(printed)["values"]}
    assert list(values["step/loss"]) == [1, 2, 3, 4, 5, 6]
    epochs = [
        json.loads(line) for line in (own_zoo / "models" / "tracked" / "log.jsonl").read_text("utf-8").splitlines()
    ]
    assert values["loss"] == {3: pytest.approx(epochs[0]["loss"]), 6: pytest.approx(epochs[1]["loss"])}


@pytest.mark.slow
def test_a_run_without_an_earlier_one_is_measured_and_stays_the_same(
    own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("train", MODEL, "--set", "schedule.epochs=1", "--set", "schedule.steps=3", "--no-eval", "--as")
    run_here(*short, "quiet", "--quiet")
    assert "random images" not in capsys.readouterr().err
    run_here(*short, "shown")
    measured = capsys.readouterr().err
    assert re.search(
        r"at least \d+ s for the passes of 3 steps, in \d+\.\d GiB, measured with 128 random images", measured
    )
    logs = [json.loads((own_zoo / "models" / name / "log.jsonl").read_text("utf-8")) for name in ("quiet", "shown")]
    assert logs[0]["loss"] == logs[1]["loss"]
    run_here(*short, "shown", "--replace", "--set", "seed=1")
    again = capsys.readouterr().err
    assert "by an earlier run on this machine" in again
    assert "random images" not in again


@pytest.mark.slow
def test_folds_divide_the_classes() -> None:
    images = zoo.data.load_dataset("glyphs", "test")
    folds = zoo.data.class_folds(images, 4)
    tested = [name for _, test in folds for name in test.classes]
    assert sorted(tested) == sorted(images.classes)
    assert all(set(train.classes).isdisjoint(test.classes) for train, test in folds)
    assert all(len(train) + len(test) == len(images) for train, test in folds)
    with pytest.raises(zoo.errors.UsageError):
        zoo.data.class_folds(images, 1)


def test_the_citation_is_of_this_version() -> None:
    text = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(zoo.__version__)}$", text, re.MULTILINE)
