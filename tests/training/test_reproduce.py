"""`zoo reproduce`, and the facts about the training of shipped models in results.json."""

from __future__ import annotations

import json

import pytest

import zoo
from tests.raising import raises
from training.reproduce import recorded_recipe, recorded_result
from zoo import paths
from zoo.cli.main import main
from zoo.errors import UsageError
from zoo.models.results import MADE, read_results, record_training, training_facts

SMALLEST = "margin-conv4-glyphs"
FACTS = {"command", "commit", "versions", "processor", "seconds", "seeds"}
SHIPPED = sorted(folder.name for folder in paths.SHIPPED.iterdir() if (folder / "results.json").is_file())


@pytest.mark.parametrize("name", SHIPPED)
def test_results_of_a_shipped_model_say_how_it_was_made(name):
    folder = paths.SHIPPED / name
    recipe = json.loads((folder / "recipe.json").read_text())
    for result in read_results(folder):
        made = result[MADE]
        assert made.keys() == FACTS | {"missing"}
        assert {fact for fact in FACTS if made[fact] is None} == made["missing"].keys()
        assert all(made["missing"].values()), "each missing fact has a reason"
        if "commit" in recipe:
            assert made["command"] == f"zoo train {name}"
            assert (made["commit"], made["versions"], made["seconds"]) == (
                recipe["commit"],
                recipe["versions"],
                recipe["seconds"],
            )
            assert recipe["hardware"]["cpu"] in made["processor"]
            assert made["seeds"] == [recipe["recipe"]["seed"]]


def test_facts_of_a_record_and_of_one_that_lacks_them(tmp_path):
    record = {
        "recipe": {"seed": 3},
        "origin": "margin-conv4-glyphs",
        "settings": {"optimizer.lr": 0.001},
        "commit": "abc",
        "seconds": 7.5,
        "hardware": {"cpu": "Chip", "cores": 4, "cuda": "Card"},
    }
    (tmp_path / "recipe.json").write_text(json.dumps(record))
    facts = training_facts(tmp_path)
    assert facts["command"] == "zoo train margin-conv4-glyphs --set optimizer.lr=0.001 --seed 3"
    assert facts["processor"] == "Chip, 4 cores, Card"
    assert facts["missing"].keys() == {"versions"}
    assert training_facts(tmp_path / "nothing")["missing"].keys() == FACTS


def test_every_measurement_says_how_the_model_was_made(tmp_path):
    result = dict.fromkeys(("dataset", "split", "runtime", "precision"))
    (tmp_path / "results.json").write_text(json.dumps([{**result, "protocol": "p", "metrics": {"map_at_r": 0.5}}]))
    (tmp_path / "recipe.json").write_text('{"seconds": 4}')
    record_training(tmp_path)
    (written,) = read_results(tmp_path)
    assert written["metrics"] == {"map_at_r": 0.5}
    assert written[MADE]["seconds"] == 4
    assert written[MADE]["missing"].keys() == FACTS - {"seconds"}


def test_the_recorded_recipe_is_that_of_the_model():
    recipe = recorded_recipe(SMALLEST)
    assert (recipe.name, recipe.seed) == (f"{SMALLEST}-reproduced", 0)
    assert recorded_recipe(SMALLEST, seed=5, new_name="other").seed == 5
    recorded = json.loads((paths.SHIPPED / SMALLEST / "recipe.json").read_text())["recipe"]
    assert recipe.schedule.epochs == recorded["schedule"]["epochs"]
    assert recipe.optimizer.lr == recorded["optimizer"]["lr"]


def test_what_cannot_be_reproduced_is_refused():
    with raises(UsageError, "not-available") as caught:
        recorded_recipe("photos")
    assert "zoo baseline lite0" in str(caught.value), "the commands that made it"
    with raises(UsageError, "no-results"):
        recorded_result(paths.SHIPPED / SMALLEST, "omniglot")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_HOME", str(tmp_path))
    return tmp_path


def test_a_run_that_is_too_short_is_not_a_reproduction(home, capsys):
    short = ["--set", "schedule.epochs=1", "--set", "schedule.steps=2", "--quiet", "--json"]
    before = (paths.SHIPPED / SMALLEST / "results.json").read_bytes()
    assert main(["reproduce", SMALLEST, *short]) == 1
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["within"] is False
    assert outcome["same_weights"] is False
    assert (paths.SHIPPED / SMALLEST / "results.json").read_bytes() == before
    recorded = {row["metric"]: row["recorded"] for row in outcome["metrics"]}
    result = next(r for r in zoo.info(SMALLEST).results if r["runtime"] == "torch")
    assert recorded == {name: result["metrics"][name] for name in ("recall_at_1", "map_at_r")}
    assert outcome["remade"]["command"].startswith(f"zoo train {SMALLEST} --set schedule.epochs=1")
    assert main(["reproduce", SMALLEST, *short]) == 2, "the name is taken"


@pytest.mark.slow  # five minutes
def test_the_smallest_shipped_model_is_reproduced(home, capsys):
    assert main(["reproduce", SMALLEST, "--quiet", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert all(row["interval"][0] <= row["reproduced"] <= row["interval"][1] for row in outcome["metrics"])
