"""A primary whose answers can be changed, and followers of it, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.following import handing_out
from serving.following.bounds import DIGEST, digest_of
from serving.following.follower import Follower
from serving.following.primary import Address, Primary
from serving.following.wire import written
from serving.gallery import Gallery
from serving.gallery.binding import model_text
from serving.gallery.gallery import STORE
from serving.gallery.store import Store
from tests.serving.followers import FOLLOWER
from tests.serving.test_backends import CARD, new_items, unit_rows

Change = Callable[[dict[str, Any], list[dict[str, Any]]], None]


class Toy:
    """A primary of vectors alone, whose answers can be changed on their way."""

    def __init__(self, folder: Path, count: int = 20) -> None:
        self.folder = folder
        with Gallery.create(folder, CARD, "toy") as gallery:
            gallery.add(new_items(unit_rows(count)))
        self.store = Store(folder / STORE)
        self.change: Change = lambda head, rows: None
        self.damage: Callable[[Response], None] = lambda response: None
        self.asked, self.rows = 0, handing_out.ROWS
        self.backend: tuple[str, str] | None = None

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/changes", self._answer)])

    def _answer(self, request: Request) -> Response:
        self.asked += 1
        after = int(request.query_params["after"])
        rows = min(self.rows, int(request.query_params["limit"]))
        part = self.store.history.since(after, rows, 10**9, request.query_params.get("history"))
        body = written(part, None if after else model_text(CARD, "toy"), self.backend)
        head, *rows = [json.loads(line) for line in body.splitlines()]
        self.change(head, rows)
        body = b"".join(json.dumps(one).encode() + b"\n" for one in (head, *rows))
        response = Response(body, headers={DIGEST: digest_of(body)})
        self.damage(response)
        return response


@contextmanager
def follower_of(url: str, folder: Path) -> Iterator[Follower]:
    follower = Follower(folder, Primary(Address(url, FOLLOWER), ""), lambda card, ref: None)
    try:
        yield follower
    finally:
        follower.close()
