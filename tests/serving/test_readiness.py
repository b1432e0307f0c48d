"""What /readyz says of a service that does not give what it should."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from serving.collections import Collections
from serving.galleries import from_words, to_environment
from serving.readiness import check_ready
from zoo.errors import GalleryError


@pytest.mark.parametrize("named", [False, True])
def test_the_reason_is_json(gallery_folder: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    words = [f"birds={gallery_folder}", f"cars={gallery_folder}"] if named else [str(gallery_folder)]
    collections = Collections.of(to_environment(from_words(words)))

    def ready(request: Request) -> Response:
        """As BentoML does it: the answer is plain text unless it is refused."""
        assert check_ready(collections)
        return Response("\n")

    monkeypatch.setattr("serving.gallery.search.READY_SECONDS", 0)
    with TestClient(Starlette(routes=[Route("/readyz", ready)])) as http:
        assert http.get("/readyz").status_code == 200
        searcher = collections.each[-1].searcher
        monkeypatch.setattr(searcher, "_expected", -searcher._expected)
        answer = http.get("/readyz")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
        assert answer.json()["error"]["code"] == "not_ready"
        assert answer.json()["error"]["message"].endswith(
            " Collections: cars." if named else "the embedding that it should have."
        )

        def damaged() -> bool:
            raise GalleryError("the disk is gone")

        monkeypatch.setattr(collections.each[-1], "steadily", lambda work: damaged())
        assert http.get("/readyz").json() == answer.json()
    collections.close()


def test_it_is_looked_at_once_a_second_at_most(gallery_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask, as often as they like, and it costs an embedding."""
    collections, asked = Collections.of(to_environment(from_words([str(gallery_folder)]))), []
    searcher = collections.each[0].searcher
    monkeypatch.setattr(searcher, "_goes_all_the_way", lambda: not asked.append(1))
    monkeypatch.setattr(searcher, "_looked", (-math.inf, False))
    assert [searcher.is_ready() for _ in range(5)] == [True] * 5
    assert len(asked) == 1
    monkeypatch.setattr("serving.gallery.search.READY_SECONDS", 0)
    assert searcher.is_ready()
    assert len(asked) == 2
    monkeypatch.setattr("serving.gallery.search.READY_SECONDS", 1)

    def fails() -> bool:
        asked.append(1)
        raise GalleryError("the disk is gone")

    monkeypatch.setattr(searcher, "_goes_all_the_way", fails)
    monkeypatch.setattr(searcher, "_looked", (-math.inf, True))
    with pytest.raises(GalleryError):
        searcher.is_ready()
    assert not searcher.is_ready()
    assert len(asked) == 3, "what fails is not tried at every question either"
    collections.close()
