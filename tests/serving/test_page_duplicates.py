"""The page's view of copies, and its warning when a copy is added."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.serving.browser import bearer, card, complaints, open_panel, opened
from tests.serving.clients import KEY
from tests.serving.duplicates.toys import picture, service_of_copies
from tests.serving.running import Running

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with service_of_copies(tmp_path_factory.mktemp("copies")) as running:
        yield running


@pytest.fixture
def page(browser: Browser, service: Running) -> Iterator[Page]:
    with opened(browser, service.url) as page:
        yield page


def enlarge(page: Page, item: int) -> None:
    card(page, item).locator("xpath=..").locator(".enlarge").click()


def shown(page: Page) -> set[int]:
    """Return the ids of the cards, after the request has ended."""
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")
    return set(page.locator(".card").evaluate_all("cards => cards.map((card) => Number(card.dataset.id))"))


def test_copies_of_a_picture_are_shown_with_their_evidence_and_key(page: Page, service: Running) -> None:
    httpx.patch(f"{service.url}/items/3", json={"key": "cam-1/3"}, headers=bearer(KEY)).raise_for_status()
    expect(page.locator(".card")).to_have_count(5)
    enlarge(page, 1)
    page.get_by_role("button", name="Copies of this picture").click()
    expect(page.locator("#results-title")).to_have_text("Copies of item 1")
    expect(page.locator("#note")).to_have_text("2 copies")
    expect(page.locator("#results-title")).to_be_focused()
    assert shown(page) == {2, 3}
    expect(card(page, 2)).to_contain_text("320 × 240; mirrored; cosine")
    expect(card(page, 3)).to_contain_text("270 × 200; in part; cosine")
    expect(card(page, 3)).to_contain_text("cam-1/3")
    expect(page.locator(".own-key")).to_have_count(1)
    enlarge(page, 3)
    expect(page.locator("#viewer-facts")).to_contain_text("bits differ")
    expect(page.locator("#viewer-facts")).to_contain_text("Keycam-1/3")
    page.get_by_role("button", name="Copies of this picture").click()
    expect(page.locator("#results-title")).to_have_text("Copies of item 3")
    assert complaints(page) == []


def test_a_picture_without_copies_says_so(page: Page) -> None:
    expect(page.locator(".card")).to_have_count(5)
    enlarge(page, 5)
    page.get_by_role("button", name="Copies of this picture").click()
    expect(page.locator("#nothing")).to_be_visible()
    expect(page.locator(".card")).to_have_count(0)


def test_adding_a_copy_warns_and_leads_to_the_copies(page: Page, tmp_path: Path) -> None:
    page.evaluate(
        """(key) => {
            sessionStorage.setItem("zoo-write-key", key);
            dispatchEvent(new CustomEvent("zoo-keys"));
        }""",
        KEY,
    )
    picture(7, (320, 240)).resize((160, 120)).save(tmp_path / "small.png")
    picture(30).save(tmp_path / "new.png")
    open_panel(page, "Add")
    page.set_input_files("#add-files", [tmp_path / "small.png", tmp_path / "new.png"])
    page.locator("#add-submit").click()
    warning = page.locator("#add-near li")
    expect(warning).to_have_count(1)
    expect(warning).to_contain_text("small.png")
    warning.get_by_role("button", name="Show the copies").click()
    expect(page.locator("#results-title")).to_contain_text("Copies of item")
    assert {1, 2} <= shown(page) <= {1, 2, 3}
