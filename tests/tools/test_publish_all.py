"""A plan of models to publish: its rows and cost, and its continuation after a stop."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TextIO

import pytest
from filelock import FileLock

from tests.models import CARD
from tests.raising import raises
from tests.zoo.hub_server import running
from tools import publish_all
from tools.publish_all import (
    Options,
    PlannedModel,
    State,
    Step,
    cost,
    decoded_bytes,
    graph_bytes,
    main,
    models_of,
    publish,
    run_all,
    throughput_of,
)
from training.recipes import RECIPES
from training.recipes.common import PAPER_DATASETS
from zoo.cli.main import main as zoo_main
from zoo.errors import RecipeError, UsageError


def write_folder(folder: Path, **changes: Any) -> None:
    """Write the files of a model folder that the state reads."""
    folder.mkdir(parents=True, exist_ok=True)
    dataclasses.replace(CARD, **changes).write(folder)
    (folder / "recipe.json").write_text("{}")


def test_the_papers_are_all_recipes_on_the_papers_data_sets() -> None:
    rows = models_of(["papers"], Options())
    assert {row.name for row in rows} == {name for name in RECIPES if name.rpartition("-")[2] in PAPER_DATASETS}
    datasets = [row.dataset for row in rows]
    assert sorted(datasets, key=datasets.index) == datasets  # each in one piece


def test_patterns_and_names_are_rows_once_each() -> None:
    rows = models_of(["diva-r50-cub", "diva-*-cub", "group2-ibn-cub"], Options())
    names = [row.name for row in rows]
    assert names[0] == "diva-r50-cub"
    assert len(names) == len(set(names)) > 5
    assert len(rows[-1].recipes) == 2
    with raises(UsageError, "unknown-name") as caught:
        models_of(["diva-r50-cubs"], Options())
    assert "'diva-r50-cub'" in str(caught.value)
    with pytest.raises(RecipeError):
        models_of(["diva-r50-cub"], Options(settings=("shedule.epochs=1",)))


def test_a_row_is_commands_of_zoo() -> None:
    options = Options("data", "org", True, "cuda", ("schedule.epochs=1",), (("ibn", "w"),), ("fp32", "int8"))
    (row,) = models_of(["group-ibn-cub"], options)
    assert [(step.name, step.needed) for step in row.steps] == [
        ("train", True),
        ("evaluate", True),
        ("export fp32", True),
        ("export int8", False),
        ("verify", True),
        ("push", True),
    ]
    for step in ("train", "evaluate", "verify"):
        (command,) = (planned.command for planned in row.steps if planned.name == step)
        assert command[command.index("--device") + 1] == "cuda"
    train = " ".join(row.steps[0].command)
    settings = "--set backbone.pretrained=w --set schedule.epochs=1"
    assert train == f"train group-ibn-cub --data data --device cuda {settings} --replace --no-eval --quiet --json"
    assert row.steps[-1].command == ("push", "group-ibn-cub", "org/group-ibn-cub", "--private", "--json")
    assert models_of(["group-ibn-cub"], Options())[0].steps[-1].name == "verify"
    with raises(UsageError, "invalid-value"):
        models_of(["group-ibn-cub"], Options(precisions=("int8",)))


def test_costs_by_hand() -> None:
    rates = {"r50": 1000.0}
    (margin,) = models_of(["margin-r50-cub"], Options())
    recipe = margin.recipes[0]
    price = cost(margin, rates, ("fp32", "fp16"))
    steps = 5_864 // recipe.batch.size
    assert price.images == recipe.schedule.epochs * steps * recipe.batch.size
    assert price.hours == pytest.approx(price.images / 1000 / 3600)
    parameters = 23_508_032 + (2048 + 1) * recipe.dim  # torchvision's ResNet-50 without its classifier
    assert price.disk == pytest.approx(parameters * (4 + 4.1 + 2.1))
    assert decoded_bytes(margin) == 5_864 * 384 * 384 * 3
    (diva,) = models_of(["diva-r50-cub"], Options())
    passed = 200 * (5_864 // 112) * 112
    assert cost(diva, rates, ()).images == round(passed * 4 / 3 + 5_864 / 3)
    (turned,) = models_of(["diva-rotation-r50-cub"], Options())
    assert cost(turned, rates, ()).images == 4 * passed
    (shorter,) = models_of(["diva-rotation-r50-cub"], Options(settings=("schedule.epochs=2",)))
    assert cost(shorter, rates, ()).images == 4 * passed // 100


BYTES_PER_PARAMETER = {
    "conv4": (4.034, 2.038, 1.122),
    "resnet50": (3.998, 2.000, 1.156),
    "googlenet": (4.003, 2.061, 1.542),
    "bn_inception": (3.997, 2.038, 2.788),
    "densenet121": (4.048, 2.030, 1.144),
    "densenet161": (4.034, 2.020, 1.087),
    "densenet169": (4.054, 2.032, 1.212),
    "densenet201": (4.056, 2.032, 1.297),
    "tf_efficientnet_lite0": (3.989, 2.005, 1.353),
    "vit_small_patch16_224": (4.001, 2.003, 1.145),
}
"""Bytes of the measured exports in fp32, fp16 and int8; int8 includes layers that stayed in float."""


def test_graphs_take_no_more_bytes_than_were_estimated() -> None:
    rows = {row.recipes[0].backbone.architecture.partition(".")[0]: row for row in models_of(["papers"], Options())}
    assert rows.keys() <= BYTES_PER_PARAMETER.keys()
    for architecture, row in rows.items():
        for precision, taken in zip(("fp32", "fp16", "int8"), BYTES_PER_PARAMETER[architecture], strict=True):
            assert taken <= graph_bytes(row, precision) <= 1.15 * taken, (architecture, precision)


def test_rates_are_given_by_backbone_or_for_all() -> None:
    rows = models_of(["margin-conv4-glyphs", "margin-r50-cub"], Options())
    assert throughput_of(["5"], rows) == {"conv4": 5, "r50": 5}
    assert throughput_of(["r50=7.5"], rows) == {"r50": 7.5}
    for wrong in ("fast", "r50=0", "r50=nan", "gn=5", "r50=inf"):
        with raises(UsageError, "invalid-value") as caught:
            throughput_of([wrong], rows)
        assert "conv4, r50" in str(caught.value)
    assert cost(rows[1], {}, ()).hours == pytest.approx(cost(rows[1], {"r50": 1000.0}, ()).hours)


def row_of(name: str, *commands: tuple[str, ...], optional: str = "") -> PlannedModel:
    """Return a row whose steps are quick commands."""
    (row,) = models_of(["margin-conv4-glyphs"], Options())
    steps = tuple(Step(" ".join(command[:2]), command, command[0] != optional) for command in commands)
    return dataclasses.replace(row, name=name, steps=steps)


def test_a_failed_model_does_not_stop_others_and_the_same_command_continues(tmp_path: Path, own_zoo: Path) -> None:
    for name in ("one", "two"):
        write_folder(own_zoo / "models" / name)
    good, bad = ("list", "--json"), ("info", "margin-conv4-glyfs")
    rows = [row_of("one", good, bad, ("list", "--dataset", "glyphs")), row_of("two", bad, good, optional="info")]
    tally = run_all(rows, State(tmp_path))
    assert list(tally.failed) == ["one"]
    assert "margin-conv4-glyfs" in tally.failed["one"]["info margin-conv4-glyfs"]
    assert list(tally.without_some_variants) == ["two"]
    state = json.loads((tmp_path / "state.json").read_text())["rows"]
    assert {name: [step["status"] for step in steps.values()] for name, steps in state.items()} == {
        "one": ["done", "failed"],
        "two": ["failed", "done"],
    }
    assert (tmp_path / "logs" / "one" / "info-margin-conv4-glyfs.log").read_text().startswith("zoo: error:")

    mended = [row_of("one", good, ("list", "--dataset", "glyphs")), row_of("two", good)]
    first = json.loads((tmp_path / "state.json").read_text())["rows"]["one"]["list --json"]
    again = run_all(mended[:1], State(tmp_path))
    assert again.done == ["one"]
    now = json.loads((tmp_path / "state.json").read_text())["rows"]["one"]
    assert now["list --json"] == first  # not made again
    assert list(now) == ["list --json", "list --dataset"]


def test_a_changed_command_recipe_or_folder_runs_the_step_again(tmp_path: Path, own_zoo: Path) -> None:
    folder = own_zoo / "models" / "one"
    write_folder(folder)
    row = row_of("one", ("list", "--json"))
    state = State(tmp_path)
    state.record(row, row.steps[0], {"status": "done"})
    assert State(tmp_path).is_done(row, row.steps[0])
    assert not state.is_done(row, dataclasses.replace(row.steps[0], command=("list",)))
    assert not state.is_done(dataclasses.replace(row, recipes=(RECIPES["ms-conv4-glyphs"](),)), row.steps[0])
    for changes in ({"dim": 8, "heads": CARD.heads[:1]}, {}):
        write_folder(folder, **changes)
        assert state.is_done(row, row.steps[0]) == (not changes)
    (folder / "recipe.json").write_text("trained once more")
    assert not state.is_done(row, row.steps[0])
    write_folder(folder)
    (folder / "card.json").write_text("{")
    assert not state.is_done(row, row.steps[0])
    (folder / "card.json").unlink()
    assert not state.is_done(row, row.steps[0])


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands in this process, to save their imports; the test above starts processes."""

    def run(words: list[str], stdin: int, stdout: TextIO, stderr: int, check: bool) -> CompletedProcess[str]:
        assert words[:3] == [sys.executable, "-m", "zoo.cli.main"]
        with redirect_stdout(stdout), redirect_stderr(stdout):
            return CompletedProcess(words, zoo_main(words[3:]))

    monkeypatch.setattr(publish_all.subprocess, "run", run)


@pytest.mark.usefixtures("in_this_process")
def test_a_variant_that_fails_keeps_the_later_steps(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(own_zoo / "models" / "one")
    good, bad, last = ("list", "--json"), ("info", "margin-conv4-glyfs"), ("list", "--dataset", "glyphs")
    row = row_of("one", good, bad, last, optional="info")
    lines: list[str] = []
    monkeypatch.setattr(publish_all, "say", lines.append)
    for _ in range(2):
        assert list(run_all([row], State(tmp_path)).without_some_variants) == ["one"]
    made = [line.split(":")[0].strip() for line in lines if line.startswith("  ")]
    assert made == ["list --json", "info margin-conv4-glyfs", "list --dataset", "info margin-conv4-glyfs"]
    state = State(tmp_path)
    state.record(row, row.steps[1], {"status": "done"})  # it can be made after all: what follows rests on it
    assert [state.is_done(row, step) for step in row.steps] == [True, True, False]
    assert list(state.models["one"]) == ["list --json", "info margin-conv4-glyfs"]


@pytest.mark.usefixtures("in_this_process")
def test_a_model_that_was_trained_over_is_not_published(
    tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = own_zoo / "models" / "one"
    write_folder(folder)
    row = row_of("one", ("list", "--json"), ("list", "--dataset", "glyphs"))
    run_all([row], State(tmp_path))
    write_folder(folder, dim=8, heads=CARD.heads[:1])
    lines: list[str] = []
    monkeypatch.setattr(publish_all, "say", lines.append)
    run_all([row], State(tmp_path))
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["list --json", "list --dataset"]


def test_one_process_at_a_time_and_a_broken_state_is_named(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"), raises(UsageError, "busy"):
        publish([], tmp_path)
    (tmp_path / "state.json").write_text("{")
    with raises(UsageError, "damaged-file"):
        State(tmp_path)


def test_the_plan_on_the_command_line(capsys: pytest.CaptureFixture[str], own_zoo: Path) -> None:
    command = ["--dry-run", "--study", "margin-r50-*", "--throughput", "900", "--org", "o"]
    assert main([*command, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in plan["rows"]] == [f"margin-r50-{name}" for name in ("cub", "cars", "sop")]
    assert plan["total"]["images_per_second"] == {"r50": 900}
    assert plan["rows"][0]["steps"][-1]["command"][:3] == ["zoo", "push", "margin-r50-cub"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "3 models" in text
    assert "GB of decoded images" in text
    assert not (own_zoo / "publishing").exists()
    assert main(["--dry-run", "--study", "nothing-*"]) == 2
    for wrong in (["--precision", "fp8"], ["--weights", "ibn"]):
        with pytest.raises(SystemExit) as ended:
            main(["--dry-run", *wrong])
        assert ended.value.code == 2


def test_the_page_has_the_totals_of_the_plan_of_all_papers(capsys: pytest.CaptureFixture[str]) -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "publish.md").read_text().split())
    assert main(["--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    total = plan["total"]
    assert f"All {total['rows']} paper models" in page
    assert f"{total['hours']:.0f} GPU hours at an assumed 1,000 images/s" in page
    assert f"{total['disk'] / 1e9:.0f} GB with all ONNX variants" in page
    assert f"{total['decoded_images'] / 1e9:.0f} GB for the decoded images" in page
    products = {row.recipes[0].data.side: decoded_bytes(row) for row in models_of(["*-sop"], Options())}
    alone, large, small = (f"{size / 1e9:.0f}" for size in (sum(products.values()), products[384], products[256]))
    images = f"Online Products alone {alone}: {large} as squares of 384 pixels, {small} as squares of 256)"
    assert images in page


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_from_nothing_to_the_hub(tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step runs in its own process, for a recipe of a few steps; a second run does nothing."""
    with running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", hub.token)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        options = Options(
            org="org",
            device="cpu",
            settings=("schedule.epochs=1", "schedule.steps=2", "data.validation=0"),
            precisions=("fp32",),
        )
        rows = models_of(["contrastive-conv4-glyphs"], options)
        tally = run_all(rows, State(tmp_path))
        assert tally == publish_all.Tally(["contrastive-conv4-glyphs"])
        requests = len(hub.requests)
        assert run_all(rows, State(tmp_path)).done == ["contrastive-conv4-glyphs"]
        assert len(hub.requests) == requests
    steps = json.loads((tmp_path / "state.json").read_text())["rows"]["contrastive-conv4-glyphs"]
    assert list(steps) == ["train", "evaluate", "export fp32", "verify", "push"]
    folder = own_zoo / "models" / "contrastive-conv4-glyphs"
    assert (folder / "onnx" / "model.onnx").is_file()
    assert json.loads((folder / "results.json").read_text())
