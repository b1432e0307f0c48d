"""What the Hub on loopback (`tests.zoo.hub_server`) knows: repositories, who asked for what, the faults to come."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

LFS = (".safetensors", ".onnx", ".bin")


@dataclass
class Fault:
    """How the next `times` requests whose path holds `path` go wrong.

    status, code, headers, body: answered instead. drop: the connection ends after so many bytes of the body, by a reset
    where `reset`. stall: seconds of silence there. short: the body lacks so many bytes, and its stated length too.
    flip: one byte of the body is another. drip: the body comes in eight pieces, with so many seconds before each.
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
    """`branches`: name -> commit; `commits`: commit -> its files."""

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
    """`token` may write and read what is private, `reader` may read what is public.

    objects: what came by LFS, by SHA-256; xorbs: what came by Xet, chunks of several files, which are not taken apart.
    xet: large files are offered by Xet too, as the real Hub does; who asks for its token is refused.
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
        """The byte ranges that were asked of a file, in turn; None for the whole."""
        gets = [r for r in self.requests if r.method == "GET" and not is_redirect("GET", r.path)]
        return [r.range for r in gets if r.path.endswith(f"/{file}")]


def is_redirect(method: str, path: str) -> bool:
    """Whether what is asked for lies elsewhere, where it is asked for again."""
    return method == "GET" and "/resolve/" in path and is_lfs(path)


def is_lfs(path: str) -> bool:
    return path.endswith(LFS)


def git_sha1(data: bytes) -> str:
    """A file's name among git's objects."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
