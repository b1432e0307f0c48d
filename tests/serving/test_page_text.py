"""Words as a query, on the page in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.serving.browser import complaints
from tests.serving.running import Running

pytestmark = pytest.mark.browser

DESKTOP, PHONE = {"width": 1200, "height": 820}, {"width": 390, "height": 800}


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def page(browser: Browser, text_server: Running, request: pytest.FixtureRequest) -> Iterator[Page]:
    with browser.new_context(viewport=request.param) as context:
        opened = context.new_page()
        errors: list[str] = []
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto(text_server.url)
        expect(opened.locator(".card")).to_have_count(24, timeout=30_000)  # the first page of a cold browser
        yield opened
        assert errors == []


def found(page: Page) -> list[int]:
    expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")
    return [int(card.get_attribute("data-id") or 0) for card in page.locator(".card").all()]


def nearest(server: Running, text: str) -> list[int]:
    answer = httpx.post(f"{server.url}/search", json={"text": text, "k": 24})
    return [hit["id"] for hit in answer.json()["results"]]


def test_words_find_images_and_stay_in_the_address(page: Page, text_server: Running) -> None:
    field = page.get_by_role("searchbox", name="Or describe what you are looking for")
    field.fill("a red chair")
    field.press("Enter")
    assert found(page) == nearest(text_server, "a red chair")
    expect(page.locator("#query-name")).to_have_text("a red chair")
    expect(page.locator("#query .frame")).to_be_hidden()
    expect(page.locator("#note")).not_to_contain_text("not calibrated")
    assert page.url.endswith("?text=a+red+chair")
    field.fill("blue checks <b>")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#query-name")).to_have_text("blue checks <b>")
    assert found(page) == nearest(text_server, "blue checks <b>")
    page.go_back()
    expect(page.locator("#query-name")).to_have_text("a red chair")
    expect(field).to_have_value("a red chair")
    page.reload()
    assert found(page) == nearest(text_server, "a red chair")
    page.locator(".card").first.click()
    expect(page.locator("#query-name")).not_to_have_text("a red chair")
    expect(page.locator("#query .frame")).to_be_visible()
    expect(field).to_have_value("")


def test_a_text_too_long_is_said_and_an_empty_one_not_sent(page: Page) -> None:
    field = page.get_by_role("searchbox", name="Or describe what you are looking for")
    field.fill("   ")
    field.press("Enter")
    expect(page.get_by_role("heading", name="From the gallery")).to_be_visible()
    field.fill("rain " * 30)
    field.press("Enter")
    expect(page.locator("#note")).to_contain_text(re.compile("its end was left out"))


def test_it_is_no_obstacle_to_anybody(page: Page) -> None:
    page.get_by_role("searchbox", name="Or describe what you are looking for").fill("a red chair")
    page.keyboard.press("Enter")
    found(page)
    assert complaints(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_where_the_model_reads_no_texts_there_is_no_field(browser: Browser, server: Running) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{server.url}/?text=a+red+chair")
        expect(page.get_by_role("alert")).to_contain_text("no text tower")
        expect(page.locator("#facts")).to_contain_text("toy-pool")
        expect(page.locator("#text-form")).to_be_hidden()
