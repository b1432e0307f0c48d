"""Scores on different images stand side by side and are never compared (`zoo evaluate --save`, `benchmark models`)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.raising import raises
from tests.serving import toys
from zoo.cli import main as cli
from zoo.cli.main import main
from zoo.errors import UsageError
from zoo.models.results import read_results


@pytest.fixture
def tables(pictures: Path, tmp_path: Path) -> dict[str, Path]:
    """Two tables of different images with as many rows and classes, as an own data set of birds and one of cars."""
    found = {}
    for name, kept in (("birds", "0123"), ("cars", "1234")):
        rows = [f"{pictures}/{label}/{number}.png,{label}" for label in toys.CLASSES for number in kept]
        found[name] = tmp_path / f"{name}.csv"
        found[name].write_text("image,label\n" + "\n".join(rows) + "\n")
    return found


def measure(model: str, table: Path, *more: str) -> None:
    words = ["evaluate", model, "--runtime", "onnx", "--dataset", "folder", "--data", str(table), "--save", *more]
    assert main(words) == 0


def models(capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    capsys.readouterr()
    assert main(["benchmark", "models", "--dataset", "folder", "--metric", "recall_at_1", *more]) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def copy_of(toy: Path, name: str) -> Path:
    """A second model, without scores."""
    folder = Path(shutil.copytree(toy, toy.parent / name))
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "name": name}))
    (folder / "results.json").unlink(missing_ok=True)
    return folder


def test_scores_on_two_tables_stay_and_stand_in_two_tables(
    toy: Path, tables: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for table in tables.values():
        measure("toy-pool", table)
    birds, cars = read_results(toy)
    assert [result["data"]["name"] for result in (birds, cars)] == ["birds.csv", "cars.csv"]
    assert birds["queries"] == cars["queries"]
    headings = [line for line in models(capsys) if ".csv (" in line]
    hashes = {result["data"]["name"]: result["data"]["sha256"][:8] for result in (birds, cars)}
    assert {line.partition(", all of it, 4 classes")[0] for line in headings} == {
        f"{name} ({short})" for name, short in hashes.items()
    }
    assert main(["benchmark", "models", "--dataset", "cars.csv", "--json"]) == 0
    assert {row["data_key"] for row in json.loads(capsys.readouterr().out)} == {cars["data"]["sha256"]}
    measure("toy-pool", tables["birds"])  # the same again
    assert [result["data"]["name"] for result in read_results(toy)] == ["cars.csv", "birds.csv"]


@pytest.mark.slow
def test_a_model_that_was_measured_on_other_images_is_not_compared(
    toy: Path, tables: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both tables have 16 queries of 4 classes, so that only the identity of the images tells them apart."""
    other = copy_of(toy, "other")
    measure("toy-pool", tables["birds"])
    measure("other", tables["cars"])
    with raises(UsageError, "no-results") as caught:
        cli.run(["benchmark", "models", "--dataset", "folder", "--against", "other"])
    assert re.search(r"it has cars\.csv \([0-9a-f]{8}\).*measured on birds\.csv \(", str(caught.value))
    measure("other", tables["birds"])
    lines = models(capsys, "--against", "other")
    assert any("toy-pool" in line and "+0.0000" in line for line in lines)
    assert sum("the model itself" in line for line in lines) == 2  # on birds and on cars
    measure("toy-pool", tables["cars"])
    on_birds = [result for result in read_results(other) if result["data"]["name"] == "birds.csv"]
    (other / "results.json").write_text(json.dumps(on_birds))
    (row,) = [line for line in models(capsys, "--against", "other") if "not measured on these images" in line]
    assert "toy-pool" in row


@pytest.mark.slow
def test_scores_of_unknown_images_are_equal_to_nothing(
    toy: Path, tables: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    other = copy_of(toy, "other")
    for folder in (toy, other):
        measure(folder.name, tables["birds"])
        (result,) = read_results(folder)
        del result["data"]
        (folder / "results.json").write_text(json.dumps([result]))
    headings = [line for line in models(capsys) if "data unknown" in line]
    assert {line.partition(", all of it")[0] for line in headings} == {
        "folder (data unknown), of other",
        "folder (data unknown), of toy-pool",
    }
    with raises(UsageError, "no-results"):
        cli.run(["benchmark", "models", "--dataset", "folder", "--against", "other"])
    measure("other", tables["birds"])
    assert ["data" in result for result in read_results(other)] == [False, True]  # which images it was is unknown


@pytest.mark.slow
def test_scores_of_other_weights_are_kept_apart(
    toy: Path, tables: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    measure("toy-pool", tables["birds"])
    (result,) = read_results(toy)
    (toy / "results.json").write_text(json.dumps([result | {"fingerprint": "0" * 64, "metrics": {"recall_at_1": 0.5}}]))
    measure("toy-pool", tables["birds"])
    assert len(read_results(toy)) == 2
    assert not any("0.5000" in line for line in models(capsys))
    assert main(["info", "toy-pool"]) == 0
    assert "of other weights or preprocessing" in capsys.readouterr().out


@pytest.mark.slow
def test_scores_of_labels_alone_name_the_file(
    pictures: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.npy"
    assert main(["embed", "toy-pool", str(pictures), "--out", str(rows), "--runtime", "onnx"]) == 0
    capsys.readouterr()
    assert main(["score", str(rows), "--labels", str(tmp_path / "rows.csv"), "-k", "1"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"toy-pool \(onnx, fp32\) on rows\.csv \(labels [0-9a-f]{8}\)", first)
    assert second.startswith("24 queries of 4 classes; ")
