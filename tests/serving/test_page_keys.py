"""The page of a service with keys and a calibrated gallery: reading, adding, deleting, measuring, refusals."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from serving.configuration import READ_KEYS, WRITE_KEYS
from serving.gallery import Gallery
from serving.gallery.search import calibrate_gallery
from tests.serving.browser import complaints, opened
from tests.serving.running import Running, serving

pytestmark = pytest.mark.browser

READER, WRITER = 'read "key"; of the tests', "write-key-of-the-tests"
"""A key may hold what a cookie may not."""


@pytest.fixture(scope="module")
def folder(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("with keys") / "gallery"
    shutil.copytree(gallery_folder, copy)
    with Gallery.open(copy) as gallery:
        calibrate_gallery(gallery)
    return copy


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with serving(folder, environment={READ_KEYS: READER, WRITE_KEYS: WRITER}) as running:
        yield running


@pytest.fixture
def page(browser: Browser, service: Running) -> Iterator[Page]:
    """The page, with the read key given."""
    with opened(browser, service.url) as page:
        give(page, READER)
        expect(page.locator(".card").first).to_be_visible()
        yield page


def give(page: Page, key: str) -> None:
    expect(page.locator("#key-dialog")).to_be_visible()
    page.locator("#key").fill(key)
    page.keyboard.press("Enter")


def noise(folder: Path, seed: int) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(pixels).save(folder / f"noise {seed}.png")
    return folder / f"noise {seed}.png"


def test_the_read_key_is_asked_for_and_kept_in_the_tab(browser: Browser, service: Running) -> None:
    with opened(browser, service.url) as page:
        expect(page.locator("#key-title")).to_have_text("This gallery needs a read key")
        assert complaints(page) == []
        give(page, "not the key of this service")
        expect(page.locator("#key-reason")).to_contain_text("This is no read key of this service")
        give(page, READER)
        expect(page.locator(".card")).to_have_count(24)
        loaded = "images => images.every((image) => image.complete && image.naturalWidth > 0)"
        page.locator(".card img").last.scroll_into_view_if_needed()
        page.wait_for_function(f"() => ({loaded})([...document.querySelectorAll('.card img')].slice(0, 6))")
        assert page.locator("#key").input_value() == ""
        page.reload()
        expect(page.locator(".card")).to_have_count(24)
        expect(page.locator("#key-dialog")).to_be_hidden()
        cookie = next(one for one in page.context.cookies() if one["name"] == "zoo-key")
        assert (cookie["sameSite"], cookie["path"]) == ("Strict", "/")


def test_without_the_key_the_page_says_why_it_is_empty(browser: Browser, service: Running) -> None:
    with opened(browser, service.url) as page:
        expect(page.locator("#key-dialog")).to_be_visible()
        while page.locator("#key-dialog").is_visible():
            page.keyboard.press("Escape")
            page.wait_for_timeout(100)
        expect(page.get_by_role("alert")).to_contain_text("A key is needed")
        expect(page.locator(".card")).to_have_count(0)


def test_results_say_how_likely_they_are_of_the_class(page: Page) -> None:
    page.locator(".card").first.click()
    expect(page.locator(".chance")).to_have_count(23)
    expect(page.locator(".chance").first).to_have_text(re.compile(r"^(over )?\d+ % same class$"))
    expect(page.locator(".card").first).to_have_attribute("aria-label", re.compile("likely the same class"))
    expect(page.locator("#note")).not_to_contain_text("not calibrated")
    page.locator("#filters summary").click()
    page.locator("#least").fill("50")
    with page.expect_request(re.compile(r"min_p=0\.5(&|$)")):
        page.locator("#least").blur()
    expect(page.locator(".card")).not_to_have_count(23)


def test_images_are_added_and_deleted(page: Page, service: Running, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    expect(page.locator(".remove").first).to_be_hidden()
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("button", name="Enter the write key").click()
    give(page, "no write key of this service")
    label = '<b onclick="hacked = 1">noise</b>'
    page.locator("#add-files").set_input_files([noise(tmp_path, 1), noise(tmp_path, 2), tmp_path / "broken.png"])
    page.locator("#add-label").fill(label)
    page.locator("#add-submit").click()
    expect(page.locator("#key-reason")).to_contain_text("This is no write key")
    give(page, WRITER)
    expect(page.locator("#add-note")).to_have_text("2 images added, 1 refused")
    expect(page.locator("#add-refused li")).to_contain_text(["broken.png"])
    expect(page.locator(".card .label")).to_have_text([label.split("/")[-1]] * 2)
    expect(page.locator("#facts")).to_contain_text("26 images")
    assert complaints(page) == []

    page.locator(".remove").first.click()
    expect(page.locator("#confirm-question")).to_contain_text(label)
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#confirm")).to_be_hidden()
    expect(page.locator(".card")).to_have_count(2)
    for left in (1, 0):
        page.locator(".remove").first.click()
        page.locator("#confirm").get_by_role("button", name="Delete").click()
        expect(page.locator(".card")).to_have_count(left)
    expect(page.locator("#facts")).to_contain_text("24 images")
    page.get_by_role("button", name="Forget the key").click()
    expect(page.locator("#add-form")).to_be_hidden()


def test_the_model_is_shown_and_measured(page: Page) -> None:
    page.get_by_role("button", name="Model", exact=True).click()
    expect(page.locator("#model-facts")).to_contain_text("toy-pool")
    expect(page.locator("#calibration svg .line")).to_be_visible()
    page.get_by_role("button", name="Measure now").click()
    give(page, WRITER)
    expect(page.locator("#model-note")).to_contain_text("Measured")
    expect(page.locator("#steps-body tr")).to_have_count(2)
    shown = page.locator("#steps-body tr").last.locator("td").first.inner_text()
    known = page.evaluate(
        """async (key) => (await (await fetch("/evaluate", { headers: { Authorization: `Bearer ${key}` } })).json())
            .steps[1].metrics.recall_at_1""",
        WRITER,
    )
    assert shown.startswith(f"{known:.3f}")
    drawn = page.locator("#calibration polyline").get_attribute("points") or ""
    heights = [float(point.split(",")[1]) for point in drawn.split()]
    assert heights == sorted(heights, reverse=True)  # the curve rises, and y grows downwards
    assert complaints(page) == []


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (403, {}, "Not allowed: said by the service"),
        (413, {}, "Too large: said by the service"),
        (415, {}, "Not an image file: said by the service"),
        (422, {}, "Not valid: said by the service"),
        (429, {"Retry-After": "3"}, "Too busy: said by the service. Wait 3 s, then try again."),
        (500, {}, "The service failed: said by the service"),
    ],
)
def test_refusals_are_said(page: Page, status: int, headers: dict[str, str], said: str) -> None:
    def refuse(route: Route) -> None:
        message = "said by the service." + (" Try again in 3 s." if headers else "")
        route.fulfill(status=status, json={"error": {"code": "some", "message": message}}, headers=headers)

    page.route("**/search?*", refuse)
    page.locator(".card").first.click()
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.get_by_role("alert")).not_to_contain_text("Try again in")
    page.unroute("**/search?*")
    page.locator("#k").select_option("48")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".card").first).to_be_visible()


def test_a_service_without_write_keys_says_so(browser: Browser, server: Running, tmp_path: Path) -> None:
    with opened(browser, server.url) as page:
        page.get_by_role("button", name="Add", exact=True).click()
        page.get_by_role("button", name="Enter the write key").click()
        give(page, WRITER)
        page.locator("#add-files").set_input_files(noise(tmp_path, 3))
        page.locator("#add-submit").click()
        expect(page.get_by_role("alert")).to_contain_text("Not allowed: This service does not take changes")
