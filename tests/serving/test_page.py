"""The page in a real Chromium."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from serving.openapi import document
from tests.serving import toys
from tests.serving.running import Running

pytestmark = pytest.mark.browser

DESKTOP, PHONE = (1200, 820), (390, 800)


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    """The page, opened; the test fails if anything is asked of another host, or goes wrong in its script."""
    context = browser.new_context(viewport={"width": DESKTOP[0], "height": DESKTOP[1]}, color_scheme="light")
    opened = context.new_page()
    errors: list[str] = []
    requested: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: requested.append(request.url))
    opened.goto(server.url)
    expect(opened.locator(".card")).to_have_count(24)
    yield opened
    assert errors == []
    assert [url for url in requested if not url.startswith((server.url, "blob:", "data:"))] == []
    context.close()


def drop(page: Page, data: bytes, name: str = "dropped.png", kind: str = "image/png") -> None:
    """What a browser does when a file is dropped on the page."""
    transfer = page.evaluate_handle(
        """([data, name, kind]) => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            transfer.items.add(new File([bytes], name, { type: kind }));
            return transfer;
        }""",
        [base64.b64encode(data).decode(), name, kind],
    )
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event("body", event, {"dataTransfer": transfer})


def labels(page: Page) -> list[str]:
    expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")
    return page.locator(".card .label").all_inner_texts()


def test_a_dropped_image_finds_its_neighbours(page: Page, tmp_path: Path) -> None:
    for kind, label in enumerate(toys.CLASSES):
        drop(page, toys.query(kind), f"query {kind}.png")
        expect(page.locator("#query-name")).to_have_text(f"query {kind}.png")
        expect(page.locator(".card .label").first).to_have_text(label)
        assert labels(page)[:3] == [label] * 3
    expect(page.locator("#overlay")).to_be_hidden()
    numbers = [float(text) for text in page.locator(".likeness").all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True)
    assert page.locator("#query-image").evaluate("image => image.complete && image.naturalWidth") == 28
    assert page.locator("#query-image").evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    page.screenshot(path=tmp_path / "desktop.png")


def test_a_click_on_a_result_searches_from_it(page: Page) -> None:
    drop(page, toys.query(2))
    assert labels(page)[0] == "green disc"
    card = page.locator(".card").filter(has_text="blue checks").first
    clicked = card.get_attribute("data-id")
    card.click()
    expect(page).to_have_url(f"{page.url.partition('?')[0]}?id={clicked}")
    expect(page.locator("#query-name")).to_have_text("blue checks")
    expect(page.locator(".card .label").first).to_have_text("blue checks")
    ids = page.locator(".card").evaluate_all("cards => cards.map((card) => card.dataset.id)")
    assert len(ids) == 23
    assert clicked not in ids

    page.go_back()
    expect(page.locator("#query-name")).to_have_text("dropped.png")
    expect(page.locator(".card .label").first).to_have_text("green disc")
    page.go_back()
    expect(page.get_by_role("heading", name="From the gallery")).to_be_visible()
    page.go_forward()
    page.go_forward()
    page.reload()
    expect(page.locator("#query-name")).to_have_text("blue checks")
    page.get_by_role("button", name="Start over").click()
    expect(page.get_by_role("heading", name="From the gallery")).to_be_visible()


def test_an_image_can_be_picked_or_pasted(page: Page, tmp_path: Path) -> None:
    (tmp_path / "picked.png").write_bytes(toys.query(0))
    page.set_input_files("#file", tmp_path / "picked.png")
    assert labels(page)[:3] == ["red stripes"] * 3
    page.evaluate(
        """(data) => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            transfer.items.add(new File([bytes], "image.png", { type: "image/png" }));
            dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
        }""",
        base64.b64encode(toys.query(1)).decode(),
    )
    expect(page.locator(".card .label").first).to_have_text("blue checks")
    page.locator("#k").select_option("12")
    expect(page.locator(".card")).to_have_count(12)


def test_refusals_are_said_clearly_and_the_next_search_works(page: Page, tmp_path: Path) -> None:
    alert = page.get_by_role("alert")
    drop(page, b"this is no image", "notes.png")
    expect(alert).to_contain_text("in none of the formats that are read")
    expect(page.locator(".query .unshown")).to_have_count(1)
    expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
    expect(page.locator(".card")).to_have_count(0)
    drop(page, toys.query(0)[:150], "cut.png")
    expect(alert).to_contain_text("cannot be decoded")
    drop(page, b"", "nothing.png")
    expect(alert).to_contain_text("nothing.png is empty")
    page.screenshot(path=tmp_path / "refused.png")
    drop(page, toys.query(0))
    expect(alert).to_be_hidden()
    assert labels(page)[:3] == ["red stripes"] * 3


def test_labels_are_never_run_as_html(page: Page) -> None:
    drop(page, toys.query(3))
    assert labels(page)[0] == toys.HTML_LABEL
    page.locator(".card").first.click()
    expect(page.locator("#query-name")).to_have_text(toys.HTML_LABEL)
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("img[src='x']").count() == 0


def test_the_keyboard_is_enough(page: Page) -> None:
    # The first item comes first: of a random one the nearest may be its copy, at similarity 1.
    page.route("**/items?sample=*", lambda route: route.continue_(url=route.request.url.replace("sample=", "limit=")))
    page.reload()
    expect(page.locator(".card")).to_have_count(24)
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "results-title"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    focused = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert focused.endswith("Search from this image")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
    # The heading comes before the cards do on a slow machine.
    expect(page.locator(".card").first).to_have_attribute("aria-label", re.compile(r"similarity 0\."))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(browser: Browser, server: Running, tmp_path: Path, scheme: str) -> None:
    page = browser.new_page(
        viewport={"width": PHONE[0], "height": PHONE[1]},
        color_scheme=scheme,  # type: ignore[arg-type]
        has_touch=True,
    )
    page.goto(server.url)
    page.locator(".card").first.tap()
    expect(page.locator("#query")).to_be_visible()
    labels(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE[0]
    page.screenshot(path=tmp_path / f"phone-{scheme}.png")
    page.goto(f"{server.url}/docs")
    expect(page.locator(".operation")).to_have_count(sum(map(len, document(1000)["paths"].values())))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE[0]
    page.close()


def test_a_search_that_is_overtaken_says_nothing(page: Page) -> None:
    # Answers begin, and never end until they are broken off.
    page.evaluate(
        """() => {
            const real = window.fetch;
            window.fetch = (path, options) => path.startsWith("./search") ? new Response(new ReadableStream({
                start: (body) => options.signal.addEventListener("abort", () => body.error(options.signal.reason)),
            })) : real(path, options);
        }"""
    )
    drop(page, toys.query(0))
    drop(page, toys.query(1), "second.png")
    expect(page.locator("#query-name")).to_have_text("second.png")
    page.evaluate("() => new Promise((done) => setTimeout(done, 50))")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#found")).to_have_attribute("aria-busy", "true")
    expect(page.get_by_role("heading", name="Nothing found")).to_have_count(0)
    page.get_by_role("button", name="Start over").click()
    expect(page.locator(".card")).to_have_count(24)


def test_another_sample_clears_the_complaint(page: Page) -> None:
    page.dispatch_event("body", "drop", {"dataTransfer": page.evaluate_handle("() => new DataTransfer()")})
    expect(page.get_by_role("alert")).to_contain_text("That is not a file")
    page.locator("#shuffle").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".card")).to_have_count(24)


def test_the_page_says_when_the_server_is_gone(page: Page) -> None:
    page.route("**/search*", lambda route: route.abort())
    drop(page, toys.query(0))
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
