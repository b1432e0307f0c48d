"""A real Chromium: Debian's where it is installed, else the one that Playwright has downloaded.

Its build without windows comes first: it does the same in two thirds of the time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

expect.set_options(timeout=10_000)  # a busy machine is no reason to fail

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; without one the test is skipped, and the run says so."""
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
    browser: Browser, url: str, size: tuple[int, int] = (1200, 820), scheme: str = "light", touch: bool = False
) -> Iterator[Page]:
    """The page, with its cards shown; the test fails if another host is asked, or something goes wrong in a script."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,  # type: ignore[arg-type]
        has_touch=touch,
        is_mobile=touch,
    )
    page = context.new_page()
    errors: list[str] = []
    requested: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(url)
    expect(page.locator(".card, dialog[open]").first).to_be_visible()
    yield page
    context.close()
    assert errors == []
    assert [one for one in requested if not one.startswith((url, "blob:", "data:"))] == []


def complaints(page: Page) -> list[str]:
    """What axe-core has against the page as it is now: the rule and the elements."""
    page.wait_for_timeout(250)  # colours that are still in transition have other contrasts
    violations = Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in violations]
