"""The page with a query of several parts: pictures, texts and items are added, weighted and left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.serving import toys
from tests.serving.browser import DESKTOP, LOOKS, complaints, found, opened
from tests.serving.running import Running, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def text_server(text_gallery: Path) -> Iterator[Running]:
    with serving(text_gallery) as running:
        yield running


def nearest(server: Running, query: list[dict[str, Any]], image: bytes | None = None) -> list[int]:
    values: dict[str, Any] = {"query": json.dumps(query), "k": "24"}
    files = None if image is None else {"image": image}
    answer = httpx.post(f"{server.url}/search", data=values, files=files)
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["results"]]


def weights(page: Page) -> list[str]:
    return page.locator("#parts .weight").all_text_contents()


def test_parts_are_added_weighted_and_left_out(browser: Browser, text_server: Running, tmp_path: Path) -> None:
    picture = tmp_path / "query.png"
    picture.write_bytes(toys.query(1))
    with opened(browser, text_server.url) as page:
        expect(page.get_by_text("Add a photo to the search")).to_be_hidden()
        page.locator("#file").set_input_files(picture)
        expect(page.locator("#query-name")).to_have_text("query.png")
        expect(page.locator("#parts")).to_be_hidden()
        page.locator("#text").fill("a red chair")
        page.get_by_role("button", name="Add to the search").click()
        query: list[dict[str, Any]] = [{"image": 0}, {"text": "a red chair"}]
        expect(page.locator("#parts .part")).to_have_count(2)
        assert found(page) == nearest(text_server, query, toys.query(1))

        page.get_by_role("button", name="Less of a red chair").click()
        expect(page.locator("#parts .weight").nth(1)).to_have_text("+0.5")
        page.get_by_role("button", name="Less of a red chair").click()
        expect(page.locator("#parts .weight").nth(1)).to_have_text("−0.5")
        assert page.evaluate("document.activeElement.dataset.part") == "less-1"
        query[1]["weight"] = -0.5
        assert found(page) == nearest(text_server, query, toys.query(1))

        card = page.locator("#grid li").nth(2)
        item = int(card.locator(".card").get_attribute("data-id") or 0)
        card.hover()
        card.get_by_role("button", name="Less like").click()
        expect(page.locator("#parts .part")).to_have_count(3)
        query.append({"id": item, "weight": -1})
        assert found(page) == nearest(text_server, query, toys.query(1))
        assert weights(page) == ["+", "−0.5", "−"]

        page.get_by_role("button", name="Leave out query.png").click()
        expect(page.locator("#parts .part")).to_have_count(2)
        assert found(page) == nearest(text_server, query[1:])
        page.go_back()
        expect(page.locator("#parts .part")).to_have_count(3)
        assert found(page) == nearest(text_server, query, toys.query(1))


def test_a_sum_without_files_stays_in_the_address(browser: Browser, text_server: Running) -> None:
    query = [{"text": "a red chair", "weight": 1}, {"id": 3, "weight": 2}]
    with opened(browser, f"{text_server.url}/?text=a+red+chair") as page:
        page.locator('.card[data-id="3"]').locator("..").hover()
        page.locator('.card[data-id="3"]').locator("..").get_by_role("button", name="More like").click()
        page.locator('[data-part="more-1"]').click()
        expect(page.locator("#parts .weight").nth(1)).to_have_text("+2")
        assert found(page) == nearest(text_server, query)
        address = page.url
    with opened(browser, address) as page:
        assert found(page) == nearest(text_server, query)
        assert weights(page) == ["+", "+2"]
    for wrong in ("?query=%5B%5D", "?query=nonsense", "?query=%7B%7D"):
        with opened(browser, f"{text_server.url}/{wrong}") as page:
            expect(page.get_by_role("heading", name="From the gallery")).to_be_visible()


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_a_sum_is_accessible(browser: Browser, text_server: Running, size: tuple[int, int], scheme: str) -> None:
    address = f'{text_server.url}/?query=[{{"text":"a red chair"}},{{"id":3,"weight":-1}}]'
    with opened(browser, address, size, scheme, touch=size != DESKTOP) as page:
        found(page)
        expect(page.locator("#parts .part")).to_have_count(2)
        assert complaints(page) == []
