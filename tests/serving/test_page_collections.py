"""The page of a service with several collections: each by its own path and key, and the way to the others."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from serving.configuration import READ_KEYS
from serving.gallery import Gallery
from tests.serving.browser import complaints, opened
from tests.serving.running import Running, serving

pytestmark = pytest.mark.browser

BIRDS, CARS = "birds-may-be-read", "cars-may-be-read"


@pytest.fixture(scope="module")
def service(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("collections")
    for name in ("birds", "cars", "art"):
        shutil.copytree(gallery_folder, root / name)
    with Gallery.open(root / "art") as gallery:
        gallery.remove([1, 2, 3, 4])
    keys = {f"{READ_KEYS}_BIRDS": BIRDS, f"{READ_KEYS}_CARS": CARS}
    with serving([f"{name}={root / name}" for name in ("birds", "cars", "art")], environment=keys) as running:
        yield running


def give(page: Page, key: str) -> None:
    expect(page.locator("#key-dialog")).to_be_visible()
    page.locator("#key").fill(key)
    page.keyboard.press("Enter")


@pytest.mark.parametrize("size", [(1200, 820), (390, 800)])
def test_from_one_collection_to_the_others(browser: Browser, service: Running, size: tuple[int, int]) -> None:
    with opened(browser, service.url, size) as page:
        expect(page).to_have_url(f"{service.url}/collections/birds/")
        give(page, BIRDS)
        expect(page.locator(".card")).to_have_count(24)
        expect(page).to_have_title("birds: image search")
        shown = page.locator("#collections a")
        expect(shown).to_have_text(["birds 24", "art 20"])  # cars is none of this key's business
        expect(shown.first).to_have_attribute("aria-current", "page")
        assert complaints(page) == []
        page.locator(".card").first.click()
        expect(page.locator("#query")).to_be_visible()
        expect(page).to_have_url(re.compile(r"/collections/birds/\?id=\d+$"))
        loaded = "images => images.every((image) => image.complete && image.naturalWidth > 0)"
        expect(page.locator(".likeness").first).to_be_visible()
        page.wait_for_function(f"() => ({loaded})([...document.querySelectorAll('.card img')].slice(0, 4))")
        shown.nth(1).click()
        expect(page).to_have_url(f"{service.url}/collections/art/")
        expect(page.locator(".card")).to_have_count(20)
        expect(page.locator("#collections a")).to_have_text(["art 20"])
        page.get_by_role("link", name="API").click()
        expect(page.locator("#operations .path").first).to_have_text("/collections/art/search")
        expect(page.locator("#example")).to_contain_text("/collections/art/search?k=5")
        page.goto(f"{service.url}/collections/cars/")
        give(page, BIRDS)
        expect(page.locator("#key-reason")).to_contain_text("This is no read key")
        give(page, CARS)
        expect(page.locator(".card")).to_have_count(24)
        page.goto(f"{service.url}/collections/birds/")
        expect(page.locator(".card")).to_have_count(24)  # its key is still held


def test_the_descriptions_at_the_root_are_of_all(browser: Browser, service: Running) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{service.url}/docs")
    expect(page.locator("#operations .path").first).to_have_text("/collections/{collection}/search")
    expect(page.locator("#example")).to_contain_text("/collections/NAME/search?k=5")
    context.close()
