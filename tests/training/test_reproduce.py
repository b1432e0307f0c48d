"""`zoo reproduce`, and the facts about the training of shipped models in results.json."""

from __future__ import annotations

import json
import shutil

import pytest

import zoo
from tests.raising import raises
from training.definitions import outdated
from training.losses.margin import MarginLoss
from training.overrides import resolve
from training.recipe import Recipe
from training.recipes import standard_recipe
from training.reproduce import recorded_recipe, recorded_result
from zoo import paths
from zoo.cli.main import main
from zoo.errors import RecipeError, UsageError, ZooError
from zoo.models.results import MADE, read_results, record_training, training_facts

SMALLEST = "margin-conv4-glyphs"
FACTS = {"command", "commit", "versions", "processor", "seconds", "seeds"}
COMMANDS = {
    "r-margin-conv4-glyphs": "zoo train r-margin-conv4-glyphs --set objective.miner_args.published=false",
    **{
        f"{name}-lda": f"zoo train {name}"
        for name in ("margin-lite0-cub2010", "diva-lite0-cub2010", "pa-lite0-cars-half")
    },
}
"""Commands of models that their recipe of today would not make, or that had another name at their commit."""
SHIPPED = sorted(folder.name for folder in paths.SHIPPED.iterdir() if (folder / "results.json").is_file())


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_HOME", str(tmp_path))
    return tmp_path


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
            assert made["command"] == COMMANDS.get(name, f"zoo train {name}")
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


def test_every_measurement_names_the_facts_of_its_training(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"recipe": {"seed": 3}, "seconds": 4}))
    result = dict.fromkeys(("dataset", "split", "runtime", "precision"))
    (tmp_path / "results.json").write_text(json.dumps([{**result, "protocol": "p", "metrics": {"map_at_r": 0.5}}]))
    record_training(tmp_path)
    (written,) = read_results(tmp_path)
    assert written["metrics"] == {"map_at_r": 0.5}
    assert written[MADE]["seconds"] == 4
    assert written[MADE]["missing"].keys() == FACTS - {"seconds", "seeds"}


def test_the_recorded_recipe_is_that_of_the_model():
    recipe = recorded_recipe(SMALLEST)
    assert (recipe.name, recipe.seed) == (f"{SMALLEST}-reproduced", 0)
    assert recorded_recipe(SMALLEST, seed=5, new_name="other").seed == 5
    recorded = json.loads((paths.SHIPPED / SMALLEST / "recipe.json").read_text())["recipe"]
    assert recipe.schedule.epochs == recorded["schedule"]["epochs"]
    assert recipe.optimizer.lr == recorded["optimizer"]["lr"]


def test_a_recipe_that_was_changed_since_is_trained_as_it_is_recorded():
    """The fault: r-margin recorded rho's form (a, p, p), and was trained in today's (a, a, p)."""
    assert recorded_recipe("r-margin-conv4-glyphs").objective.miner_args["published"] is False
    assert standard_recipe("r-margin-conv4-glyphs").record["objective"]["miner_args"]["published"] is True


@pytest.mark.slow
@pytest.mark.parametrize("trained_in", ["fp32", "bf16"])
def test_a_model_is_trained_again_in_the_precision_that_it_was_trained_in(trained_in, home):
    """The fault: a recipe in bf16, trained in fp32 without AMX, was repeated in bf16 with it: R@1 .956 became .974."""
    short = {"schedule.epochs": 1, "schedule.steps": 2}
    zoo.train(SMALLEST, name="one", settings={**short, "precision": trained_in})
    file = home / "models" / "one" / "recipe.json"
    record = json.loads(file.read_text())
    record["recipe"]["precision"] = "auto"
    file.write_text(json.dumps(record))
    outcome = zoo.reproduce("one")
    assert outcome.precisions[0] == record["precision"]
    assert outcome.precisions[0] == outcome.precisions[1]


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("shared-lite0-cub2010", "method sharing"),
        ("mic-lite0-cub2010", "method mic"),
        ("diva-lite0-cub2010", "auxiliary task shared"),
    ],
)
def test_a_model_by_another_definition_is_refused_with_the_command_for_todays(name, definition, home, capsys):
    """The fault: the recorded values are today's, but the method of that name has another meaning."""
    folder = shutil.copytree(paths.SHIPPED / name, home / "models" / "older")
    record = json.loads((folder / "recipe.json").read_text())
    assert record["recipe"]["definitions"][definition] > 1
    record["recipe"]["definitions"][definition] = 1
    (folder / "recipe.json").write_text(json.dumps(record))
    assert main(["reproduce", str(folder)]) == 2
    assert f"zoo train {name}" in capsys.readouterr().err
    with raises(UsageError, "other-definition"):
        recorded_recipe(str(folder))


@pytest.mark.parametrize("definitions", [{}, {"loss margin": 1}, None, ["loss margin"], "missing"])
def test_a_record_without_versions_is_not_trained_by_todays_definitions(definitions, home, capsys):
    """The fault: a model from before definitions had versions was trained by today's and called reproduced."""
    folder = shutil.copytree(paths.SHIPPED / "mic-lite0-cub2010", home / "models" / "older")
    record = json.loads((folder / "recipe.json").read_text())
    record["recipe"]["definitions"] = definitions
    if definitions == "missing":
        del record["recipe"]["definitions"]
    (folder / "recipe.json").write_text(json.dumps(record))
    with raises(UsageError, "other-definition"):
        recorded_recipe(str(folder))
    assert "reproduction" in {check.name for check in zoo.verify(str(folder), quick=True) if check.ok is None}
    assert main(["benchmark", "models", "--dataset", "glyphs"]) == 0
    assert main(["benchmark", "compare", "--dataset", "cub2010", "older"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [("optimizer", "betas", [0.9, 0.99]), ("objective", "loss", "multi"), ("schedule", "epochs", "ten")],
)
def test_verify_names_a_recipe_that_cannot_be_trained_again(group, key, value, home):
    folder = shutil.copytree(paths.SHIPPED / SMALLEST, home / "models" / "other")
    assert [check.name for check in zoo.verify(str(folder), quick=True) if check.ok is None] == []
    record = json.loads((folder / "recipe.json").read_text())
    record["recipe"][group][key] = value
    (folder / "recipe.json").write_text(json.dumps(record))
    assert "reproduction" in {check.name for check in zoo.verify(str(folder), quick=True) if check.ok is None}
    with pytest.raises(ZooError):
        recorded_recipe(str(folder))


@pytest.mark.slow
def test_another_recipe_reproduces_nothing(home, capsys):
    short = ["--set", "schedule.epochs=1", "--set", "schedule.steps=2", "--quiet"]
    main(["reproduce", SMALLEST, *short, "--set", "objective.loss=contrastive", "--set", "objective.miner=none"])
    assert "is reproduced" not in (text := capsys.readouterr().out.replace("NOT reproduced", "is reproduced"))
    assert "objective.loss=contrastive" in text


@pytest.fixture
def fresh_recipes():
    """Let this process make the recipes again before and after, as the next one would."""
    standard_recipe.cache_clear()
    yield
    standard_recipe.cache_clear()


@pytest.mark.slow
def test_a_changed_default_makes_another_recipe_and_changes_no_recorded_one(home, monkeypatch, fresh_recipes):
    before = resolve(SMALLEST).digest
    monkeypatch.setitem(MarginLoss.__init__.__kwdefaults__, "count_tuples", True)
    standard_recipe.cache_clear()
    assert resolve(SMALLEST).digest != before
    short = ["--set", "schedule.epochs=1", "--set", "schedule.steps=2", "--quiet", "--json"]
    assert main(["train", SMALLEST, "--as", "today", *short, "--no-eval"]) == 0
    assert main(["reproduce", SMALLEST, *short]) == 1
    for name, value in (("today", True), (f"{SMALLEST}-reproduced", False)):
        recipe = json.loads((home / "models" / name / "recipe.json").read_text())["recipe"]
        assert recipe["objective"]["loss_args"]["count_tuples"] is value


def test_a_shipped_record_states_everything():
    """Each recorded recipe is read strictly, and has the digest of the recipe that is read."""
    for name in SHIPPED:
        record = json.loads((paths.SHIPPED / name / "recipe.json").read_text()).get("recipe")
        if record is not None and not outdated(record):
            assert Recipe.from_json(record).record == record


@pytest.mark.parametrize("change", [{"seed": "0"}, {"extra": 1}, {"batch": {"size": 8}}, {"heads": [{"name": "a"}]}])
def test_a_record_of_another_release_is_refused(change):
    record = standard_recipe(SMALLEST).record
    with raises(RecipeError, "other-schema"):
        Recipe.from_json({**record, **change})


def test_what_cannot_be_reproduced_is_refused():
    with raises(UsageError, "not-available") as caught:
        recorded_recipe("photos")
    assert "zoo baseline lite0" in str(caught.value), "the commands that made it"
    with raises(UsageError, "no-results"):
        recorded_result(paths.SHIPPED / SMALLEST, "omniglot")


@pytest.mark.slow
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
