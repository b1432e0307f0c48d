"""Transfers from the Hub: by HTTP rather than Xet, and removal of the parts of killed downloads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from huggingface_hub.utils._fixes import WeakFileLock

from tests.zoo.hub_client import FILES, WEIGHTS, World, assert_whole
from tests.zoo.hub_state import Fault, sha256
from zoo.errors import HubError
from zoo.hub import download
from zoo.hub.download import DAY, remove_leftovers, without_xet


def test_large_files_come_by_http_unless_the_user_wants_xet(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's default is Xet, where it is installed and the Hub offers it."""
    import hf_xet  # noqa: F401
    from huggingface_hub import constants

    def asked_for_xet() -> bool:
        return any("xet-read-token" in path for path in world.hub.paths)

    assert_whole(download.snapshot("org/toy"))
    assert not asked_for_xet()
    assert constants.HF_HUB_DISABLE_XET is False
    world.hub.add("org/toy2", FILES)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "0")
    monkeypatch.delenv("SSL_CERT_DIR")  # its client wants certificates, if only to hold them
    with pytest.raises(HubError):
        download.snapshot("org/toy2")
    assert asked_for_xet()


def test_concurrent_downloads_restore_the_clients_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_DISABLE_XET", raising=False)
    for before in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", before)
        first, second = without_xet(), without_xet()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert constants.HF_HUB_DISABLE_XET
        second.__exit__(None, None, None)
        assert constants.HF_HUB_DISABLE_XET is before


def test_parts_of_a_killed_process_are_removed_by_the_next_download(world: World) -> None:
    """Kill a process within a file: it leaves a part with a name that no later download uses."""
    world.hub.fail(Fault(WEIGHTS, drop=100_000, stall=60))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = {**kept, "HF_HUB_CACHE": str(world.cache), "HF_ENDPOINT": world.hub.url}
    code = "from zoo.hub.download import snapshot; snapshot('org/toy')"
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as child:
        # Only once it has asked for the file has this process used up the fault.
        _wait_for(
            lambda: world.gets(WEIGHTS) > 0 and any(part.startswith(sha256(FILES[WEIGHTS])) for part in world.parts())
        )
        child.kill()
    left = world.parts()
    assert left
    assert_whole(download.snapshot("org/toy"))
    assert world.parts() == []
    assert world.hub.ranges(WEIGHTS) == [None, None]


def _wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen within a minute")


def test_parts_of_a_running_download_stay_unless_they_are_old(world: World) -> None:
    blobs, locks = (world.cache / place / "models--org--toy" for place in (".", ".locks"))
    blobs = blobs / "blobs"
    for folder in (blobs, locks):
        folder.mkdir(parents=True)
    held, old, free = (blobs / f"{name}.0123abcd.incomplete" for name in ("a", "b", "c"))
    for part in (held, old, free, blobs / "whole"):
        part.write_bytes(b"1")
    os.utime(old, (time.time() - DAY - 60,) * 2)
    with WeakFileLock(locks / "a.lock"), WeakFileLock(locks / "b.lock"):
        remove_leftovers("org/toy")
        assert {path.name for path in blobs.iterdir()} == {held.name, "whole"}
    remove_leftovers("org/toy")
    assert world.parts() == []
    remove_leftovers("org/none")
