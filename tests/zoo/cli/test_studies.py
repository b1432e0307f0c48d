"""`zoo benchmark run`, `resume`, `search` and `studies`, on a folder of images."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commandline import run_here
from tests.raising import raises
from tests.training.studies import toys
from training import definitions
from training.studies import papers, study
from training.studies.papers import partial_note
from training.studies.study import Study
from zoo.cli.main import main
from zoo.errors import DatasetError, TrainingError, UsageError

SETTINGS = [word for setting in toys.SETTINGS for word in ("--set", setting)]


@pytest.fixture(autouse=True)
def listed_study(monkeypatch: pytest.MonkeyPatch) -> Study:
    """List the toy study, without its spectra: drawing them takes longer than the runs."""
    study = dataclasses.replace(toys.STUDY, spectrum=False)
    monkeypatch.setitem(papers.STUDIES, study.name, study)
    return study


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(toys.images(tmp_path / "images"))


@pytest.mark.slow
def test_a_study_is_run_arm_by_arm_resumed_and_reported(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "out")
    begun = ("toys/two", "--dataset", "glyphs", "--data", data, "--out", folder, "--seeds", "1", *SETTINGS)
    assert run_here("benchmark run", *begun, "--only", "margin") == 0
    out, err = capsys.readouterr()
    assert "# toys/two on images (" in out
    assert "Chosen: 1 of the study's 2 arms (margin). 2 claims about others are left out." in out
    assert "runs are left" not in err
    for written in (tmp_path / "out").glob("report.*"):
        written.unlink()
    assert run_here("benchmark resume", folder, "--report", "--quiet") == 0
    assert capsys.readouterr().out == out  # nothing was trained meanwhile
    assert "<h1>toys/two on images (" in (tmp_path / "out" / "report.html").read_text()
    assert run_here("benchmark run", *begun, "--json", "--quiet") == 0
    out, err = capsys.readouterr()
    assert err == ""
    printed = json.loads(out)
    assert (printed["done"], printed["before"], printed["failed"]) == (1, 1, [])
    assert printed["report"]["missing"] == []
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == printed["report"]
    assert {row["arm"] for row in printed["report"]["rows"]} == {"margin", "contrastive"}
    other = (*begun[:4], data, "--out", str(tmp_path / "other"), *begun[7:])
    assert run_here("benchmark run", *other, "--reuse", folder) == 0
    assert f"2 finished runs taken over from {folder}." in capsys.readouterr().err


@pytest.mark.slow
def test_a_partial_study_is_announced_before_it_is_run(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(papers.ALIASES, "group/figure-6", ("toys/two",))
    begun = ("group/figure-6", "--dataset", "glyphs", "--data", data, "--out", str(tmp_path / "out"), "--seeds", "1")
    assert run_here("benchmark run", *begun, *SETTINGS, "--only", "margin") == 0
    out, err = capsys.readouterr()
    assert "group/figure-6" in err
    assert "toys/two" in err
    assert "docs/papers.md" in err
    assert "# toys/two on images (" in out
    assert run_here("benchmark run", *begun, *SETTINGS, "--only", "margin", "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_folder_of_images_is_a_data_set_of_its_own(
    own_zoo: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [word for word in SETTINGS if word != "data.dataset=folder"]
    small.remove("--set")
    named = ("toys/two", "--dataset", "folder")
    with raises(UsageError, "missing-value"):
        run_here("benchmark run", *named)
    for arguments in (named, ("toys/two", "--dataset", "glyphs", "--set", "data.dataset=folder")):
        with pytest.raises(DatasetError) as refusal:
            run_here("benchmark run", *arguments, "--data", f"{data}/train")
        assert f"{data}/train/test" in str(refusal.value)
    assert run_here("benchmark run", *named, "--data", data, "--seeds", "1", "--only", "margin", *small) == 0
    out = capsys.readouterr().out
    assert "# toys/two on images (" in out
    assert f"The images are those of the data set folder ({data}), the recipes those of cifar100." in out
    table = own_zoo / "birds.csv"
    files = sorted(Path(data).rglob("*.png"))
    splits = [file.relative_to(data).parts[0] for file in files]
    rows = [f"{file},{split} {file.parent.name},{split}" for file, split in zip(files, splits, strict=True)]
    table.write_text("\n".join(["image,label,split", *rows]))
    quick = ("--seeds", "1", "--only", "margin", "--quiet", "--out", str(own_zoo / "by-table"))
    by_table = ("benchmark run", "toys/two", "--dataset", "glyphs", "--data", str(table), *quick)
    assert run_here(*by_table, *SETTINGS) == 0
    capsys.readouterr()
    with raises(UsageError, "no-results") as caught:
        run_here("benchmark resume", "toys/two", "--dataset", "glyphs")
    assert "toys-two-glyphs" in str(caught.value)
    with raises(UsageError, "missing-value"):
        run_here("benchmark resume", "toys/two")
    assert run_here("benchmark resume", *named, "--report") == 0
    assert capsys.readouterr().out == out
    assert run_here("benchmark resume", *named, "--only", "contrastive", "--quiet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["done"] == 1


@pytest.fixture
def forget_recipes() -> Iterator[Callable[[], None]]:
    """Return a function by which this process resolves recipes again, as the next one would."""

    def forget() -> None:
        study._seeded_recipes.cache_clear()
        study._resolve_members.cache_clear()

    yield forget
    forget()


@pytest.mark.parametrize("resolved", [True, False], ids=["recorded", "of the plan"])
def test_runs_by_another_definition_are_reported_but_neither_continued_nor_taken_over(
    resolved: bool,
    tmp_path: Path,
    data: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    forget_recipes: Callable[[], None],
) -> None:
    """The fault: `--reuse` took over runs of an older definition, and printed a verdict on both."""
    older, newer = str(tmp_path / "older"), str(tmp_path / "newer")
    quick = ("toys/two", "--dataset", "glyphs", "--data", data, "--seeds", "1", *SETTINGS)
    assert run_here("benchmark run", *quick, "--out", older, "--quiet") == 0
    monkeypatch.setitem(definitions.CHANGES, "loss contrastive", ("distances are squared",))
    forget_recipes()
    for words in (("benchmark resume", older), ("benchmark run", *quick, "--out", older)):
        with raises(TrainingError, "other-study") as caught:
            run_here(*words)
        assert "distances are squared" in str(caught.value)
    capsys.readouterr()
    results = Path(older, "results.jsonl")
    records = [json.loads(line) for line in results.read_text().splitlines()]
    if not resolved:
        records = [{key: value for key, value in record.items() if key != "resolved"} for record in records]
        results.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run_here("benchmark run", *quick, "--out", newer, "--reuse", older, "--json") == 0
    out, err = capsys.readouterr()
    assert "1 finished runs taken over" in err
    assert "loss contrastive" in err
    printed = json.loads(out)
    assert (printed["before"], printed["done"]) == (1, 1)
    assert run_here("benchmark resume", older, "--report", "--quiet") == 0
    assert "contrastive (loss contrastive: distances are squared)" in capsys.readouterr().out


def test_all_studies_of_a_name_are_run(
    tmp_path: Path,
    data: str,
    listed_study: Study,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = dataclasses.replace(listed_study, name="toys/three")
    monkeypatch.setitem(papers.STUDIES, other.name, other)
    monkeypatch.setitem(papers.ALIASES, "toys/figure-1", (listed_study.name, other.name))
    begun = ("toys/figure-1", "--dataset", "glyphs", "--data", data, "--out", str(tmp_path), "--seeds", "1", *SETTINGS)
    assert run_here("benchmark run", *begun, "--only", "margin", "--quiet", "--json") == 0
    outcomes = json.loads(capsys.readouterr().out)
    assert [outcome["report"]["study"] for outcome in outcomes] == ["toys/two", "toys/three"]
    assert [outcome["folder"] for outcome in outcomes] == [str(tmp_path / "toys-two"), str(tmp_path / "toys-three")]
    read = f"The images are those of the data set folder ({data}), the recipes those of glyphs."
    assert read in outcomes[0]["report"]["note"]


def test_a_study_as_published_has_a_folder_of_its_own(own_zoo: Path, data: str) -> None:
    begun = ("toys/two", "--dataset", "glyphs", "--data", data, "--seeds", "1", "--quiet", *SETTINGS)
    assert run_here("benchmark run", *begun, "--only", "margin", "--as-published") == 0
    folder = own_zoo / "studies" / "toys-two-as-published-glyphs"
    (run,) = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    assert run["resolved"][0]["as_published"] is True
    assert run["resolved"][0]["objective"]["loss_args"]["count_tuples"] is True
    resumed = ("toys/two-as-published", "--dataset", "glyphs", "--report", "--quiet")
    assert run_here("benchmark resume", *resumed) == 0


def test_a_study_without_published_code_is_refused(own_zoo: Path) -> None:
    begun = ("sharing/table-8", "--dataset", "glyphs", "--as-published")
    with raises(UsageError, "option-without-effect"):
        run_here("benchmark run", *begun)
    assert not (own_zoo / "studies").exists()


def test_the_default_folder_is_in_the_local_zoo(own_zoo: Path, data: str) -> None:
    begun = ("toys/two", "--dataset", "glyphs", "--data", data, "--seeds", "1", "--quiet", *SETTINGS)
    assert run_here("benchmark run", *begun, "--only", "margin") == 0
    assert (own_zoo / "studies" / "toys-two-glyphs" / "report.json").is_file()


def test_a_failed_run_is_in_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toys.images(tmp_path / "spoilt") / "train" / "class3" / "2.png").write_bytes(b"no image")
    begun = ("toys/two", "--dataset", "glyphs", "--data", str(tmp_path / "spoilt"), "--out", str(tmp_path / "out"))
    assert run_here("benchmark run", *begun, "--seeds", "1", *SETTINGS) == 1
    out, err = capsys.readouterr()
    assert re.search(r"margin, seed 0: failed: .*class3/2\.png", err)
    assert re.search(r"Failed: margin, seed 0: .*class3/2\.png", out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "command", [("run", "revisiting/figure-2"), ("run", "claims/rho"), ("search", "margin", "contrastive")]
)
def test_a_missing_data_set_is_reported_once_and_leaves_no_files(
    command: tuple[str, ...], own_zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ZOO_DATA", raising=False)
    assert main(["benchmark", *command, "--dataset", "cub"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("CUB-200-2011 is not in")) == ("", 1)
    assert err.count("\n") == (1 if partial_note(command[1]) is None else 2)
    assert not (own_zoo / "studies").exists()


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_without_images_is_reported_before_training(split: str, tmp_path: Path, data: str) -> None:
    shutil.rmtree(Path(data) / split)
    (Path(data) / split).mkdir()
    begun = ("--dataset", "glyphs", "--data", data, "--out", str(tmp_path / "out"), *SETTINGS)
    for command, name in (("benchmark run", "toys/two"), ("benchmark search", "ntxent")):
        with pytest.raises(DatasetError) as caught:
            run_here(command, name, *begun)
        assert str(Path(data) / split) in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_finished_runs_are_reported_and_adopted_without_the_data(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    begun = ("toys/two", "--dataset", "glyphs", "--data", data, "--seeds", "1", *SETTINGS, "--only", "margin")
    assert run_here("benchmark run", *begun, "--out", str(folder)) == 0
    report, before = capsys.readouterr().out, files(folder)
    Path(data).rename(tmp_path / "elsewhere")
    with pytest.raises(DatasetError) as caught:
        run_here("benchmark resume", str(folder), "--only", "contrastive")
    assert data in str(caught.value)
    assert files(folder) == before  # not even the plan has another arm
    assert run_here("benchmark resume", str(folder), "--quiet") == 0
    assert capsys.readouterr().out == report
    moved = (*begun[:4], str(tmp_path / "elsewhere"), *begun[5:])
    (tmp_path / "elsewhere" / "train").rename(tmp_path / "train")
    (tmp_path / "elsewhere" / "train").mkdir()
    assert run_here("benchmark run", *moved, "--out", str(tmp_path / "new"), "--reuse", str(folder)) == 0
    with pytest.raises(DatasetError):
        run_here("benchmark run", *moved, "--seeds", "2", "--out", str(tmp_path / "newer"), "--reuse", str(folder))
    assert not (tmp_path / "newer").exists()


@pytest.mark.slow
def test_a_search_is_run_and_resumed(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, few = str(tmp_path / "out"), ("--trials", "1", "--reruns", "1", "--folds", "2", "--patience", "1")
    begun = ("ntxent", "--dataset", "glyphs", "--data", data, "--out", folder, *few, *SETTINGS, "--quiet")
    with pytest.raises(DatasetError) as caught:
        run_here("benchmark search", *begun, "--data", f"{data}/train")
    assert f"{data}/train/test" in str(caught.value)
    assert run_here("benchmark search", *begun) == 0
    assert "# Search on images" in capsys.readouterr().out
    assert run_here("benchmark resume", folder, "--json", "--quiet") == 0
    (row,) = json.loads(capsys.readouterr().out)["losses"]
    assert (row["loss"], row["trials"], row["reruns"]) == ("ntxent", {"complete": 1}, 1)
    assert run_here("benchmark resume", folder, "--report", "--quiet") == 0
    assert "# Search on images" in capsys.readouterr().out
    Path(data).rename(tmp_path / "elsewhere")
    assert run_here("benchmark resume", folder, "--quiet") == 0  # nothing is left to do
    with pytest.raises(DatasetError) as caught:
        run_here("benchmark search", *begun, "--trials", "2")
    assert data in str(caught.value)
    with raises(UsageError, "option-without-effect"):
        run_here("benchmark resume", folder, "--only", "margin")


def test_the_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("benchmark list", "--paper", "Revisiting") == 0
    out = capsys.readouterr().out
    assert "revisiting/figure-7" in out
    assert "claims/rho" not in out
    assert run_here("benchmark list", "--json") == 0
    listed = {study["name"]: study for study in json.loads(capsys.readouterr().out)["studies"]}
    assert set(listed) == set(papers.STUDIES)
    assert listed["claims/rho"]["arms"][1]["recipe"] == "r-margin-$backbone-$dataset"


def test_weights_of_a_backbone_that_no_arm_has_are_refused(data: str) -> None:
    with raises(UsageError, "unknown-name"):
        run_here("benchmark run", "toys/two", "--dataset", "glyphs", "--data", data, "--weights", "ibn=somewhere")
