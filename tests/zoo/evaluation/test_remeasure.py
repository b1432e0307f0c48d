"""`zoo verify --data`: scores measured again and compared with results.json; files besides the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.models import make_model
from tests.serving import toys
from zoo.cli.main import main
from zoo.evaluation.remeasure import remeasure
from zoo.models.load import Embedder, load
from zoo.models.results import Check, read_results
from zoo.models.verify import verify_files
from zoo.paths import SHIPPED


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A toy model whose scores on the pictures are in its results.json."""
    folder = toys.write_model(tmp_path_factory.mktemp("models") / "toy-pool")
    command = ["evaluate", str(folder), "--runtime", "onnx", "--dataset", "folder", "--data", str(pictures)]
    assert main([*command, "--metrics", "all", "--save"]) == 0
    return folder


@pytest.fixture
def copy(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "toy-pool"))


def check_of(folder: Path, data: Path | None) -> Check:
    (check,) = remeasure(folder, data)
    return check


def change(folder: Path, **values: Any) -> None:
    (result,) = read_results(folder)
    (folder / "results.json").write_text(json.dumps([{**result, **values}]))


def test_scores_that_are_true_pass(copy: Path, pictures: Path) -> None:
    check = check_of(copy, pictures)
    assert check.name == "scores folder all onnx fp32"
    assert check.ok is True
    assert check.detail.startswith("recall_at_1 ")


def test_a_wide_interval_does_not_excuse_a_false_score(copy: Path, pictures: Path) -> None:
    """The file under test must not set its own tolerance."""
    (result,) = read_results(copy)
    claims = dict.fromkeys(result["metrics"], 0.5)
    change(copy, metrics=claims, intervals={metric: [0.0, 1.0] for metric in claims})
    check = check_of(copy, pictures)
    assert check.ok is False
    assert f"recall_at_1 {result['metrics']['recall_at_1']:.4f}, not 0.5000" in check.detail


@pytest.mark.parametrize(("off", "ok"), [(0.0019, True), (0.0021, False), (-0.0019, True), (-0.0021, False)])
def test_the_tolerance(copy: Path, pictures: Path, off: float, ok: bool) -> None:
    (result,) = read_results(copy)
    change(copy, metrics={"map_at_r": result["metrics"]["map_at_r"] + off}, intervals={"map_at_r": [0.0, 1.0]})
    assert check_of(copy, pictures).ok is ok


def test_scores_that_are_not_measured_again_are_named(copy: Path, pictures: Path) -> None:
    (result,) = read_results(copy)
    recall = {"recall_at_1": result["metrics"]["recall_at_1"]}
    change(copy, metrics={**recall, "nmi": 0.99, "made_up": 1.0})
    check = check_of(copy, pictures)
    assert check.ok is True
    assert check.detail.endswith("1 scores within 0.002; not checked: nmi, made_up")
    change(copy, metrics={"recall_at_1": 0.0, "nmi": 0.99})
    assert check_of(copy, pictures).detail.endswith("; not checked: nmi")


def test_a_score_that_is_off_fails(copy: Path, pictures: Path) -> None:
    (result,) = read_results(copy)
    change(copy, metrics={**result["metrics"], "map_at_r": 0.0}, intervals={"map_at_r": [0.0, 0.1]})
    check = check_of(copy, pictures)
    assert check.ok is False
    assert "map_at_r" in check.detail
    assert "not 0.0000" in check.detail


def test_without_an_interval_the_score_itself_counts(copy: Path, pictures: Path) -> None:
    change(copy, intervals={})
    assert check_of(copy, pictures).ok is True
    (result,) = read_results(copy)
    change(copy, metrics={**result["metrics"], "recall_at_1": result["metrics"]["recall_at_1"] - 0.01})
    assert check_of(copy, pictures).ok is False


def test_a_missing_data_set_leaves_the_check_open(copy: Path, tmp_path: Path, pictures: Path) -> None:
    assert check_of(copy, None).ok is None  # without --data
    change(copy, dataset="cub")
    assert check_of(copy, tmp_path).ok is None
    change(copy, dataset=None)
    assert check_of(copy, pictures).ok is None
    change(copy, dataset="folder", queries=7)
    assert check_of(copy, pictures).ok is False  # of the same images, and not as many


def test_other_images_leave_the_check_open(copy: Path, pictures: Path, tmp_path: Path) -> None:
    (result,) = read_results(copy)
    moved = Path(shutil.copytree(pictures, tmp_path / "moved"))
    assert check_of(copy, moved).ok is True
    first = next(moved.rglob("*.png"))
    first.write_bytes(first.read_bytes() + b" ")  # the same name and class
    check = check_of(copy, moved)
    assert check.ok is None
    assert check.detail.startswith("other images: these are moved (")
    assert f"{pictures.name} ({result['data']['sha256'][:8]})" in check.detail
    change(copy, data=None)  # of an older file
    assert check_of(copy, pictures).ok is None
    assert "folder (data unknown)" in check_of(copy, pictures).detail


def test_a_missing_variant_and_unknown_scores_fail(copy: Path, pictures: Path) -> None:
    change(copy, precision="int8")
    assert check_of(copy, pictures).ok is False
    change(copy, precision="fp32", metrics={"nmi": 0.5})
    assert check_of(copy, pictures).ok is False


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
def test_a_score_by_a_graph_of_the_cache_is_measured_again(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    """Commands that embed many images save scores by ONNX Runtime of models without a graph of their own."""
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("zoo.models.trunk_graph.MAKING_SECONDS", 0.0)
    make_model(tmp_path / "model")
    main(["evaluate", str(tmp_path / "model"), "--dataset", "folder", "--data", str(pictures), "--save"])
    (result,) = read_results(tmp_path / "model")
    assert result["runtime"] == "onnx"
    if not cached:
        shutil.rmtree(tmp_path / "home")
    assert check_of(tmp_path / "model", pictures).ok is True


def test_without_results_there_are_no_checks(tmp_path: Path) -> None:
    assert list(remeasure(toys.write_model(tmp_path / "toy-pool"))) == []


def test_pickles_and_a_config_that_contradicts_the_card(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SHIPPED / "margin-conv4-glyphs", tmp_path / "model"))
    assert [check.ok for check in verify_files(folder)] == [True, True]
    (folder / "onnx" / "weights.pth").write_bytes(b"")
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["input_size"] = [3, 33, 33]
    (folder / "config.json").write_text(json.dumps(config))
    pickles, about = verify_files(folder)
    assert (pickles.ok, pickles.detail, about.ok) == (False, "onnx/weights.pth", False)
    assert "33" in about.detail
    (folder / "config.json").write_text("{}")
    assert [check.ok for check in verify_files(folder)] == [False, False]
    (folder / "config.json").unlink()
    assert [check.ok for check in verify_files(folder)] == [False, None]


def test_the_command_ends_with_1_when_any_check_fails(
    copy: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", str(copy), "--data", str(pictures), "--json"]
    main(command)
    checks = {check["name"]: check["ok"] for check in json.loads(capsys.readouterr().out)}
    assert checks["scores folder all onnx fp32"] is True
    assert checks["no pickles"] is True
    (result,) = read_results(copy)
    change(copy, metrics={"recall_at_1": 0.0}, intervals={})
    assert main(["verify", str(copy), "--data", str(pictures)]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "scores" in line)
    assert line.startswith("FAILED")
    assert f"recall_at_1 {result['metrics']['recall_at_1']:.4f}, not" in line
    main(["verify", str(copy), "--quick"])
    assert "scores" not in capsys.readouterr().out


def test_the_device_is_for_torch(copy: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []

    def watched(folder: Path, runtime: str, precision: str, device: str | None = None) -> Embedder:
        devices.append((runtime, device))
        return load(folder, "onnx", precision)

    monkeypatch.setattr("zoo.evaluation.remeasure.load", watched)
    for runtime in ("torch", "onnx"):
        change(copy, runtime=runtime)
        main(["verify", str(copy), "--data", str(pictures), "--device", "cuda:1"])
    assert devices == [("torch", "cuda:1"), ("onnx", None)]
