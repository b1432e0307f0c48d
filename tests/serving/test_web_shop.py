"""The script of docs/web-shop.md, run by Chromium in a page of another origin."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.serving import toys
from tests.serving.running import ROOT, Running, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

READER, WRITER = "read-key-of-the-shop", "write-key-of-the-shop"
CODE = re.search(r"```js\n(.*?)```", (ROOT / "docs/web-shop.md").read_text("utf-8"), re.DOTALL)


class Shop(BaseHTTPRequestHandler):
    """Pages of the shop: the script of the guide, and an empty page for everything else."""

    script = ""

    def do_GET(self) -> None:
        is_script = self.path == "/shop.js"
        self.send_response(200)
        self.send_header("content-type", "text/javascript" if is_script else "text/html")
        self.end_headers()
        self.wfile.write(self.script.encode() if is_script else b"<!doctype html><title>shop</title><body></body>")

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    """The origin of the shop, on another port and so another origin than the service."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def service(gallery_folder: Path, shop: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with keys that the shop's pages may ask; its items 1 and 2 are products."""
    copy = Path(shutil.copytree(gallery_folder, tmp_path_factory.mktemp("shop") / "gallery"))
    keys = {"ZOO_SERVE_READ_KEYS": READER, "ZOO_SERVE_WRITE_KEYS": WRITER}
    with serving(copy, "--origins", shop, environment=keys) as running:
        for number, title in ((1, "red chair"), (2, "red table")):
            change = {"metadata": {"title": title, "price": 10 * number, "cost": 1}, "key": f"sku/{number}"}
            answer = httpx.patch(f"{running.url}/items/{number}", json=change, headers={"x-api-key": WRITER})
            answer.raise_for_status()
        yield running


@pytest.fixture
def page(browser: Browser, shop: str, service: Running) -> Iterator[Page]:
    """A page of the shop."""
    assert CODE
    Shop.script = CODE[1].replace("https://images.example.org", service.url).replace("a-read-key-of-the-shop", READER)
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{shop}/chairs")
    yield page
    context.close()


def test_products_are_found_with_their_prices_and_pictures(page: Page, service: Running) -> None:
    found = page.evaluate(
        """async (bytes) => {
            const { similar, alike, thumbnail } = await import("/shop.js");
            const picture = new File([new Uint8Array(bytes)], "photo.png", { type: "image/png" });
            const [first, second] = [await similar(picture, 24), await alike("sku/1", 23)];
            const image = new Image();
            image.src = await thumbnail(first[0].id);
            await image.decode();
            return { first, second, width: image.naturalWidth };
        }""",
        list(toys.query(0)),
    )
    prices = {hit["key"]: hit["metadata"] for hit in found["first"] if hit["key"]}
    assert prices == {"sku/1": {"title": "red chair", "price": 10}, "sku/2": {"title": "red table", "price": 20}}
    headers = {"x-api-key": READER}
    expected = httpx.post(f"{service.url}/search?k=24", files={"image": toys.query(0)}, headers=headers).json()[
        "results"
    ]
    assert [hit["id"] for hit in found["first"]] == [hit["id"] for hit in expected]
    assert [hit["key"] for hit in found["second"]].count("sku/1") == 0
    assert next(hit for hit in found["second"] if hit["key"] == "sku/2")["metadata"]["price"] == 20
    assert found["width"] > 0


def test_a_refusal_reaches_the_page_with_its_reason(page: Page) -> None:
    told = page.evaluate(
        """async () => {
            const { similar } = await import("/shop.js");
            return similar(new File(["no picture"], "a.png")).catch((error) => error.message);
        }"""
    )
    assert "image" in told
    assert "fetch" not in told.lower()


SHOWS = """(address) => new Promise((resolve) => {
    const image = new Image();
    image.onload = () => resolve(true);
    image.onerror = () => resolve(false);
    image.src = address;
})"""
ASKS = """(address) => fetch(address, { method: "POST" }).then((answer) => answer.status, () => "refused")"""


def test_only_allowed_pages_search_and_show_thumbnails(browser: Browser, gallery_folder: Path, shop: str) -> None:
    """Without keys, an <img> shows a thumbnail, and one line of a script searches."""
    for origins, allowed in ((["--origins", shop], True), (["--origins", "http://127.0.0.1:1"], False), ([], False)):
        with serving(gallery_folder, *origins) as running:
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{shop}/chairs")
            assert page.evaluate(SHOWS, f"{running.url}/items/1/thumbnail") is allowed, origins
            assert page.evaluate(ASKS, f"{running.url}/search?id=1") == (200 if allowed else "refused"), origins
            context.close()
