"""A real Chromium: Debian's where it is installed, else the one that Playwright has downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=10_000)  # a busy machine is no reason to fail

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
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
