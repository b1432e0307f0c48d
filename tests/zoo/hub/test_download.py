"""Downloads of models by the real client from a Hub on loopback that fails as networks and servers do."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import zoo
from tests.raising import raises
from tests.zoo.hub_client import FILES, MODEL, WEIGHTS, World, assert_whole
from tests.zoo.hub_state import Fault
from zoo.errors import CardError, HubError, HubUnreachableError, ModelNotFoundError, UsageError, ZooError
from zoo.hub import download
from zoo.hub.errors import convert_error
from zoo.models.card import SCHEMA, read_card
from zoo.models.golden import read_golden
from zoo.paths import home

API = "/api/models/org/toy"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["org/toy", "hf-hub:org/toy", "hf-hub:org/toy@main"])
def test_a_model_is_fetched_once_and_embeds(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.load(name, runtime="onnx")
    images, golden = read_golden(MODEL)
    np.testing.assert_allclose(model.embed(images), golden, atol=1e-5)
    assert_whole(model.folder)
    asked = len(world.hub.requests)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert zoo.load(name, runtime="onnx").folder == model.folder
    assert len(world.hub.requests) == asked


def test_a_dropped_connection_continues_at_that_byte(world: World) -> None:
    world.hub.fail(Fault(WEIGHTS, drop=100_000))
    assert_whole(download.snapshot("org/toy"))
    assert world.hub.ranges(WEIGHTS) == [None, f"bytes={100_000 // 4096 * 4096}-"]


def test_a_stalled_download_continues_at_that_byte(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    world.hub.fail(Fault(WEIGHTS, drop=100_000, stall=1.0))
    assert_whole(download.snapshot("org/toy"))
    assert world.hub.ranges(WEIGHTS)[1] == f"bytes={100_000 // 4096 * 4096}-"


def test_a_slow_but_steady_download_is_not_interrupted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.4)
    world.hub.fail(Fault(WEIGHTS, drip=0.1))
    assert_whole(download.snapshot("org/toy"))
    assert world.hub.ranges(WEIGHTS) == [None]


@pytest.mark.parametrize(
    ("fault", "waits"),
    [
        (Fault(WEIGHTS, drop=100_000, reset=True), [1.0]),
        (Fault(WEIGHTS, short=7), [1.0]),
        (Fault(WEIGHTS, flip=True, times=2), [1.0, 2.0]),
        (Fault("card.json", flip=True), [1.0]),
        (Fault("config.json", flip=True), [1.0]),
        (Fault(API, status=429, headers={"Retry-After": "7"}), [7.0]),
        (Fault(WEIGHTS, status=429, headers={"Retry-After": "7"}), [8.0]),
        (Fault(API, status=503, times=2), [1.0, 2.0]),
        (Fault(WEIGHTS, status=500), [1.0]),
    ],
)
def test_passing_faults_are_waited_for(world: World, fault: Fault, waits: list[float]) -> None:
    world.hub.fail(fault)
    assert_whole(download.snapshot("org/toy"))
    assert world.waits == waits
    assert world.parts() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "values"),
    [
        (Fault(WEIGHTS, drop=100_000, reset=True, times=3), "hub", ["org/toy"]),
        (Fault(WEIGHTS, short=7, times=3), "hub", ["544336", "544329"]),
        (Fault(WEIGHTS, flip=True, times=3), "hash-mismatch", [WEIGHTS, "org/toy"]),
        (Fault("card.json", flip=True, times=3), "hash-mismatch", ["card.json", "org/toy"]),
        (Fault(API, status=429, headers={"Retry-After": "700"}), "too-many-requests", ["700 seconds"]),
        (Fault(API, status=429, times=3), "too-many-requests", ["some minutes"]),
        (Fault(WEIGHTS, status=502, times=3), "hub", ["502", "HF_HUB_OFFLINE=1"]),
        (Fault(WEIGHTS, status=404, code="EntryNotFound", method="HEAD"), "hub", ["404", WEIGHTS]),
        (
            Fault(API, status=200, body=b"<html>log in first</html>"),
            "hub-unreachable",
            ["JSONDecodeError", "HF_ENDPOINT"],
        ),
    ],
)
def test_a_lasting_fault_is_reported_and_leaves_a_cache_that_the_next_call_completes(
    world: World, fault: Fault, code: str, values: list[str]
) -> None:
    world.hub.fail(fault)
    with raises(HubError, code) as caught:
        zoo.load("org/toy", runtime="onnx")
    assert all(value in str(caught.value) for value in values)
    assert world.parts() == []
    # timm would load the trunk from the files that arrived, without the heads.
    assert not (home() / "baselines").exists()
    arrived = {file: world.gets(file) for file in ("heads.safetensors", "golden.safetensors")}
    assert_whole(zoo.load("org/toy", runtime="onnx").folder)
    assert all(world.gets(file) == max(count, 1) for file, count in arrived.items())


def test_a_server_that_stays_silent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    world.hub.fail(Fault("card.json", drop=0, stall=0.5, times=6))
    with raises(HubUnreachableError, "hub-unreachable"):
        download.snapshot("org/toy")


def test_a_disk_that_fills_during_a_download(world: World) -> None:
    """A limit on the size of files stands for the full disk: the same write fails, for the kernel's own reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with raises(HubError, "disk-full"):
            download.snapshot("org/toy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert world.parts() == []
    assert_whole(download.snapshot("org/toy"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_other_error_numbers_of_a_full_disk(number: int) -> None:
    assert convert_error(OSError(number, os.strerror(number)), "org/toy").code == "disk-full"


@pytest.mark.parametrize(
    ("kind", "token", "error", "code"),
    [
        ("private", None, ModelNotFoundError, "model-not-found"),
        ("private", "reader", ModelNotFoundError, "model-not-found"),
        ("private", "wrong", HubError, "login-needed"),
        ("gated", None, HubError, "forbidden"),
        ("gated", "reader", HubError, "forbidden"),
    ],
)
def test_private_and_gated_repositories(
    world: World, kind: str, token: str | None, error: type[ZooError], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setattr(world.hub.repositories["org/toy"], kind, True)
    if token:
        monkeypatch.setenv("HF_TOKEN", world.hub.reader if token == "reader" else "hf_wrong_wrong")
    with raises(error, code) as caught:
        zoo.load("org/toy", runtime="onnx")
    if token != "wrong":
        assert ("No token" if token is None else "A token") in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", world.hub.token)
    assert_whole(zoo.load("org/toy", runtime="onnx").folder)


def test_missing_repositories_and_revisions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(ModelNotFoundError, "model-not-found") as missing:
        zoo.load("org/tyo")
    assert f"({world.hub.url}) has no org/tyo" in str(missing.value)
    with raises(ModelNotFoundError, "model-not-found") as revision:
        zoo.load("org/toy", revision="v9")
    assert str(revision.value).startswith("org/toy on the Hub has no revision 'v9'")  # nothing else was searched
    with raises(UsageError, "conflicting-options"):
        zoo.load("org/toy@v1", revision="v2")
    with pytest.raises(ModelNotFoundError) as bare:
        zoo.load("toy")
    assert "dml-zoo/toy" in str(bare.value)
    assert "ZOO_HUB_ORG" in str(bare.value)
    monkeypatch.setenv("ZOO_HUB_ORG", "org")
    assert_whole(zoo.load("toy", runtime="onnx").folder)


@pytest.mark.parametrize("offline", [False, True])
def test_a_bare_name_with_a_revision_is_searched_only_on_the_hub(
    world: World, own_zoo: Path, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    answer = "HF_HUB_OFFLINE is set" if offline else "has no dml-zoo/"
    with pytest.raises(ModelNotFoundError) as shipped:
        zoo.load(MODEL.name, revision="main")
    assert all(value in str(shipped.value) for value in ("'margin-conv4-glyphs'", "'main'", answer, str(MODEL)))
    assert "zoo train" not in str(shipped.value)
    with pytest.raises(ModelNotFoundError) as mistyped:
        zoo.load("margin-conv4-glyps", revision="main")
    assert all(value in str(mistyped.value) for value in (answer, "Did you mean 'margin-conv4-g"))


def test_a_branch_is_looked_up_each_time_and_the_cache_serves_without_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = download.snapshot("org/toy")
    commit = world.hub.repositories["org/toy"].branches["main"]
    newer = {**FILES, "README.md": b"newer"}
    world.hub.repositories["org/toy"].commit("main", newer)
    assert download.snapshot("org/toy") == first
    second = download.snapshot("org/toy", "main")
    assert (second / "README.md").read_bytes() == b"newer"
    assert not (first / "README.md").exists()
    assert world.gets(WEIGHTS) == 1  # the files that did not change are not fetched again
    asked = len(world.hub.requests)
    assert download.snapshot("org/toy", commit) == first
    assert len(world.hub.requests) == asked
    world.hub.fail(Fault(API, status=503, times=99))
    assert download.snapshot("org/toy", "main") == second
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert download.snapshot("org/toy", "main") == second
    with raises(HubUnreachableError, "hub-unreachable") as caught:
        download.snapshot("org/other")
    assert "ConnectError" in str(caught.value)


def test_all_files_come_from_one_commit_of_a_moving_branch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = world.hub.repositories["org/toy"]
    first = repository.branches["main"]
    check = download._check_bytes

    def push_meanwhile(folder: Path) -> None:
        check(folder)
        repository.commit("main", {**FILES, "README.md": b"newer", "recipe.json": b"{}"})

    monkeypatch.setattr(download, "_check_bytes", push_meanwhile)
    folder = download.snapshot("org/toy")
    assert folder.name == first
    assert_whole(folder)
    assert download.snapshot("org/toy") == folder  # the cache knows what main was
    assert (world.cache / "models--org--toy" / "refs" / "main").read_text() == first


@pytest.mark.slow
def test_the_environment_sets_hub_cache_token_and_offline_mode(world: World, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE, in processes of their own."""
    world.hub.repositories["org/toy"].private = True
    code = "import zoo; print(zoo.load('org/toy', runtime='onnx').folder)"

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment = {**kept, "HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": world.hub.url, **more}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )

    first = run(HF_TOKEN=world.hub.token)
    assert first.stdout.startswith(str(tmp_path / "hf" / "hub")), first.stderr
    assert world.hub.token not in first.stdout + first.stderr
    asked = len(world.hub.requests)
    assert run(HF_HUB_OFFLINE="1").stdout == first.stdout
    assert len(world.hub.requests) == asked


def test_tokens_are_neither_logged_nor_printed_nor_raised(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    token = world.hub.token
    monkeypatch.setenv("HF_TOKEN", token)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("huggingface_hub").setLevel(logging.DEBUG)
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    echo = json.dumps({"error": f"no rights for Bearer {token}"}).encode()
    for status in (400, 401, 403, 418, 500):
        world.hub.fail(Fault(API, status=status, body=echo, times=1 if status < 500 else 3))
        with pytest.raises(ZooError) as caught:
            zoo.load("org/toy", runtime="onnx")
        assert token[3:] not in "".join(traceback.format_exception(caught.value))
    world.hub.repositories["org/toy"].private = True
    zoo.load("org/toy", runtime="onnx")
    assert token not in caplog.text
    assert token not in "".join(capfd.readouterr())
    sent = {request.token for request in world.hub.requests if request.path.startswith("/cdn/")}
    assert sent == {None}  # another host


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({}, download.NoModelFolderError.code),
        ({"card.json": FILES["card.json"]}, "missing-file"),
    ],
)
def test_pickles_instead_of_safetensors_are_never_fetched(world: World, extra: dict[str, bytes], code: str) -> None:
    world.hub.add("org/old", {"pytorch_model.bin": b"\x80\x04.", "vae.ckpt": b"", **extra})
    with raises(HubError, code) as caught:
        download.snapshot("org/old")
    assert "pytorch_model.bin, vae.ckpt" in str(caught.value)
    assert not any("/resolve/" in path and path.endswith((".bin", ".ckpt")) for path in world.hub.paths)


def test_a_pickle_that_the_card_lists_is_not_fetched(world: World) -> None:
    card = json.loads(FILES["card.json"])
    card["files"]["pytorch_model.bin"] = "0" * 64
    world.hub.add("org/sly", {**FILES, "card.json": json.dumps(card).encode(), "pytorch_model.bin": b"\x80\x04."})
    with raises(HubError, "missing-file") as caught:
        zoo.load("org/sly", runtime="onnx")
    assert "pytorch_model.bin" in str(caught.value)
    assert not any("/resolve/" in path and path.endswith(".bin") for path in world.hub.paths)


@pytest.mark.parametrize("name", ["../../x.safetensors", "/etc/passwd", "onnx/../../../x", "a\\..\\..\\b"])
def test_names_outside_the_folder_are_refused_before_any_download(world: World, name: str) -> None:
    card = json.loads(FILES["card.json"])
    card["files"][name] = "0" * 64
    world.hub.add("org/sly", {**FILES, "card.json": json.dumps(card).encode()})
    with pytest.raises((CardError, HubError)):
        zoo.load("org/sly", runtime="onnx")
    assert world.gets(WEIGHTS) == 0 or "\\" in name


def test_a_card_of_a_newer_version_is_refused_before_the_weights_are_fetched(world: World) -> None:
    card = {**json.loads(FILES["card.json"]), "schema": SCHEMA + 1}
    world.hub.add("org/newer", {**FILES, "card.json": json.dumps(card).encode()})
    with pytest.raises(CardError):
        zoo.load("org/newer", runtime="onnx")
    assert world.gets(WEIGHTS) == 0


def test_weights_that_the_card_does_not_list_are_refused(world: World) -> None:
    other = bytearray(FILES["onnx/model.onnx"])
    other[-1] ^= 1
    world.hub.add("org/sly", {**FILES, "onnx/model.onnx": bytes(other)})
    with pytest.raises(ZooError) as caught:
        zoo.load("org/sly", runtime="onnx")
    assert "revision='main'" in str(caught.value)
    world.hub.repositories["org/sly"].commit("main", FILES)
    assert_whole(zoo.load("org/sly", runtime="onnx", revision="main").folder)
    assert read_card(zoo.load("org/sly", runtime="onnx").folder).name == MODEL.name
