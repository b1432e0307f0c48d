"""Photographs of phones as queries: to the service, and from clients and the page, which shrink large ones."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from serving.client import AsyncClient, Client
from tests.serving.browser import chromium, opened
from tests.serving.running import Running, serving


def photograph(pictures: Path, size: tuple[int, int], **options: object) -> bytes:
    """Return a picture of the gallery, enlarged, as a JPEG."""
    image = Image.open(sorted(pictures.rglob("*.png"))[0]).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90, **options)
    return out.getvalue()


@pytest.fixture(scope="module")
def strict(gallery_folder: Path) -> Iterator[Running]:
    """A service that takes small images alone."""
    with serving(gallery_folder, "--max-pixels", 3_000_000, "--max-bytes", 1_000_000) as running:
        yield running


@pytest.fixture(scope="module")
def usual(gallery_folder: Path) -> Iterator[Running]:
    with serving(gallery_folder) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.mark.slow
def test_the_service_takes_what_phones_write(usual: Running, pictures: Path, tmp_path: Path) -> None:
    video = b"\0\0\0\x18ftypmp42" + np.random.default_rng(0).bytes(3_000_000) + b"\xff\xda" * 200
    files = {
        "iPhone": photograph(pictures, (5712, 4284)),
        "panorama": photograph(pictures, (16_382, 1000), progressive=True),
        "motion": photograph(pictures, (2000, 1500)) + video,
        "no end": photograph(pictures, (400, 300))[:-2],
        "108 megapixels": photograph(pictures, (12_000, 9000)),
    }
    with Client(usual.url) as client:
        for name, data in files.items():
            answer = httpx.post(f"{usual.url}/search?k=1", content=data, timeout=60).json()
            assert answer["results"][0]["similarity"] > 0.5, (name, answer)
            (tmp_path / "a.jpg").write_bytes(data)
            assert client.search(tmp_path / "a.jpg", k=1)[0].id == answer["results"][0]["id"], name


@pytest.mark.slow
def test_a_refusal_names_the_setting_and_clients_send_a_smaller_picture(
    strict: Running, pictures: Path, tmp_path: Path
) -> None:
    large = photograph(pictures, (4000, 3000))
    answer = httpx.post(f"{strict.url}/search", content=large)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "image_too_large")
    assert "--max-pixels" in answer.json()["error"]["message"]
    answer = httpx.post(f"{strict.url}/search", content=large + bytes(1_000_000))
    assert "--max-bytes" in answer.json()["error"]["message"]
    (tmp_path / "large.jpg").write_bytes(large)
    with Client(strict.url) as client:
        hits = client.search(tmp_path / "large.jpg", k=3)
        assert [hit.id for hit in client.search(large, k=3)] == [hit.id for hit in hits]

    async def awaited() -> list[int]:
        async with AsyncClient(strict.url) as client:
            return [hit.id for hit in await client.search(large, k=3)]

    assert asyncio.run(awaited()) == [hit.id for hit in hits]


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_sends_a_smaller_picture(strict: Running, browser: Browser, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "large.jpg").write_bytes(photograph(pictures, (4000, 3000)) + bytes(2_000_000))
    with opened(browser, strict.url) as page:
        page.set_input_files("#file", tmp_path / "large.jpg")
        expect(page.locator("#results-title")).to_have_text("Nearest")
        expect(page.locator("#note")).to_contain_text("best first")
        expect(page.locator("#alert")).to_be_hidden()
