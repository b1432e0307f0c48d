"""`--latex`: tables with the rules of booktabs, and everything else as comments, so that the output can be compiled."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from training.health.diagnosis import History
from training.reproduce import ReproducedMetric, Reproduction
from zoo.cli.main import main
from zoo.cli.reproduce import _print as print_reproduction
from zoo.console import show, tables_in_latex

RULES = [r"\toprule", r"\midrule", r"\bottomrule"]


def assert_compiles(text: str) -> None:
    """Every line outside of a comment is a part of one tabular."""
    lines = [line for line in text.splitlines() if line and not line.startswith("%")]
    assert lines[0].startswith(r"\begin{tabular}")
    assert lines[-1] == r"\end{tabular}"
    assert [line for line in lines if line.endswith("rule")] == RULES
    assert any(line.startswith("% ") for line in text.splitlines())


def test_scores_and_their_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join("abc" * 4))
    for name in ("a.npy", "b_%.npy"):
        np.save(tmp_path / name, rows)
    first, second = str(tmp_path / "a.npy"), str(tmp_path / "b_%.npy")
    assert main(["score", first, "--labels", str(labels), "--latex"]) == 0
    assert_compiles(capsys.readouterr().out)
    assert main(["score", first, second, "--labels", str(labels), "--latex"]) == 0
    assert_compiles(text := capsys.readouterr().out)
    assert r"b\_\%.npy" in text


def test_a_reproduction(capsys: pytest.CaptureFixture[str]) -> None:
    metric = ReproducedMetric("map_at_r", 0.4, (0.3, 0.5), 0.41, True)
    with tables_in_latex(True):
        print_reproduction(Reproduction("m", "f", "folder", {}, {}, (None, None), (metric,), False, []))  # type: ignore[arg-type]
    assert_compiles(capsys.readouterr().out)
    show("as before")
    assert capsys.readouterr().out == "as before\n"


def test_the_health_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.health import doctor

    record = {"epoch": 1, "indicators": {}}
    monkeypatch.setattr(doctor, "find_run", lambda _: tmp_path / "run_1%")
    history = History(records=[record])  # type: ignore[call-arg,list-item]
    monkeypatch.setattr(doctor, "read_history", lambda _: history)
    assert main(["doctor", "run", "--latex"]) in (0, 1)
    assert_compiles(capsys.readouterr().out)


def test_a_study_says_on_what_its_tables_were_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(__file__).parents[3] / "docs" / "studies" / "views-birds"
    shutil.copytree(source, tmp_path / "study")
    assert main(["benchmark", "resume", str(tmp_path / "study"), "--report", "--latex"]) == 0
    text = capsys.readouterr().out
    captions, labels = (re.findall(rf"\\{name}{{(.*)}}", text) for name in ("caption", "label"))
    assert len(set(labels)) == len(captions) == text.count("\\begin{table}")
    assert all("cub2010" in caption and "seeds" in caption for caption in captions)
