"""Pushes of models by the real client to a Hub on loopback, and the pages of published models."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

import zoo
from tests.raising import raises
from tests.zoo.hub_client import connected
from tests.zoo.hub_state import Fault, Hub
from zoo.cli.main import main
from zoo.errors import HubError, ModelFolderError, ModelNotFoundError, UsageError
from zoo.files import sha256_of
from zoo.hub import push
from zoo.hub.model_page import readme
from zoo.models.card import read_card
from zoo.models.golden import read_golden
from zoo.paths import SHIPPED

# huggingface_hub sends large files in a way that its own HTTP library no longer recommends.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

MODEL = SHIPPED / "margin-conv4-glyphs"
SENT = {path.relative_to(MODEL).as_posix() for path in MODEL.rglob("*") if path.is_file()} - {"log.jsonl"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub, and a token that may write to it."""
    with connected(monkeypatch, tmp_path / "cache") as (hub, _):
        monkeypatch.setenv("HF_TOKEN", hub.token)
        # Golden embeddings by torch are verify's own test; here its import would be most of the time.
        monkeypatch.setattr("importlib.util.find_spec", _without_torch)
        yield hub


def _without_torch(name: str, package: str | None = None) -> object:
    return None if name == "torch" else object()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The shipped model as a folder that a test may damage."""
    return Path(shutil.copytree(MODEL, tmp_path / MODEL.name))


def writes(hub: Hub) -> list[str]:
    return [request.path for request in hub.requests if request.method != "GET"]


def test_a_pushed_model_loads_and_embeds_as_before(
    hub: Hub, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    done = zoo.push(MODEL.name, "org/toy", private=True, message="first")
    repository = hub.repositories["org/toy"]
    files = repository.files()
    assert repository.private
    assert set(files) - {".gitattributes"} == {*SENT, "README.md"}
    assert all(files[name] == (MODEL / name).read_bytes() for name in SENT)
    assert (done.commit, done.left_out) == (repository.branches["main"], ("log.jsonl",))
    assert len([path for path in writes(hub) if "/commit/" in path]) == 1
    images, golden = read_golden(MODEL)
    fetched = zoo.load("org/toy", runtime="onnx")
    np.testing.assert_allclose(fetched.embed(images), golden, atol=1e-5)
    assert zoo.push(fetched.folder, "other/toy", revision="v2").revision == "v2"
    zoo.push(fetched.folder, "other/toy", branch="main", revision="main")  # from the cache, where files are links
    passed_on = hub.repositories["other/toy"].files()
    assert all(passed_on[name] == files[name] for name in SENT)
    assert 'zoo.load("other/toy")' in passed_on["README.md"].decode()
    assert hub.token not in caplog.text + "".join(capfd.readouterr()) + repr(done)


def test_a_second_push_sends_changes_and_removes_missing_files(hub: Hub, copy: Path) -> None:
    first = zoo.push(copy, "org/toy")
    assert zoo.push(copy, "org/toy").commit == first.commit
    card = read_card(copy)
    (copy / "onnx" / "model.onnx").unlink()
    (copy / "onnx" / "parity.json").unlink()
    files = {name: sha for name, sha in card.files.items() if not name.startswith("onnx/")}
    dataclasses.replace(card, files=files).write(copy)
    hub.repositories["org/toy"].files()["notes.txt"] = b"not ours to remove"
    uploads = len([path for path in writes(hub) if path.startswith("/lfs/")])
    with raises(ModelFolderError, "verification-failed"):
        zoo.push(copy, "org/toy")
    (copy / "onnx").mkdir(exist_ok=True)
    shutil.copy(MODEL / "onnx" / "model.onnx", copy / "onnx" / "model.onnx")
    card.write(copy)
    second = zoo.push(copy, "org/toy")
    assert second.commit != first.commit
    now = hub.repositories["org/toy"].files()
    assert "onnx/parity.json" not in now
    assert now["notes.txt"] == b"not ours to remove"
    assert len([path for path in writes(hub) if path.startswith("/lfs/")]) == uploads


def test_large_files_use_xet_if_its_client_is_installed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends chunks to a store, then one commit with SHA-256s, unless HF_HUB_DISABLE_XET is set."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    monkeypatch.delenv("SSL_CERT_DIR")  # its client wants certificates, if only to hold them
    zoo.push(MODEL, "org/toy")
    files = hub.repositories["org/toy"].files()
    large = {name: sha256_of(MODEL / name) for name in SENT if name.endswith((".safetensors", ".onnx"))}
    assert {name: files[name].decode() for name in large} == large
    assert sum(map(len, hub.xorbs.values())) > sum((MODEL / name).stat().st_size for name in large) / 2
    assert files["card.json"] == (MODEL / "card.json").read_bytes()


def test_a_branch_and_a_pull_request_leave_main_alone(hub: Hub, copy: Path) -> None:
    zoo.push(copy, "org/toy")
    repository = hub.repositories["org/toy"]
    main_commit = repository.branches["main"]
    branch = zoo.push(copy, "org/toy", branch="v2", licence="cc-by-nc-4.0")
    assert json.loads(repository.files("v2")["card.json"])["licence"] == "cc-by-nc-4.0"
    assert repository.branches == {"main": main_commit, "v2": branch.commit}
    zoo.push(copy, "org/toy", revision="v2", licence="mit")
    assert zoo.load("org/toy", runtime="onnx", revision="v2").card.licence == "mit"
    proposed = zoo.push(copy, "org/toy", create_pr=True, licence="mit")
    assert proposed.pull_request == f"{hub.url}/org/toy/discussions/1"
    assert json.loads(hub.pull_requests[0]["card.json"])["licence"] == "mit"
    assert repository.branches["main"] == main_commit
    assert read_card(copy).licence == "apache-2.0"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"create_pr": True, "branch": "v2"}, "conflicting-options"),
        ({"create_pr": True, "revision": "v2"}, "conflicting-options"),
        ({"branch": "v2", "revision": "v3"}, "conflicting-options"),
        ({"create_pr": True, "private": True}, "conflicting-options"),
        ({"repo_id": "a/b/c"}, "invalid-value"),
    ],
)
def test_contradicting_arguments(hub: Hub, arguments: dict[str, Any], code: str) -> None:
    with raises(UsageError, code):
        zoo.push(MODEL, **{"repo_id": "org/toy", **arguments})
    assert writes(hub) == []


def test_private_weights_are_not_sent_to_a_public_repository(hub: Hub) -> None:
    hub.add("org/open", {"README.md": b""})
    with raises(UsageError, "not-confirmed"):
        zoo.push(MODEL, "org/open", private=True)
    assert set(hub.repositories["org/open"].files()) == {"README.md"}


def test_a_pull_request_needs_a_repository(hub: Hub) -> None:
    with raises(ModelNotFoundError, "model-not-found") as caught:
        zoo.push(MODEL, "org/none", create_pr=True)
    assert "org/none" in str(caught.value)
    assert hub.repositories == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("", "login-needed"),
        ("reader", "forbidden"),
        ("hf_wrong_wrong", "login-needed"),
    ],
)
def test_a_login_that_may_not_write(
    hub: Hub, token: str, code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", hub.reader if token == "reader" else token)
    with raises(HubError, code) as caught:
        zoo.push(MODEL, "org/toy")
    assert hub.repositories == {}
    assert not token or hub.reader not in str(caught.value)


def test_an_upload_that_breaks_off_leaves_the_repository_as_it_was(hub: Hub) -> None:
    hub.add("org/toy", {"README.md": b"before"})
    hub.fail(Fault("/lfs/", method="PUT", status=400))
    with raises(HubError, "hub") as caught:
        zoo.push(MODEL, "org/toy")
    assert "400" in str(caught.value)
    assert hub.repositories["org/toy"].files() == {"README.md": b"before"}
    arrived = set(hub.objects)
    assert arrived
    zoo.push(MODEL, "org/toy")
    assert zoo.load("org/toy", runtime="onnx").card.name == MODEL.name
    puts = [path.removeprefix("/lfs/") for path in writes(hub) if path.startswith("/lfs/")]
    assert all(puts.count(oid) == 1 for oid in arrived)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda folder: _flip(folder / "model.safetensors"), "model.safetensors"),
        (lambda folder: _flip(folder / "onnx/model.onnx"), "onnx/model.onnx"),
        (lambda folder: (folder / "heads.safetensors").unlink(), "heads.safetensors"),
        (lambda folder: (folder / "golden.safetensors").write_bytes(b"{}"), "golden"),
        (lambda folder: (folder / "golden.safetensors").unlink(), "golden"),
        (lambda folder: (folder / "more.safetensors").write_bytes(b""), "more.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "results.json").write_text("["), "results.json"),
        (lambda folder: (folder / "pytorch_model.bin").write_bytes(b""), "pytorch_model.bin"),
        (lambda folder: (folder / "sub").mkdir() or (folder / "sub/x.PKL").touch(), "sub/x.PKL"),
    ],
)
def test_damaged_folders_and_pickles_are_not_sent(hub: Hub, copy: Path, damage: Any, file: str) -> None:
    damage(copy)
    with pytest.raises(ModelFolderError) as caught:
        zoo.push(copy, "org/toy")
    assert file in str(caught.value)
    assert writes(hub) == []


def test_a_link_out_of_the_folder_is_neither_sent_nor_followed(hub: Hub, copy: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("[]")
    (copy / "results.json").unlink()
    (copy / "results.json").symlink_to(secret)
    with pytest.raises(ModelFolderError):
        zoo.push(copy, "org/toy")
    graph = (copy / "onnx" / "model.onnx").rename(tmp_path / "model.onnx")
    (copy / "onnx" / "model.onnx").symlink_to(graph)
    with pytest.raises(ModelFolderError):
        zoo.load(copy, runtime="onnx")
    assert writes(hub) == []


def test_unknown_files_are_not_sent(hub: Hub, copy: Path) -> None:
    for name in (".env", "notes.md", "state/optimizer.safetensors"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("HF_TOKEN=secret")
    done = zoo.push(copy, "org/toy")
    assert done.left_out == (".env", "log.jsonl", "notes.md", "state/optimizer.safetensors")
    assert set(hub.repositories["org/toy"].files()) == {".gitattributes", *SENT, "README.md"}


def test_paths_of_this_machine_are_not_sent(hub: Hub, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = ("/home/ann/", "/srv/secret")
    record = json.loads((copy / "recipe.json").read_text())
    record["recipe"]["backbone"]["pretrained"] = "/home/ann/models/first one"
    record["recipe"]["data"]["features"] = "/home/ann/.dml-zoo/cache/features-12"
    record |= {"origin": "diva-r50-cub", "settings": {"backbone.pretrained": "/home/ann/models/first one"}}
    record |= {"skipped": ["/srv/secret/a.jpg"], "split": {"train_classes": ["/m/01g317"]}}
    (copy / "recipe.json").write_text(json.dumps(record))
    results = json.loads((copy / "results.json").read_text())[:1]
    results[0] |= {"fingerprint": None, "data": None, "dataset": "cub"}
    results[0] |= {"metrics": {"recall_at_1": 0.3}, "intervals": {}}
    (copy / "results.json").write_text(json.dumps(results))
    parity = json.loads((copy / "onnx" / "parity.json").read_text())
    parity["fp32"]["cost"] = {"not_measured": "there is no folder /srv/secret/cub; name the one that holds it."}
    (copy / "onnx" / "parity.json").write_text(json.dumps(parity))

    assert main(["push", str(copy), "org/toy"]) == 0
    assert "onnx/parity.json and recipe.json" in capsys.readouterr().out
    sent = hub.repositories["org/toy"].files()
    texts = {name: data.decode() for name, data in sent.items() if name.endswith((".json", ".md"))}
    assert not [name for name, text in texts.items() if any(path in text for path in (*private, str(copy.parent)))]
    record_sent = json.loads(texts["recipe.json"])
    assert (
        record_sent["recipe"]["backbone"]["pretrained"] == record_sent["settings"]["backbone.pretrained"] == "first one"
    )
    assert record_sent["recipe"]["data"]["features"] == "features-12"
    assert (record_sent["skipped"], record_sent["split"]) == (["a.jpg"], {"train_classes": ["/m/01g317"]})
    assert "Recipe: diva-r50-cub, changed: backbone.pretrained=first one." in texts["README.md"]
    assert "there is no folder cub; name" in texts["onnx/parity.json"]
    # Resuming a run needs the paths here.
    assert json.loads((copy / "recipe.json").read_text()) == record


def test_unreadable_records_are_not_sent(hub: Hub, copy: Path) -> None:
    (copy / "recipe.json").write_text('{"recipe": {"backbone": {"pretrained": "/home/ann')
    with raises(ModelFolderError, "verification-failed") as caught:
        zoo.push(copy, "org/toy")
    assert "recipe.json" in str(caught.value)
    assert writes(hub) == []


def test_a_dry_run_writes_the_files_and_sends_nothing(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["push", MODEL.name, "org/toy", "--dry-run", "--licence", "mit", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["commit"] is None
    assert {
        path.relative_to(out).as_posix(): path.stat().st_size for path in out.rglob("*") if path.is_file()
    } == report["contents"]
    assert (out / "README.md").read_text() == report["readme"]
    assert zoo.load(out, runtime="onnx").card.licence == "mit"
    assert hub.requests == []
    assert main(["push", MODEL.name, "org/toy", "--out", str(out)]) == 2
    assert main(["push", MODEL.name, "org/toy", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "nothing was sent to org/toy (main)" in printed
    assert "not sent: log.jsonl" in printed


def test_the_command_pushes(hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_HUB_ORG", "team")
    assert main(["push", MODEL.name, "toy", "--private", "--message", "v1"]) == 0
    assert f"sent to team/toy (main): {hub.url}/team/toy/commit/" in capsys.readouterr().out
    assert hub.repositories["team/toy"].private
    assert main(["push", MODEL.name, "toy", "--revision", "v2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["revision"] == "v2"


def test_the_page_has_measured_and_published_scores(copy: Path) -> None:
    """Read back by huggingface_hub's own parser."""
    card = dataclasses.replace(read_card(copy), name="diva-r50-cub", architecture="resnet50", licence="my licence")
    results = json.loads((copy / "results.json").read_text())[:1]
    results[0] |= {"fingerprint": None, "data": None, "dataset": "cub"}
    results[0] |= {"metrics": {"recall_at_1": 0.6812, "map_at_r": 0.25, "precision_at_1": 0.6812}}
    results[0]["intervals"] = {"recall_at_1": [0.66, 0.7]}
    (copy / "results.json").write_text(json.dumps(results))
    (copy / "recipe.json").write_text(json.dumps({"origin": "diva-r50-cub", "settings": {}}))
    text = readme(copy, card, "org/toy", ["golden.safetensors", "onnx/model.onnx"])
    data = ModelCard(text).data
    assert (data.library_name, data.license, data.license_name) == ("timm", "other", "my licence")
    assert {"dml-zoo", card.method, card.dataset, "onnx"} <= set(data.tags)
    recall, precision = data.eval_results
    assert (recall.dataset_type, recall.dataset_split, recall.metric_type) == ("cub", "test", "recall_at_1")
    assert recall.metric_value == 0.6812
    assert recall.metric_args["interval_95"] == [0.66, 0.7]
    # Milbich, Roth et al. 2020, DiVA, table 3: ResNet-50 on CUB.
    assert recall.metric_args["published"][0]["value"] == 0.692
    assert "arXiv:2004.13458" in recall.metric_args["published"][0]["source"]
    assert (precision.metric_type, precision.metric_value) == ("map_at_r", 0.25)
    start = "| cub (images not recorded) | test | torch fp32 | 121 |"
    assert f"{start} R@1 | 0.6812 | 0.6600 to 0.7000 | 0.6920 [1] |" in text
    assert f"{start} MAP@R | 0.2500 |  |  |" in text
    assert 'zoo.load("org/toy", runtime="onnx")' in text
    assert 'timm.create_model("hf-hub:org/toy", pretrained=True, num_classes=0)' in text


@pytest.mark.parametrize("name", ["diva-r50-cub", "diva-seed1"])
def test_a_published_number_belongs_only_to_the_model_of_the_unchanged_recipe(copy: Path, name: str) -> None:
    card = dataclasses.replace(read_card(copy), name=name)
    results = json.loads((copy / "results.json").read_text())[:1]
    results[0] |= {"fingerprint": None, "data": None, "dataset": "cub"}
    results[0] |= {"metrics": {"recall_at_1": 0.3}, "intervals": {}}
    (copy / "results.json").write_text(json.dumps(results))
    record = json.loads((copy / "recipe.json").read_text())

    def page(**facts: object) -> tuple[str, dict[str, Any]]:
        (copy / "recipe.json").write_text(json.dumps({**record, **facts}))
        text = readme(copy, card, "org/toy", [])
        return text, ModelCard(text).data.eval_results[0].metric_args

    text, facts = page(origin="diva-r50-cub", settings={"schedule.epochs": 1, "backbone.pretrained": "a|b"})
    assert "Recipe: diva-r50-cub, changed: schedule.epochs=1, backbone.pretrained=a|b." in text
    assert "0.692" not in text
    assert "published" not in facts
    text, facts = page(origin="diva-r50-cub", settings={})
    assert "| 0.3000 |  | 0.6920 [1] |" in text
    assert facts["published"][0]["value"] == 0.692
    text, facts = page(origin=None, settings={})
    assert "0.692" not in text
    assert "published" not in facts


def test_the_page_has_the_cost_of_each_graph(copy: Path) -> None:
    """The keys are those that `zoo export` writes to onnx/parity.json."""
    (copy / "onnx" / "model_int8.onnx").write_bytes(b"0" * 1_200_000)
    row = {"fp32": 0.7, "int8": 0.698, "difference": -0.002, "interval": [-0.004, 0.001], "within_target": False}
    parity = {"int8": {"min_cosine": 0.9876, "cost": {"dataset": "glyphs", "queries": 9, "recall_at_1": row}}}
    (copy / "onnx" / "parity.json").write_text(json.dumps(parity))
    text = readme(copy, read_card(copy), "org/toy", [])
    change = "R@1 -0.0020 (-0.0040 to +0.0010), not shown to be within the target"
    assert f"| `onnx/model_int8.onnx` | 1.2 | 0.987600 | {change} |" in text
    assert "| `onnx/model.onnx` | 0.6 |  |  |" in text
    (copy / "onnx" / "parity.json").write_text('{"fp32"')
    with pytest.raises(ModelFolderError) as caught:
        readme(copy, read_card(copy), "org/toy", [])
    assert "parity.json" in str(caught.value)


def test_the_page_of_an_unmeasured_model(copy: Path) -> None:
    (copy / "results.json").unlink()
    text = readme(copy, read_card(copy), "org/toy", [])
    data = ModelCard(text).data
    assert (data.library_name, data.license, data.eval_results) == ("dml-zoo", "apache-2.0", None)
    assert "Nothing was measured yet." in text


def test_the_page_of_an_ensemble_does_not_mention_timm(copy: Path) -> None:
    """`import zoo` registers the single backbones alone (zoo/models/backbones/__init__.py)."""
    card = dataclasses.replace(read_card(copy), architecture="ensemble")
    text = readme(copy, card, "org/toy", [])
    assert 'zoo.load("org/toy")' in text
    assert "timm.create_model" not in text


def test_graphs_below_the_floor_are_sent_only_by_force_and_marked_on_the_page(hub: Hub, copy: Path) -> None:
    parity = json.loads((copy / "onnx" / "parity.json").read_text())
    for entry in ({"holds": False, "forced": True}, {"holds": True, "forced": True}, {"holds": False}):
        changed = {**parity, "fp32": {**parity["fp32"], **entry}}
        (copy / "onnx" / "parity.json").write_text(json.dumps(changed))
        with raises(ModelFolderError, "below-floor") as caught:
            zoo.push(copy, "org/toy")
        assert "onnx/model.onnx" in str(caught.value)
    assert writes(hub) == []
    assert main(["push", str(copy), "org/toy", "--force"]) == 0
    page = hub.repositories["org/toy"].files()["README.md"].decode()
    assert "below the floor of `zoo export`" in page
    zoo.push(MODEL, "org/toy")
    assert "below the floor" not in hub.repositories["org/toy"].files()["README.md"].decode()


def test_a_pull_request_removes_no_files(hub: Hub) -> None:
    theirs = {"onnx/decoder.onnx": b"theirs", "recipe.json": b"{}", "onnx/model_int8.onnx": b"theirs"}
    hub.add("other/model", theirs)
    zoo.push(MODEL, "other/model", create_pr=True)
    assert theirs.keys() <= hub.pull_requests[0].keys()
    assert hub.repositories["other/model"].files() == theirs


def test_a_concurrent_push_is_not_undone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = hub.add("org/toy", {"README.md": b"before"})
    operations = push._operations

    def meanwhile(*arguments: Any) -> Any:
        repository.commit("main", {"README.md": b"theirs", "onnx/model_int8.onnx": b"theirs"})
        return operations(*arguments)

    monkeypatch.setattr(push, "_operations", meanwhile)
    with raises(HubError, "busy"):
        zoo.push(MODEL, "org/toy")
    assert repository.files() == {"README.md": b"theirs", "onnx/model_int8.onnx": b"theirs"}
