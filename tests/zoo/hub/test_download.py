"""Models from the Hub: the real client, over HTTP, against a Hub on loopback that fails as networks and servers do."""

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
from tests.zoo.hub_state import Fault
from tests.zoo.hub_world import FILES, MODEL, WEIGHTS, World, assert_whole
from zoo.errors import CardError, HubError, ModelNotFoundError, UsageError, ZooError
from zoo.hub import download
from zoo.hub.errors import convert_error
from zoo.models.card import SCHEMA, read_card
from zoo.models.golden import read_golden
from zoo.paths import home

API = "/api/models/org/toy"


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


def test_a_connection_that_drops_in_mid_file_is_taken_up_at_that_byte(world: World) -> None:
    world.hub.fail(Fault(WEIGHTS, drop=100_000))
    assert_whole(download.snapshot("org/toy"))
    assert world.hub.ranges(WEIGHTS) == [None, f"bytes={100_000 // 4096 * 4096}-"]


def test_a_slow_server_is_asked_again_from_that_byte(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    world.hub.fail(Fault(WEIGHTS, drop=100_000, stall=1.0))
    assert_whole(download.snapshot("org/toy"))
    assert world.hub.ranges(WEIGHTS)[1] == f"bytes={100_000 // 4096 * 4096}-"


def test_a_server_that_drips_is_waited_for_as_long_as_something_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_what_passes_by_itself_is_waited_for(world: World, fault: Fault, waits: list[float]) -> None:
    world.hub.fail(fault)
    assert_whole(download.snapshot("org/toy"))
    assert world.waits == waits
    assert world.parts() == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault(WEIGHTS, drop=100_000, reset=True, times=3), r"connection to the Hub broke.*Run again"),
        (Fault(WEIGHTS, short=7, times=3), r"only in part.*544336.*544329.*Run again"),
        (Fault(WEIGHTS, flip=True, times=3), rf"{WEIGHTS} of org/toy came three times with other bytes.*removed"),
        (Fault("card.json", flip=True, times=3), r"card\.json of org/toy came three times with other bytes"),
        (Fault(API, status=429, headers={"Retry-After": "700"}), r"too many requests.*in 700 seconds"),
        (Fault(API, status=429, times=3), r"too many requests.*in some minutes"),
        (Fault(WEIGHTS, status=502, times=3), r"fault of its own \(502\).*HF_HUB_OFFLINE=1"),
        (Fault(WEIGHTS, status=404, code="EntryNotFound", method="HEAD"), r"answered 404 .*model\.safetensors"),
        (Fault(API, status=200, body=b"<html>log in first</html>"), r"no usable answer.*JSONDecodeError.*HF_ENDPOINT"),
    ],
)
def test_what_does_not_pass_is_said_and_leaves_a_cache_that_the_next_call_completes(
    world: World, fault: Fault, says: str
) -> None:
    world.hub.fail(fault)
    with pytest.raises(HubError, match=says):
        zoo.load("org/toy", runtime="onnx")
    assert world.parts() == []
    # timm would load the trunk of what has arrived, without its heads.
    assert not (home() / "baselines").exists()
    arrived = {file: world.gets(file) for file in ("heads.safetensors", "golden.safetensors")}
    assert_whole(zoo.load("org/toy", runtime="onnx").folder)
    assert all(world.gets(file) == max(count, 1) for file, count in arrived.items())


def test_a_server_that_stays_silent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    world.hub.fail(Fault("card.json", drop=0, stall=0.5, times=6))
    with pytest.raises(HubError, match=r"too slow.*HF_HUB_DOWNLOAD_TIMEOUT"):
        download.snapshot("org/toy")


def test_a_disk_that_fills_during_a_download(world: World) -> None:
    """A limit on the size of files stands for the full disk: the same write fails, for the kernel's own reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(HubError, match=r"could not be stored.*Make room.*HF_HOME"):
            download.snapshot("org/toy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert world.parts() == []
    assert_whole(download.snapshot("org/toy"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_other_numbers_too(number: int) -> None:
    assert "Make room" in str(convert_error(OSError(number, os.strerror(number)), "org/toy"))


@pytest.mark.parametrize(
    ("kind", "token", "error", "says"),
    [
        ("private", None, ModelNotFoundError, r"has no org/toy, or it is private.*hf auth login.*No token was sent"),
        ("private", "reader", ModelNotFoundError, r"has no org/toy, or it is private.*A token was sent"),
        ("private", "wrong", HubError, r"does not accept the token.*hf auth login"),
        ("gated", None, HubError, r"gated.*Accept them at http://127.*/org/toy.*No token was sent"),
        ("gated", "reader", HubError, r"gated.*Accept them at.*A token was sent"),
    ],
)
def test_what_the_login_does_not_open(
    world: World, kind: str, token: str | None, error: type[ZooError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setattr(world.hub.repositories["org/toy"], kind, True)
    if token:
        monkeypatch.setenv("HF_TOKEN", world.hub.reader if token == "reader" else "hf_wrong_wrong")
    with pytest.raises(error, match=says):
        zoo.load("org/toy", runtime="onnx")
    monkeypatch.setenv("HF_TOKEN", world.hub.token)
    assert_whole(zoo.load("org/toy", runtime="onnx").folder)


def test_what_is_not_there_is_said_with_where_it_was_looked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match=rf"the Hub \({world.hub.url}\) has no org/tyo"):
        zoo.load("org/tyo")
    with pytest.raises(ModelNotFoundError, match=r"^org/toy on the Hub has no revision 'v9'"):
        zoo.load("org/toy", revision="v9")  # no other place was looked at
    with pytest.raises(UsageError, match="another one is asked for"):
        zoo.load("org/toy@v1", revision="v2")
    with pytest.raises(ModelNotFoundError, match=r"has no dml-zoo/toy.*ZOO_HUB_ORG"):
        zoo.load("toy")
    monkeypatch.setenv("ZOO_HUB_ORG", "org")
    assert_whole(zoo.load("toy", runtime="onnx").folder)


@pytest.mark.parametrize("offline", [False, True])
def test_with_a_revision_no_other_place_than_the_hub_is_said_to_have_been_looked_at(
    world: World, own_zoo: Path, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    asked = r"It could not be asked \(HF_HUB_OFFLINE is set\)\." if offline else r"There, the Hub .* has no dml-zoo/"
    head = r"^no model '{}' at revision 'main': with a revision only the Hub is asked\. " + asked
    shipped = head.format("margin-conv4-glyphs") + rf".* Without a revision .* loads from {MODEL}\.$"
    with pytest.raises(ModelNotFoundError, match=shipped) as caught:
        zoo.load(MODEL.name, revision="main")
    assert "zoo train" not in str(caught.value)
    with pytest.raises(ModelNotFoundError, match=head.format("margin-conv4-glyps") + ".* Did you mean 'margin-conv4-g"):
        zoo.load("margin-conv4-glyps", revision="main")


def test_without_an_answer_the_cache_serves_and_a_branch_is_looked_up_each_time(
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
    with pytest.raises(HubError, match=r"not whole, in the Hub's cache.*ConnectError"):
        download.snapshot("org/other")


def test_all_files_are_of_the_commit_that_the_branch_was_at_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_environment_says_which_hub_which_cache_and_whether_to_ask(world: World, tmp_path: Path) -> None:
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


def test_no_token_in_what_is_logged_printed_or_raised(
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
    ("extra", "says"),
    [
        ({}, r"no card\.json\. It holds pytorch_model\.bin, vae\.ckpt: pickles.*zoo convert"),
        (
            {"card.json": FILES["card.json"]},
            r"lacks model\.safetensors.*It holds pytorch_model\.bin, vae\.ckpt: pickles",
        ),
    ],
)
def test_a_pickle_in_place_of_safetensors_is_refused_and_never_fetched(
    world: World, extra: dict[str, bytes], says: str
) -> None:
    world.hub.add("org/old", {"pytorch_model.bin": b"\x80\x04.", "vae.ckpt": b"", **extra})
    with pytest.raises(HubError, match=says):
        download.snapshot("org/old")
    assert not any("/resolve/" in path and path.endswith((".bin", ".ckpt")) for path in world.hub.paths)


def test_a_card_that_lists_a_pickle_does_not_make_it_fetched(world: World) -> None:
    card = json.loads(FILES["card.json"])
    card["files"]["pytorch_model.bin"] = "0" * 64
    world.hub.add("org/sly", {**FILES, "card.json": json.dumps(card).encode(), "pytorch_model.bin": b"\x80\x04."})
    with pytest.raises(HubError, match=r"lacks pytorch_model\.bin"):
        zoo.load("org/sly", runtime="onnx")
    assert not any("/resolve/" in path and path.endswith(".bin") for path in world.hub.paths)


@pytest.mark.parametrize("name", ["../../x.safetensors", "/etc/passwd", "onnx/../../../x", "a\\..\\..\\b"])
def test_names_that_lead_out_of_the_folder_are_refused_before_anything_is_fetched(world: World, name: str) -> None:
    card = json.loads(FILES["card.json"])
    card["files"][name] = "0" * 64
    world.hub.add("org/sly", {**FILES, "card.json": json.dumps(card).encode()})
    with pytest.raises((CardError, HubError), match=r"outside the model folder|lacks"):
        zoo.load("org/sly", runtime="onnx")
    assert world.gets(WEIGHTS) == 0 or "\\" in name


def test_a_card_of_a_newer_version_is_refused_before_its_weights_are_fetched(world: World) -> None:
    card = {**json.loads(FILES["card.json"]), "schema": SCHEMA + 1}
    world.hub.add("org/newer", {**FILES, "card.json": json.dumps(card).encode()})
    with pytest.raises(CardError, match="Upgrade"):
        zoo.load("org/newer", runtime="onnx")
    assert world.gets(WEIGHTS) == 0


def test_weights_that_are_not_the_cards_are_refused_though_the_hub_vouches_for_them(world: World) -> None:
    other = bytearray(FILES["onnx/model.onnx"])
    other[-1] ^= 1
    world.hub.add("org/sly", {**FILES, "onnx/model.onnx": bytes(other)})
    with pytest.raises(ZooError, match=r"SHA-256 differs.*revision='main'"):
        zoo.load("org/sly", runtime="onnx")
    world.hub.repositories["org/sly"].commit("main", FILES)
    assert_whole(zoo.load("org/sly", runtime="onnx", revision="main").folder)
    assert read_card(zoo.load("org/sly", runtime="onnx").folder).name == MODEL.name
