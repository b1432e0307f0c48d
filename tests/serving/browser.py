"""A real Chromium: the installed one, otherwise the one that Playwright downloaded.

The build without windows comes first, because it needs two thirds of the time.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

expect.set_options(timeout=10_000)  # for busy machines

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DESKTOP, PHONE = (1280, 800), (390, 844)
LOOKS = [(DESKTOP, "light"), (PHONE, "dark")]
"""Sizes and colour schemes in which axe checks the page."""

_AXE = Axe()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; skip the test with a clear reason if none is installed."""
    installed = next((path for name in NAMES if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        if not installed and not Path(own).is_file():
            pytest.skip(
                "NO BROWSER FOUND, the page is not tested. Install chromium or run: playwright install chromium"
            )
        with playwright.chromium.launch(executable_path=installed, args=OPTIONS) as browser:
            yield browser


@contextmanager
def opened(
    browser: Browser, url: str, size: tuple[int, int] = DESKTOP, scheme: str = "light", touch: bool = False
) -> Iterator[Page]:
    """Open the page and wait for its cards; fail after a request to another host or an error in a script."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",  # colours in transition have other contrasts
        has_touch=touch,
        is_mobile=touch,
    )
    page = context.new_page()
    errors: list[str] = []
    requested: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(url)
    expect(page.locator(".card, dialog[open], .operation").first).to_be_visible()
    yield page
    context.close()
    assert errors == []
    origin = "/".join(url.split("/")[:3])
    assert [one for one in requested if not one.startswith((f"{origin}/", "blob:", "data:"))] == []


def complaints(page: Page) -> list[str]:
    """Return the rules of axe-core that the page violates, with the elements, and whether it is too wide."""
    violations = _AXE.run(page).response["violations"]
    found = [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in violations]
    wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
    return found + ([f"{wide} pixels too wide"] if wide > 0 else [])


def give(page: Page, key: str) -> None:
    """Type a key into the dialog that asks for one."""
    expect(page.locator("#key-dialog")).to_be_visible()
    page.locator("#key").fill(key)
    page.keyboard.press("Enter")


def drop(page: Page, data: bytes, name: str = "dropped.png", kind: str = "image/png") -> None:
    """Drop a file on the page."""
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


def found(page: Page) -> list[int]:
    """Return the ids of the results, after the search has ended."""
    expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")
    return [int(one) for one in page.locator(".card").evaluate_all("cards => cards.map((card) => card.dataset.id)")]


def refusal(method: str, url: str, **request: Any) -> str:
    """Return the message of the error that the service answers to a request."""
    return str(httpx.request(method, url, **request).json()["error"]["message"])


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def labels(page: Page) -> list[str]:
    """Return the labels of the results, after the search has ended."""
    found(page)
    return page.locator(".card .label").all_inner_texts()


def card(page: Page, item: int) -> Locator:
    return page.locator(f'.card[data-id="{item}"]')


def open_panel(page: Page, name: str) -> None:
    """Open the panel Map, Model or Add, and wait until it is loaded."""
    page.get_by_role("button", name=name, exact=True).click()
    expect(page.locator(f"#{name.lower()}-title")).to_be_focused()
    expect(page.locator(f"#{name.lower()} [role=status]").first).not_to_have_text(re.compile("…$"))
