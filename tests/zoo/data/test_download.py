"""Downloads from a real server that drops connections, ignores ranges and sends other bytes."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.raising import raises
from tests.zoo.data.faulty_server import Fault, FaultyServer, serving
from zoo.data.download import PublishedFile, fetch
from zoo.errors import DatasetError

CONTENT = np.random.default_rng(0).bytes(300_001)
FILE = PublishedFile("set.zip", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with serving({"set.zip": CONTENT}) as running:
        yield running


def get(server: FaultyServer, folder: Path, attempts: int = 4, file: PublishedFile = FILE) -> Path:
    return fetch(file, f"{server.url}/{file.name}", folder, attempts, pause=0, timeout=10, progress=False)


def test_a_file_is_fetched_once_and_nothing_else_is_left(server: FaultyServer, tmp_path: Path) -> None:
    target = get(server, tmp_path / "new" / "cache")
    assert target.read_bytes() == CONTENT
    assert [p.name for p in target.parent.iterdir() if not p.name.startswith(".")] == ["set.zip"]
    assert get(server, target.parent) == target
    assert server.ranges == [None]


def test_a_dropped_connection_is_resumed_where_it_broke_off(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(Fault(drop=100_000), Fault(drop=50_000))
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_run_resumes_an_earlier_one(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(Fault(drop=200_000))
    with raises(DatasetError, "download-failed", "200,000 of 300,001"):
        get(server, tmp_path, attempts=1)
    assert not (tmp_path / "set.zip").exists()
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=200000-"]


@settings(max_examples=15)
@given(drops=st.lists(st.integers(0, 150_000), max_size=6))
def test_any_series_of_broken_connections_gives_the_file(drops: list[int]) -> None:
    with serving({"set.zip": CONTENT}) as server, tempfile.TemporaryDirectory() as folder:
        server.fail(*(Fault(drop=n) for n in drops))
        assert get(server, Path(folder), attempts=len(drops) + 1).read_bytes() == CONTENT


def test_a_server_without_ranges_starts_again(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(Fault(drop=100_000), Fault(ignore_range=True, drop=7), Fault())
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=7-"]


def test_a_part_from_the_wrong_place_is_not_taken(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(Fault(drop=100_000), Fault(wrong_start=True))
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-", "bytes=100000-"]


def test_a_file_that_changed_size_is_not_joined(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(Fault(drop=100_000))
    with raises(DatasetError, "download-failed"):
        get(server, tmp_path, attempts=1)
    server.files["set.zip"] = CONTENT + b"more"
    with raises(DatasetError, "hash-mismatch", "300,005", "300,001", "set.zip"):
        get(server, tmp_path)
    assert (tmp_path / "set.zip.part").read_bytes() == CONTENT[:100_000]
    assert not (tmp_path / "set.zip").exists()


def test_a_truncated_file_is_refused(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(Fault(shorter=1))
    with raises(DatasetError, "hash-mismatch", "300,000", "300,001"):
        get(server, tmp_path)
    assert not (tmp_path / "set.zip").exists()


def test_a_part_longer_than_the_file_is_discarded(server: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "set.zip.part").write_bytes(b"x" * 300_000)
    server.fail(Fault(shorter=1))
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=300000-", None]


@pytest.mark.parametrize("left", [b"y" * 400_000, b""], ids=["too long", "empty"])
def test_an_odd_part_file_does_no_harm(server: FaultyServer, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "set.zip.part").write_bytes(left)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_deletes_the_file(server: FaultyServer, tmp_path: Path) -> None:
    server.files["set.zip"] = CONTENT[:-1] + b"!"
    with raises(DatasetError, "hash-mismatch", FILE.sha256):
        get(server, tmp_path)
    assert not list(tmp_path.glob("set*"))
    server.files["set.zip"] = CONTENT
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_missing_file_is_requested_once(server: FaultyServer, tmp_path: Path) -> None:
    with raises(DatasetError, "download-failed", "other.zip", "404"):
        get(server, tmp_path, file=PublishedFile("other.zip", 1, ""))
    assert server.ranges == [None]


def test_a_busy_server_is_tried_again(server: FaultyServer, tmp_path: Path) -> None:
    server.fail(Fault(status=503), Fault(status=429), Fault(drop=0), Fault(drop=1))
    assert get(server, tmp_path, attempts=5).read_bytes() == CONTENT


def test_a_refused_connection_is_reported(tmp_path: Path) -> None:
    with serving({}) as gone:
        pass
    with raises(DatasetError, "download-failed", "2 attempts", "refused"):
        get(gone, tmp_path, attempts=2)


def test_two_at_once_download_it_once(server: FaultyServer, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: get(server, tmp_path), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert server.ranges == [None]


def test_a_folder_that_cannot_be_written_to_is_named(server: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with raises(DatasetError, "not-writable", tmp_path / "file", "ZOO_HOME"):
        get(server, tmp_path / "file")
