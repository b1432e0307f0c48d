"""The page of a service that takes little at once: how images are added to it, and how many results are asked for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Response, Route, expect

from serving.configuration import WRITE_KEYS
from tests.serving.browser import opened
from tests.serving.running import Running, serving

pytestmark = pytest.mark.browser

WRITER = "write-key-of-the-tests"
MAX_BODY, MAX_PIXELS, MAX_K = 200_000, 500_000, 20
SMALL, HALF, OVER = 20, 190, 320
"""Sides of pictures of noise, in pixels: of a few kB, of more than half a request's bytes, and of more than all."""


@pytest.fixture(scope="module")
def service(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("little at once") / "gallery"
    shutil.copytree(gallery_folder, folder)
    limits = ("--max-body", MAX_BODY, "--max-pixels", MAX_PIXELS, "--max-k", MAX_K)
    with serving(folder, *limits, environment={WRITE_KEYS: WRITER}) as running:
        yield running


@pytest.fixture
def page(browser: Browser, service: Running) -> Iterator[Page]:
    """The page, with the form to add images open and the write key given."""
    with opened(browser, service.url) as page:
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_role("button", name="Enter the write key").click()
        page.locator("#key").fill(WRITER)
        page.keyboard.press("Enter")
        yield page


@pytest.fixture
def noise(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[int, str], Path]:
    """Makes a picture that no other test adds, of so many pixels a side."""
    random = np.random.default_rng(list(request.node.name.encode()))

    def make(side: int, name: str) -> Path:
        Image.fromarray(random.integers(0, 256, (side, side, 3), np.uint8)).save(tmp_path / name)
        return tmp_path / name

    return make


def send(page: Page, files: list[Path]) -> list[int]:
    """Add the files; the statuses of the answers, once all are there."""
    statuses: list[int] = []

    def listen(response: Response) -> None:
        if response.request.method == "POST" and response.url.endswith("/items"):
            statuses.append(response.status)

    page.on("response", listen)
    page.locator("#add-files").set_input_files(files)
    page.locator("#add-submit").click()
    expect(page.locator("#add-note")).to_have_text(re.compile("added"))
    expect(page.locator("#add-submit")).to_be_enabled()
    return statuses


def test_images_are_grouped_by_bytes_and_one_that_is_too_large_stops_no_other(
    page: Page, noise: Callable[[int, str], Path]
) -> None:
    files = [noise(HALF, f"{number}.png") for number in range(4)]
    assert MAX_BODY / 2 < files[0].stat().st_size < MAX_BODY
    statuses = send(page, [*files[:2], noise(OVER, "over.png"), *files[2:]])
    expect(page.locator("#add-note")).to_have_text("4 images added, 1 refused")
    expect(page.locator("#add-refused li")).to_have_text([re.compile(r"^over\.png: Too large: The request has more")])
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".card")).to_have_count(4)
    assert statuses == [201, 201, 413, 201, 201]


def test_an_image_of_too_many_pixels_that_is_alone_in_its_request_is_named(
    page: Page, tmp_path: Path, noise: Callable[[int, str], Path]
) -> None:
    Image.new("RGB", (1000, 600)).save(tmp_path / "wide.png")
    files = [noise(SMALL, f"{number}.png") for number in range(4)]
    assert send(page, [*files, tmp_path / "wide.png"]) == [201, 413]
    expect(page.locator("#add-note")).to_have_text("4 images added, 1 refused")
    expect(page.locator("#add-refused li")).to_have_text([re.compile(r"^wide\.png: Too large: .*1000 x 600 pixels")])


@pytest.mark.parametrize("says_why", [True, False], ids=["with an error of all", "without one"])
def test_where_all_images_are_bad_each_one_has_its_reason(page: Page, tmp_path: Path, says_why: bool) -> None:
    page.evaluate(
        """(error) => {
            const real = window.fetch;
            window.fetch = async (...asked) => {
                const answer = await real(...asked);
                if (answer.status !== 422) return answer;
                return new Response(JSON.stringify({ ...(await answer.json()), error }), { status: 422 });
            };
        }""",
        {"code": "unreadable_image", "message": "None of them can be read."} if says_why else None,
    )
    (tmp_path / "notes.png").write_bytes(b"this is no image")
    Image.new("RGB", (1000, 600)).save(tmp_path / "wide.png")
    assert send(page, [tmp_path / "notes.png", tmp_path / "wide.png"]) == [422]
    expect(page.locator("#add-note")).to_have_text("0 images added, 2 refused")
    reasons = [re.compile(r"^notes\.png: .*none of the formats"), re.compile(r"^wide\.png: .*1000 x 600 pixels")]
    expect(page.locator("#add-refused li")).to_have_text(reasons)


def test_images_that_are_refused_together_are_sent_one_by_one(page: Page, noise: Callable[[int, str], Path]) -> None:
    asked: list[Route] = []

    def fail_once(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(status=500, json={"error": {"code": "internal_error", "message": "It failed."}})
        elif len(asked) == 3:
            route.fulfill(status=413, body="<h1>Request Entity Too Large</h1>")  # as a proxy in between says it
        else:
            route.continue_()

    page.route("**/items", fail_once)
    statuses = send(page, [noise(SMALL, f"{number}.png") for number in range(5)])
    assert statuses == [500, 201, 413, 201, 201, 201]
    expect(page.locator("#add-note")).to_have_text("4 images added, 1 refused")
    expect(page.locator("#add-refused li")).to_have_text(["1.png: Too large: The server answered with status 413."])


@pytest.mark.parametrize(("status", "said"), [(403, "Not allowed: Said."), (429, "Too busy: Said.")])
def test_a_refusal_that_concerns_all_says_what_was_added_before(
    page: Page, noise: Callable[[int, str], Path], status: int, said: str
) -> None:
    asked: list[Route] = []

    def refuse_second(route: Route) -> None:
        asked.append(route)
        if len(asked) == 2:
            route.fulfill(status=status, json={"error": {"code": "some", "message": "Said."}})
        else:
            route.continue_()

    page.route("**/items", refuse_second)
    files = [noise(SMALL, f"{number}.png") for number in range(9)]
    assert send(page, files) == [201, status]
    expect(page.locator("#add-note")).to_have_text("4 images added, 5 not sent")
    expect(page.get_by_role("alert")).to_have_text(said)
    expect(page.locator(".card")).to_have_count(4)
    page.locator("#add-submit").click()  # they are still chosen
    expect(page.locator("#add-note")).to_have_text("5 images added, 4 existed")


def test_no_more_results_are_asked_for_than_the_service_gives(browser: Browser, service: Running) -> None:
    with opened(browser, service.url) as page:
        page.goto(f"{service.url}/?id=1")  # it is searched by before the page knows anything
        expect(page.locator(".card")).to_have_count(MAX_K)
        expect(page.locator("#k option")).to_have_text(["12", str(MAX_K)])
        expect(page.locator("#k")).to_have_value(str(MAX_K))
        with page.expect_response(re.compile("/search")) as answered:
            page.get_by_role("button", name="More results").click()
        assert answered.value.status == 200
        assert f"k={MAX_K}&offset={MAX_K}" in answered.value.url
        page.locator("#k").select_option("12")
        expect(page.locator(".card")).to_have_count(12)
        expect(page.get_by_role("alert")).to_be_hidden()


def test_a_service_that_gives_very_few_results_is_searched_as_well(browser: Browser, gallery_folder: Path) -> None:
    with serving(gallery_folder, "--max-k", 3) as running, opened(browser, running.url) as page:
        page.locator(".card").first.click()
        expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
        expect(page.locator(".card")).to_have_count(3)
        expect(page.locator("#k option")).to_have_text(["3"])
        page.goto(f"{running.url}/docs")
        expect(page.locator("#example")).to_contain_text("/search?k=3")
