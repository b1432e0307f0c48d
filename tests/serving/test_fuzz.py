"""The short form of `make proof PART=fuzz`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof import fuzz, hostile, poison, specification
from tests.proof.service import Service, service

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(gallery_folder, tmp_path_factory.mktemp("fuzz")) as started:
        yield started


def test_damaged_images_of_every_kind(served: Service) -> None:
    found = fuzz.damaged_images(served, 300)
    assert found["searched"] > 50
    assert found["unreadable_image"] > 50


@pytest.mark.slow
def test_bombs(served: Service) -> None:
    fuzz.bombs_sent(served, 50_000, 200_000)


def test_requests_that_nobody_honest_sends(served: Service) -> None:
    assert hostile.refused(served) > 200
    assert hostile.kept_as_they_are(served) > 5


def test_a_method_that_a_path_does_not_take_is_answered_with_those_that_it_does(served: Service) -> None:
    with served.client() as client:
        for path, methods in (
            ("/items", "GET, HEAD, POST"),
            ("/items/1", "DELETE, GET, HEAD, PATCH"),
            ("/search", "POST"),
        ):
            answer = client.request("TRACE", path)
            assert (answer.status_code, answer.headers["allow"]) == (405, methods)


def test_bytes_that_are_hardly_http(served: Service) -> None:
    assert hostile.on_the_wire(served)["400"] > 10


def test_good_images_beside_poisoned_ones(served: Service) -> None:
    found = poison.poisoned(served, 0.5, 20_000)
    assert found["good"] > 2
    assert found["poisoned"] > 0


def test_the_specification_is_of_this_service(served: Service, tmp_path: Path) -> None:
    found = specification.holds(served, tmp_path, 2, "fuzzing")
    assert found["failures"] == 0
    assert found["cases"] >= 20
