"""Runs of the benchmarks of embedding and export on toys; their measurements are not checked here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import bench_embed, bench_exports, bench_photos
from tests.benchmarks.figures import Figure
from tests.exports.toys import make_toy
from tests.models import CARD
from zoo.cli.main import main


@pytest.mark.slow  # `make bench` runs the whole script
def test_int8_is_calibrated_on_the_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def in_process(folder: Path, precisions: list[str], calibration: Path) -> None:
        assert main(bench_embed.export_command(folder, precisions, calibration)) == 0

    monkeypatch.setattr(bench_embed, "SIDES", (40, 30))
    monkeypatch.setattr(bench_embed, "resnet50", make_toy)
    monkeypatch.setattr(bench_embed, "export_all", in_process)
    monkeypatch.setattr(bench_embed, "cold", lambda folder, image, runtime: {"onnx": 0.5, "torch": 4.0}[runtime])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    file = tmp_path / "figures.json"
    bench_embed.main(["--images", "12", "--batch", "4", "--repeats", "1", "--json", str(file)])
    report = json.loads(file.read_text())
    figures = {figure["what"]: figure for figure in report["figures"]}
    assert "onnxruntime" in report["versions"]
    assert figures["cold process to its first embedding: ONNX"]["reached"] is True
    assert figures["cold process to its first embedding: ONNX of torch"]["reached"] is False
    for precision, share in (("fp32", 0.9), ("int8", 0.8)):
        assert figures[f"ONNX {precision}: embed() of model alone"]["target"] == share
    assert figures["ONNX fp32: embed() to plain loop"]["target"] == 2
    printed = capsys.readouterr().out
    assert "cuda: left out, torch sees no GPU" in printed
    assert "at most 0.1" in printed
    assert "NOT reached" in printed


@pytest.mark.slow  # `make bench` runs the whole script
def test_graphs_run_in_the_session_that_zoo_load_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[Path] = []
    real = bench_exports.open_session
    monkeypatch.setattr(bench_exports, "open_session", lambda path, device: opened.append(path) or real(path, device))
    monkeypatch.setattr(bench_exports, "resnet50", lambda folder, size: make_toy(folder))
    monkeypatch.setattr(bench_exports, "torch_forms", lambda folder, device: {})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "figures.json"
    size = str(CARD.preprocessing.crop)
    bench_exports.main(["--batches", "8", "--repeats", "1", "--threads", "1", "--size", size, "--json", str(file)])
    assert [path.name for path in opened] == ["fp32.onnx", "fp16.onnx", "int8.onnx"]
    figures = json.loads(file.read_text())["figures"]
    targets = {figure["what"].split(",")[0]: figure["target"] for figure in figures if "spinning" not in figure["what"]}
    assert targets["batch 8: ONNX int8"] == 5
    assert targets["batch 8: ONNX fp32"] == 2.6
    assert sum("spinning" in figure["what"] for figure in figures) == 2
    assert "at least 5" in capsys.readouterr().out


@pytest.mark.slow  # `make bench` runs the whole script
def test_photographs_are_embedded_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_photos, "SIDES", (64, 48))
    monkeypatch.setattr(bench_photos, "DIFFERENT", 2)
    file = tmp_path / "figures.json"
    command = ["--images", "3", "--batch", "2", "--rounds", "1", "--json", str(file)]
    bench_photos.main([*command, "--fastembed", "true"])  # a program that ends at once, as without fastembed
    figures = {figure["what"]: figure for figure in json.loads(file.read_text())["figures"]}
    assert figures["embed() to PIL + timm"]["target"] == 2
    assert figures["embed() to graph alone"]["target"] == 0.9
    assert "embed() to fastembed" not in figures
    fastest = 1 / (1 / figures["graph alone"]["value"] + 1 / figures["decoding alone"]["value"])
    share = figures["embed() to graph and decoding in turn"]["value"]
    assert share == pytest.approx(figures["embed()"]["value"] / fastest)


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        (Figure("a", 0.9, "share", 0.9), True),
        (Figure("a", 0.89, "share", 0.9), False),
        (Figure("a", 0.7, "s", 0.7, at_most=True), True),
        (Figure("a", 0.71, "s", 0.7, at_most=True), False),
        (Figure("a", 1.0, "s"), None),
    ],
)
def test_targets_are_reached(figure: Figure, reached: bool | None) -> None:
    assert figure.reached is reached
