"""Who is let in at all, over real connections: by the rate of a client, and by where the service is asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import httpx
import pytest

from serving.app import create_app
from serving.collection import Collection
from serving.collections import Collections
from serving.configuration import READ_KEYS, WRITE_KEYS, Configuration
from serving.keys import Keys
from serving.searcher import Searcher
from tests.serving.running import answering

READER, WRITER = "r" * 20, "w" * 20
RATED = Configuration(rate=0.01, burst=5)
GUESS = itertools.count()


def guessed() -> dict[str, str]:
    return {"x-api-key": f"guess number {next(GUESS):06}"}


def opened() -> Searcher:
    raise AssertionError("nothing here needs the gallery")


def collections(*names: str, **environment: str) -> Collections:
    return Collections([Collection(name, opened, Keys.of(environment)) for name in names or [""]])


def statuses(url: str, path: str, headers: Callable[[], dict[str, str]] = dict) -> list[int]:
    return [httpx.get(f"{url}{path}", headers=headers()).status_code for _ in range(7)]


def test_made_up_keys_are_counted_as_the_address_they_come_from() -> None:
    with answering(create_app(collections(), RATED)) as url:
        assert statuses(url, "/livez", guessed) == [200] * 5 + [429] * 2
        assert httpx.get(f"{url}/livez").status_code == 429, "it is the same client"


@pytest.mark.parametrize(("names", "path", "wrong"), [((), "/items", 401), (("a", "b"), "/collections/c", 404)])
def test_guessing_keys_has_its_limit(names: tuple[str, ...], path: str, wrong: int) -> None:
    served = collections(*names, **{READ_KEYS: READER, WRITE_KEYS: WRITER})
    with answering(create_app(served, RATED)) as url:
        assert statuses(url, path, guessed) == [wrong] * 5 + [429] * 2
        for key in (READER, WRITER):
            assert statuses(url, "/docs", lambda key=key: {"x-api-key": key}) == [200] * 5 + [429] * 2
