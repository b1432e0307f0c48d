"""The state of the Hub on loopback (`tests.zoo.hub_server`): repositories, requests, faults to come."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

LFS = (".safetensors", ".onnx", ".bin")


@dataclass
class Fault:
    """A fault of the next `times` requests with `path` in their path.

    Attributes:
        path, times, method: The requests.
        status, code, headers, body: The answer instead of the right one.
        drop: The number of bytes of the body after which the connection ends.
        reset: It ends by a reset.
        stall: Seconds of silence before it ends.
        short: The number of bytes by which the body and its stated length are too short.
        flip: One byte of the body is changed.
        drip: The body comes in eight pieces, with this many seconds before each.
    """

    path: str
    times: int = 1
    method: str = "GET"
    status: int | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    drop: int | None = None
    reset: bool = False
    stall: float = 0
    short: int = 0
    flip: bool = False
    drip: float = 0


@dataclass
class Request:
    """A request that the Hub received."""

    method: str
    path: str
    range: str | None
    token: str | None
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Repository:
    """A repository: branches (name -> commit) and commits (commit -> files)."""

    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def sha(self, revision: str) -> str | None:
        sha = self.branches.get(revision, revision)
        return sha if sha in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches.get(revision, revision)]

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        listing = [branch, len(self.commits), *((name, git_sha1(data)) for name, data in files.items())]
        sha = hashlib.sha1(json.dumps(listing).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = dict(files), sha
        return sha


@dataclass
class Hub:
    """The Hub.

    Attributes:
        token: A token that may write, and read private repositories.
        reader: A token that may read public repositories.
        objects: Files that came by LFS, by SHA-256.
        xorbs: Chunks of several files that came by Xet; they are not unpacked.
        xet: Large files are offered by Xet too, as by the real Hub; requests for its token are refused.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    token: str = "hf_writer_0123456789"
    reader: str = "hf_reader_0123456789"
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    xorbs: dict[str, bytes] = field(default_factory=dict)
    pull_requests: list[dict[str, bytes]] = field(default_factory=list)
    xet: bool = False
    url: str = ""
    lock: Any = field(default_factory=Lock)

    def add(self, name: str, files: dict[str, bytes], private: bool = False, gated: bool = False) -> Repository:
        repository = self.repositories[name] = Repository(private=private, gated=gated)
        repository.commit("main", files)
        return repository

    def fail(self, *faults: Fault) -> None:
        self.faults.extend(faults)

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.path in path and fault.method == method and fault.times and not is_redirect(method, path):
                    fault.times -= 1
                    return fault
        return None

    def ranges(self, file: str) -> list[str | None]:
        """Return the requested byte ranges of a file in order; None for the whole file."""
        gets = [r for r in self.requests if r.method == "GET" and not is_redirect("GET", r.path)]
        return [r.range for r in gets if r.path.endswith(f"/{file}")]


def is_redirect(method: str, path: str) -> bool:
    """Return whether a request is answered by the address of another host."""
    return method == "GET" and "/resolve/" in path and is_lfs(path)


def is_lfs(path: str) -> bool:
    return path.endswith(LFS)


def git_sha1(data: bytes) -> str:
    """Return git's name of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
