"""Services of this process that follow one another, over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from serving.app import create_app
from serving.collections import Collections
from serving.configuration import FOLLOW, FOLLOW_KEY, FOLLOW_KEYS, WRITE_KEYS
from serving.galleries import GALLERY
from serving.gallery.verification import verify_gallery
from tests.serving import toys
from tests.serving.running import answering

WRITER, FOLLOWER, READER = "w" * 20, "f" * 20, "r" * 20
KEYS = {WRITE_KEYS: WRITER, FOLLOW_KEYS: FOLLOWER}
BEHIND = "x-gallery-behind"


@dataclass
class Service:
    """`collections`: as they are served; `http`: with the write key."""

    url: str
    folder: Path
    collections: Collections
    http: httpx.Client

    def found(self, kind: int = 0, **fields: Any) -> list[int]:
        answer = self.http.post(
            "/search", files={"image": toys.query(kind)}, data={"k": 50, **fields}
        ).raise_for_status()
        assert BEHIND not in answer.headers
        return [one["id"] for one in answer.json()["results"]]


@contextmanager
def service(environment: dict[str, str], keys: dict[str, str]) -> Iterator[Service]:
    collections = Collections.of({**environment, **keys})
    try:
        collections.open()
        with answering(create_app(collections)) as url, httpx.Client(base_url=url, timeout=30) as http:
            http.headers["x-api-key"] = WRITER
            yield Service(url, Path(environment[GALLERY]), collections, http)
    finally:
        collections.close()


def leading(folder: Path, keys: dict[str, str] = KEYS) -> Any:
    return service({GALLERY: str(folder)}, keys)


def following(url: str, folder: Path, **more: str) -> Any:
    return service({GALLERY: str(folder), FOLLOW: url, FOLLOW_KEY: FOLLOWER, **more}, {})


def wrong(folder: Path) -> list[str]:
    return [f"{one.name}: {one.detail}" for one in verify_gallery(folder) if one.ok is False]


def within(seconds: float, so: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not so():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
