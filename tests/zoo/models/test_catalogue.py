"""The catalogue of models, from recipes, folders, the Hub's cache and the papers' tables."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from importlib import metadata
from pathlib import Path

import pytest

import zoo
from tests.raising import raises
from tests.serving import toys
from zoo import paths
from zoo.cli.main import main
from zoo.errors import HubError, ModelFolderError, ModelNotFoundError, UsageError
from zoo.hub.model_page import readme
from zoo.models import recipes
from zoo.models.baselines import baselines
from zoo.models.card import Origin, read_card
from zoo.models.catalogue import STATUSES
from zoo.models.names import find_model
from zoo.models.pretrained.packages import PACKAGES
from zoo.models.published import published_tables


def test_every_model_that_loads_is_listed_once_and_so_is_every_recipe() -> None:
    shipped = {folder.name for folder in paths.SHIPPED.iterdir() if (folder / "card.json").is_file()}
    names = [model.name for model in zoo.list_models()]
    assert names == sorted(set(names))
    assert set(names) == {*shipped, *baselines(), *installed()}
    assert {model.status for model in zoo.list_models()} == {"shipped", "package", "hub"} < set(STATUSES)
    trainable = zoo.list_recipes()
    assert [recipe.name for recipe in trainable] == sorted(recipes())
    assert {recipe.status for recipe in trainable} == {"recipe"}
    assert {model.name for model in zoo.list_models(status="package")} == installed()


@pytest.mark.parametrize(
    ("name", "shipped", "absent"),
    [
        ("diva-r50-cub", ["diva-lite0-cub2010", "photos"], ["glyphs"]),  # the method's model of birds
        ("ms-r50-cub", ["-lite0-cub2010", "photos"], ["conv4-glyphs"]),
        ("margin-r50-cars", ["pa-lite0-cars-half-lda", "photos"], ["cub2010"]),
        ("ms-r50-sop", ["photos"], ["conv4-glyphs", "lite0"]),
        ("group-conv4-cifar100", ["group-conv4-glyphs", "photos"], ["margin-conv4-glyphs"]),
        ("ms-conv4-glyphs", ["-conv4-glyphs ("], ["photos"]),  # any of the same data
    ],
)
def test_a_recipe_that_is_not_trained_names_the_nearest_shipped_model_and_its_training(
    name: str, shipped: list[str], absent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises(ModelNotFoundError, "model-not-found", *shipped, f"zoo train {name}") as caught:
        zoo.load(name)
    assert not [word for word in absent if word in str(caught.value)]


def installed() -> set[str]:
    """Return the short names of the packages of weights that Python's own list of distributions has."""
    distributions = {str(distribution.name) for distribution in metadata.distributions()}
    return {package.name for package in PACKAGES if package.distribution in distributions}


@pytest.mark.slow
def test_a_package_of_weights_is_listed_as_one_before_and_after_its_first_use(
    own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = zoo.info("lite0")
    assert zoo.info("tf_efficientnet_lite0") == before
    assert (before.status, before.folder) == ("package", None)
    assert main(["info", "lite0"]) == 0
    out = capsys.readouterr().out
    for fact in ("from a package", str(PACKAGES[0].path), "1280", "apache-2.0", "zoo.load('lite0')"):
        assert fact in out
    folder = find_model("lite0")
    after = zoo.info("lite0")
    assert (after.status, after.folder) == ("package", folder)
    for fact in ("name", "dim", "method", "backbone", "dataset", "parameters"):
        assert getattr(before, fact) == getattr(after, fact)
    assert main(["list", "--status", "package", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["status"]) == ("lite0", "package")
    assert "lite0" not in {model.name for model in zoo.list_models(status="hub")}


@pytest.mark.slow
def test_a_folder_made_of_a_folder_of_timm_is_not_on_the_hub(own_zoo: Path, tmp_path: Path) -> None:
    shutil.copytree(find_model("lite0"), tmp_path / "plain")
    for name in ("card.json", "recipe.json"):
        (tmp_path / "plain" / name).unlink()
    folder = find_model(tmp_path / "plain")
    assert folder.parent == own_zoo / "baselines"
    assert {m.folder: m.status for m in zoo.list_models()}[folder] == "trained"
    assert zoo.info(folder.name).status_text == "made here"


def test_filters() -> None:
    models = zoo.list_recipes(method="diva", backbone="r50")
    assert {model.name for model in models} == {f"diva-r50-{dataset}" for dataset in ("cub", "cars", "sop")}
    assert [m.name for m in zoo.list_recipes(method="diva", dataset="cub", backbone="ibn")] == ["diva-ibn-cub"]
    assert {m.name for m in zoo.list_recipes("diva-r50-*")} >= {model.name for model in models}
    assert {m.name for m in zoo.list_models("*dino*")} == {name for name in baselines() if "dino" in name}
    assert {m.name for m in zoo.list_models(["photos", "lite0"])} == {"photos", *installed()}
    assert zoo.list_models("photo") == []
    assert zoo.list_models(dataset="sop") == []  # there are recipes for it
    assert {m.name for m in zoo.list_models(status="hub")} == set(baselines())
    assert zoo.list_models(status="trained") == []
    assert zoo.list_models(method="diva", status="hub") == []


@pytest.mark.parametrize(
    ("filters", "value"),
    [
        ({"method": "dvia"}, "'diva'"),
        ({"method": "nope"}, "'nope'"),
        ({"backbone": "lite"}, "lite0"),
        ({"dataset": "CUB2010"}, " cub2010"),
        ({"status": "shiped"}, "shipped"),
        ({"method": ""}, "''"),
        ({"dataset": "burds"}, "Known: "),
    ],
)
def test_an_unknown_value_of_a_filter_is_refused_with_the_nearest(filters: dict[str, str], value: str) -> None:
    with raises(UsageError, "unknown-name") as caught:
        zoo.list_models(**filters)
    assert value in str(caught.value)
    assert "merged2b'" not in str(caught.value), "a value that is not near is no suggestion"


def test_the_command_fails_for_an_unknown_filter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--method", "nope", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "'nope'" in err


def test_published_scores_are_those_of_the_recipe() -> None:
    for model in zoo.list_recipes():
        printed = [
            s.value for t in published_tables() for s in t.scores if s.recipe == model.name and s.split == "test"
        ]
        assert [score["value"] for score in model.published] == printed
    score = zoo.info("diva-r50-cub").published[0]
    assert (score["dataset"], score["metric"], score["value"], score["dim"]) == ("cub", "recall_at_1", 0.692, 512)
    assert score["source"].startswith("arXiv:2004.13458, table 3: Ours (DiVA-")


def test_info_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "diva-r50-cub"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("paper's R@1")] == ["0.6920"]
    for fact in (
        "recipe only",
        "diva (alpha 0.3, rho 1500.0)",
        "margin (beta 1.2)",
        "distance-weighted",
        "spc: 4 of a class, 112 a batch",
        "resnet50.tv_in1k from public weights, batch norm frozen",
        "discriminative (128), shared (128), intra (128), dance (128)",
        "200 epochs, adam at 1e-05",
        "arXiv:2004.13458",
        "0.6920",
        "zoo train diva-r50-cub",
        "https://huggingface.co/dml-zoo/diva-r50-cub",
    ):
        assert fact in out
    # ResNet-50 without classifier has 23,508,032 parameters; four heads of 128 numbers have (2048 + 1) * 512.
    assert zoo.info("diva-r50-cub").parameters == 23_508_032 + 2049 * 512


def test_info_of_a_public_backbone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "dinov2-s14"]) == 0
    out = capsys.readouterr().out
    for fact in ("on the Hub", "384", "518", "apache-2.0", "arXiv:2304.07193", "zoo.load('dinov2-s14')", "AmsterTime"):
        assert fact in out
    assert zoo.info("timm/vit_small_patch14_dinov2.lvd142m") == zoo.info("dinov2-s14")


def test_a_published_score_of_a_variant_is_not_the_backbones_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Revisiting measures ResNet-50 with a random layer of 128, and MIEB DINOv2 at 224 pixels instead of 518."""
    assert main(["info", "r50-tv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("paper's R@1"))
    assert line.removeprefix("paper's R@1").strip() == "-"
    (row,) = (line for line in lines if line.startswith("cub "))
    assert "0.4377" in row
    assert "with a random layer of 128" in row
    assert main(["list", "--status", "hub"]) == 0
    cells = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    for name in ("r50-tv", "dinov2-s14", "clip-b16", "convnext-t"):
        assert cells[name][-2:] == ["-", "-"]


def test_a_published_score_of_exactly_a_backbone_is_shown_with_its_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    exact = {"dataset": "CUB (200 classes)", "metric": "recall_at_1", "value": 0.5, "source": "a"}
    variant = {**exact, "value": 0.4, "of": "at 224 pixels"}
    model = dataclasses.replace(zoo.info("dinov2-s14"), published=[variant, exact])
    assert model.published_recall == {"CUB (200 classes)": 0.5}


def test_a_public_backbone_names_the_searched_sources_of_scores(capsys: pytest.CaptureFixture[str]) -> None:
    for name, baseline in baselines().items():
        assert ("published scores" in zoo.info(name).facts) == (not baseline.scores)
    assert main(["info", "dinov3-s16"]) == 0
    assert "none in the papers of our recipes, DINOv2's and MIEB's results; others" in capsys.readouterr().out


@pytest.mark.slow
def test_the_table_names_status_size_and_scores(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {}
    for options in (["--recipes"], []):  # a shipped model has the name of its recipe
        assert main(["list", *options]) == 0
        lines |= {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    assert "shipped" in lines["margin-conv4-glyphs"]
    assert "MB" in lines["margin-conv4-glyphs"]
    assert "on the Hub" in lines["clip-b32"]
    assert "87.5 M" in lines["clip-b32"]
    assert lines["diva-r50-cub"].split()[-2:] == ["0.6920", "-"]
    assert "recipe only" in lines["diva-r50-cub"]


def test_json_has_all_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "margin-conv4-glyphs", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "shipped"
    assert facts["size"] == sum(file.stat().st_size for file in Path(facts["folder"]).rglob("*") if file.is_file())
    assert facts["parameters"] == recipes()["margin-conv4-glyphs"]["parameters"]
    assert main(["info", "diva-r50-cub", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["schedule"].startswith("200 epochs")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("diva-r50", ["diva-r50-cars, diva-r50-cub, diva-r50-sop"]),
        ("DINOv2", ["dinov2-b14, dinov2-s14"]),
        ("margin", ["margin-", " more"]),
        ("diva-r50-cup", ["'diva-r50-cub'"]),
        ("timm/resnet999.x", ["zoo.load("]),
        ("org/tyo", ["zoo.load('org/tyo')", "zoo list"]),
        ("hf-hub:org/tyo@v2", ["zoo.load('hf-hub:org/tyo@v2')"]),
        ("", ["''"]),
    ],
)
def test_unknown_and_ambiguous_names_get_the_nearest(name: str, values: list[str]) -> None:
    with raises(ModelNotFoundError, "model-not-found") as caught:
        zoo.info(name)
    assert all(value in str(caught.value) for value in values)


def test_a_trained_model_replaces_its_recipe(own_zoo: Path) -> None:
    toys.write_model(own_zoo / "models" / "diva-r50-cub", name="diva-r50-cub")
    model = zoo.info("diva-r50-cub")
    assert (model.status, model.dim) == ("trained", toys.DIM)
    assert model.published == []  # nothing records that it is the paper's model
    assert [m.status for m in zoo.list_models() if m.name == "diva-r50-cub"] == ["trained"]


def test_published_scores_belong_only_to_the_unchanged_recipes_model(
    own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under any name; a public backbone's belong to the folder that was made of it, and not to one of its name."""
    records = {
        "diva-r50-cub": {"origin": "diva-r50-cub", "settings": {"schedule.epochs": 1}},
        "diva-seed1": {"origin": "diva-r50-cub", "settings": {}},
        "diva-small": {"origin": "diva-r50-cub", "settings": {"heads": [{"name": "one", "dim": 16}]}},
        "diva-r50-cars": {"origin": None, "settings": {}},
        "diva-r50-sop": {"baseline": {"name": "dinov2-s14"}},
        "r50-tv": {"baseline": {"name": "r50-tv", "fingerprint": "0"}},
        "dino": {"baseline": {"repository": zoo.info("dinov2-s14").facts["sources"][1].split("/", 3)[3]}},
        "unsaid": {"recipe": {"name": "diva-r50-cub"}},
        "damaged": {"origin": "diva-r50-cub", "settings": 1},
    }
    for name, record in records.items():
        folder = toys.write_model(own_zoo / "models" / name, name=name)
        (folder / "recipe.json").write_text(json.dumps(record))
        dataclasses.replace(read_card(folder), dataset="cub").write(folder)
    published = {name: [s["value"] for s in zoo.info(name).published] for name in records}
    assert published["diva-seed1"] == [0.692, 0.793, 0.714]
    assert published.pop("dino")[0] == zoo.info("dinov2-s14").published[0]["value"]
    assert [name for name, values in published.items() if values] == ["diva-seed1"]
    assert zoo.info("unsaid").origin == zoo.info("damaged").origin == Origin(None)
    assert main(["info", "diva-r50-cub"]) == 0
    out = capsys.readouterr().out
    assert "diva-r50-cub, changed: schedule.epochs=1" in out
    assert "0.692" not in out
    assert main(["info", "diva-seed1"]) == 0
    out = capsys.readouterr().out
    assert "changed" not in out
    assert "0.6920" in out
    assert main(["list", "--method", "none"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("diva-")}
    assert {name: row.split()[-2] for name, row in rows.items()} == {
        **dict.fromkeys(("diva-r50-cars", "diva-r50-cub", "diva-r50-sop", "diva-small"), "-"),
        "diva-seed1": "0.6920",
    }
    other = {name for name, row in rows.items() if "not by the recipe" in row}
    assert other == {"diva-r50-cars", "diva-r50-cub", "diva-r50-sop"}
    assert main(["info", "diva-r50-cub", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["origin"], row["changed"]) == ("diva-r50-cub", {"schedule.epochs": 1})


def test_the_parameters_are_those_of_the_models_own_weights(own_zoo: Path) -> None:
    """shared-lite0-cub2010 has four heads; the recipe's number is counted by torch."""
    for name in ("margin-conv4-glyphs", "shared-lite0-cub2010"):
        assert zoo.info(name).parameters == recipes()[name]["parameters"]
    folder = toys.write_model(own_zoo / "models" / "margin-r50-cub", name="margin-r50-cub")
    assert zoo.info("margin-r50-cub").parameters != recipes()["margin-r50-cub"]["parameters"]
    (folder / "model.safetensors").write_bytes(b"x")
    assert zoo.info("margin-r50-cub").parameters is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"origin": 1, "settings": []}'])
def test_a_damaged_recipe_json_does_not_hide_the_model(own_zoo: Path, text: str) -> None:
    folder = toys.write_model(own_zoo / "models" / "diva-r50-cub", name="diva-r50-cub")
    (folder / "recipe.json").write_text(text)
    assert zoo.info("diva-r50-cub").published == []


def test_models_in_the_hubs_cache_are_listed_as_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "0123456789" * 4
    for organisation in ("dml-zoo", "others"):
        repository = tmp_path / f"models--{organisation}--toy-{organisation}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(commit)
        toys.write_model(repository / "snapshots" / commit, name=f"toy-{organisation}")
    models = {model.name: model for model in zoo.list_models(method="none")}
    assert {name: model.status for name, model in models.items()} == {"toy-dml-zoo": "hub", "others/toy-others": "hub"}
    for name, model in models.items():
        assert find_model(name) == model.folder
        assert zoo.info(name) == model
        assert zoo.load(name, runtime="onnx").folder == model.folder
    assert zoo.info("others/toy-others@main").name == "others/toy-others"
    with raises(ModelNotFoundError, "model-not-found"):
        zoo.info("others/toy-others@v2")


def cached(cache: Path, repository: str, name: str) -> Path:
    """Write a model into a Hub cache."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123456789" * 4)
    return toys.write_model(folder / "snapshots" / ("0123456789" * 4), name=name)


def test_a_complete_download_of_a_recipe_is_listed_as_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    complete, partial = (cached(tmp_path, f"dml-zoo/diva-r50-{data}", f"diva-r50-{data}") for data in ("cub", "cars"))
    (partial / "model.safetensors").unlink()
    listed = {model.name: model for model in zoo.list_models()}
    for name, status, folder in (("diva-r50-cub", "hub", complete), ("diva-r50-cars", "recipe", None)):
        model = zoo.info(name)
        assert (model.status, model.folder) == (status, folder)
        assert listed.get(name, model) == model
    assert find_model("diva-r50-cub") == complete


def test_a_copy_on_the_hub_is_listed_by_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = cached(tmp_path, "org/copy", "toy-original")
    (model,) = zoo.list_models(method="none")
    assert (model.name, find_model(model.name)) == ("org/copy", folder)


@pytest.mark.parametrize("written", [b"\xff\xfe\x00", b"", b"../../elsewhere", b"x" * 5000])
def test_a_damaged_branch_in_the_hubs_cache_hides_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    cached(tmp_path, "org/whole", "toy")
    broken = cached(tmp_path, "org/broken", "toy")
    (broken.parents[1] / "refs" / "main").write_bytes(written)
    assert [model.name for model in zoo.list_models(method="none")] == ["org/whole"]
    with raises(ModelNotFoundError, "model-not-found"):
        zoo.info("org/broken")
    for revision in (None, "main"):
        with pytest.raises(HubError) as caught:
            zoo.load("org/broken", revision=revision)
        assert "org/broken" in str(caught.value)


RESULT = {"dataset": "d", "split": "test", "protocol": "p", "runtime": "onnx", "precision": "fp32", "metrics": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"recall_at_1": math.nan}},
        {"metrics": {"recall_at_1": math.inf}},
        {"metrics": {"recall_at_1": 10**400}},
        {"intervals": {"recall_at_1": [0, -math.inf]}},
        {"queries": math.nan},
        {"runtime": 2},
        {"precision": 3.5},
        {"dataset": ["a"]},
        {"split": {}},
        {"protocol": None},
    ],
)
def test_results_of_wrong_types_are_named_and_hide_no_other_model(
    own_zoo: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    broken = toys.write_model(own_zoo / "models" / "broken", name="broken")
    toys.write_model(own_zoo / "models" / "whole", name="whole")
    (broken / "results.json").write_text(json.dumps([RESULT]))
    assert zoo.info("broken").results == [RESULT]
    (broken / "results.json").write_text(json.dumps([{**RESULT, **change}]))
    assert main(["list", "--method", "none", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == ["whole"]
    assert str(broken / "results.json") in err
    assert main(["info", "broken", "--json"]) == 1
    assert "results.json" in capsys.readouterr().err
    with pytest.raises(ModelFolderError):
        readme(broken, read_card(broken), "org/x", [])


def test_a_number_too_large_for_json_is_refused(own_zoo: Path) -> None:
    broken = toys.write_model(own_zoo / "models" / "broken", name="broken")
    (broken / "results.json").write_text(json.dumps([RESULT]).replace("{}", '{"recall_at_1": 1e999}'))
    with raises(ModelFolderError, "damaged-file") as caught:
        zoo.info("broken")
    assert "1e999" in str(caught.value)


@pytest.mark.parametrize("depth", [100, 900, 100_000])
@pytest.mark.parametrize("file", ["card.json", "results.json"])
def test_a_damaged_folder_is_named_and_hides_no_other(
    own_zoo: Path, file: str, depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = toys.write_model(own_zoo / "models" / "broken", name="broken")
    toys.write_model(own_zoo / "models" / "whole", name="whole")
    (broken / file).write_text("[" * depth + "]" * depth)
    assert [model.name for model in zoo.list_models(method="none")] == ["whole"]
    assert main(["list", "--method", "none"]) == 0
    out, err = capsys.readouterr()
    assert "whole" in out
    assert str(broken / file) in err
    with raises(ModelFolderError, "unreadable-file" if file == "card.json" else "damaged-file"):
        zoo.info("broken")


@pytest.mark.parametrize(
    ("method", "status"), [("margin", "trained here"), ("pretrained", "made here"), ("untrained", "made here")]
)
def test_only_a_trained_model_is_listed_as_trained(own_zoo: Path, method: str, status: str) -> None:
    folder = toys.write_model(own_zoo / "models" / "mine", name="mine")
    dataclasses.replace(read_card(folder), method=method).write(folder)
    assert zoo.info("mine").status_text == status
