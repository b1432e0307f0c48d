"""The page around a search: filters, crop, map, the description of the API, and the other collections."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, Form, Query, UploadFile
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from pydantic import BaseModel

from serving.gallery import VectorGallery
from tests.serving import toys
from tests.serving.browser import DESKTOP, LOOKS, bearer, complaints, found, give, open_panel, opened, refusal
from tests.serving.running import Running, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with opened(browser, server.url) as page:
        yield page


def pick(page: Page, folder: Path, image: Image.Image) -> None:
    image.save(folder / "picked.png")
    page.set_input_files("#file", folder / "picked.png")
    found(page)


def halves(left: int, right: int) -> Image.Image:
    """Draw a picture of one class next to one of another."""
    both = Image.new("RGB", (160, 80))
    for place, kind in enumerate((left, right)):
        with Image.open(BytesIO(toys.query(kind))) as one:
            both.paste(one.resize((80, 80)), (80 * place, 0))
    return both


def test_results_are_filtered_by_labels(page: Page) -> None:
    page.locator(".card").first.click()
    page.locator("#filters summary").click()
    expect(page.locator(".chip")).to_have_count(len(toys.CLASSES))
    expect(page.locator(".chip", has_text="green disc")).to_have_text("green disc 6")
    page.locator(".chip", has_text="green disc").click()
    expect(page.locator(".card .label", has_not_text="green disc")).to_have_count(0)
    page.locator("#label").fill("Blue Checks")
    page.locator("#label").press("Enter")
    expect(page.locator(".card .label", has_text="blue checks")).not_to_have_count(0)
    shown = set(page.locator(".card .label").all_inner_texts())
    assert shown == {"green disc", "blue checks"}
    expect(page.locator(".chip", has_text="blue checks")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Start over").click()  # the gallery is filtered as well
    expect(page.locator("#note")).to_have_text("12 images of 2 labels")
    page.get_by_role("button", name="Clear all").click()
    expect(page.locator(".card")).to_have_count(24)


def test_less_similar_results_are_left_out_and_more_are_fetched(page: Page, tmp_path: Path) -> None:
    page.locator("#k").select_option("12", force=True)
    with Image.open(BytesIO(toys.query(2))) as image:
        pick(page, tmp_path, image)
    expect(page.locator("#note")).to_contain_text("not calibrated")
    expect(page.locator(".card")).to_have_count(12)
    expect(page.locator(".chance")).to_have_count(0)
    page.get_by_role("button", name="More results").click()
    expect(page.locator(".card")).to_have_count(24)
    assert len(set(found(page))) == 24
    expect(page.locator(".card").nth(12)).to_be_focused()
    page.locator("#filters summary").click()
    page.locator("#least").fill("0.7")
    page.locator("#least").blur()
    expect(page.locator(".card")).to_have_count(6)
    expect(page.get_by_role("button", name="More results")).to_be_hidden()
    page.locator("#least").fill("1")
    page.locator("#least").blur()
    expect(page.locator("#nothing")).to_contain_text("lower the least similarity")
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.locator(".card")).to_have_count(12)
    expect(page.locator("#nothing")).to_be_hidden()


def test_the_page_shows_labels_in_words(page: Page) -> None:
    shown = page.evaluate(
        """async (labels) => {
            const { words } = await import("/page/dom.js");
            return labels.map(words);
        }""",
        ["016.Painted_Bunting", "Early_Aramaic/character01", "3D_printers", "1908", "12.5", "__", "", None],
    )
    expected = ["Painted Bunting", "Early Aramaic / character01", "3D printers", "1908", "12.5", "__", "no label"]
    assert shown == [*expected, "no label"]


def test_a_region_is_searched_with(page: Page, tmp_path: Path) -> None:
    pick(page, tmp_path, halves(0, 2))
    page.get_by_role("button", name="Crop").click()
    expect(page.locator("#crop-left")).to_be_focused()
    page.locator("#crop-stage").scroll_into_view_if_needed()
    area = page.locator("#crop-stage").bounding_box()
    assert area
    page.mouse.move(area["x"] + area["width"] * 0.5, area["y"] + 1)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.8, area["y"] + area["height"] * 0.6)
    page.mouse.move(area["x"] + area["width"] - 1, area["y"] + area["height"] - 1)
    page.mouse.up()
    assert float(page.locator("#crop-left").input_value()) == pytest.approx(50, abs=1)
    search = page.get_by_role("button", name="Search with this region")
    for left, right, label in ((None, None, "green disc"), ("0", "50", "red stripes")):  # dragged, then typed
        if left and right:
            page.locator("#crop-left").fill(left)
            page.locator("#crop-right").fill(right)
        search.click()
        region = re.compile(r"Region: (50|49) to \d+ %" if left is None else r"Region: 0 to 50 %")
        expect(page.locator("#crop-note")).to_contain_text(region)
        expect(page.locator(".card .label").first).to_have_text(label)
    expect(page.locator("#crop-note")).to_contain_text("Region: 0 to 50 % across")
    page.locator("#crop-left").fill("100")
    search.click()
    assert not page.locator("#crop-right").evaluate("field => field.checkValidity()")
    page.get_by_role("button", name="Whole image").click()
    expect(page.locator("#crop-note")).to_be_empty()


def test_the_keyboard_moves_on_the_map(page: Page, http: httpx.Client) -> None:
    places = {point["id"]: point for point in http.get("/map").json()["points"]}
    open_panel(page, "Map")
    expect(page.locator("#map-status")).to_contain_text("24 images")
    canvas, tip = page.locator("#map-canvas"), page.locator("#map-tip")
    canvas.focus()
    page.keyboard.press("PageDown")
    expect(tip).to_be_visible()
    names = []
    for _ in toys.CLASSES:  # from label to label in alphabetical order, and back to the first
        names.append(page.locator("#map-label").inner_text())
        page.keyboard.press("PageDown")
    assert sorted(names) == sorted(toys.CLASSES)
    expect(page.locator("#map-label")).to_have_text(names[0])
    page.keyboard.press("PageUp")
    expect(page.locator("#map-label")).to_have_text(names[-1])

    left = min(places.values(), key=lambda point: point["x"])["id"]
    for _ in places:
        page.keyboard.press("ArrowLeft")
    at = int(tip.get_attribute("data-id") or 0)
    page.keyboard.press("ArrowRight")
    expect(tip).not_to_have_attribute("data-id", str(at))
    then = int(tip.get_attribute("data-id") or 0)
    assert places[then]["x"] > places[at]["x"] >= places[left]["x"]
    expect(page.locator("#map-status")).to_contain_text(f"item {then}")
    assert canvas.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    for key in "++-0":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"\?id={then}$"))
    found(page)
    canvas.press("Escape")
    expect(page.locator("#map")).to_be_hidden()
    expect(page.get_by_role("button", name="Map", exact=True)).to_be_focused()


def test_the_mouse_moves_on_the_map(page: Page) -> None:
    open_panel(page, "Map")
    canvas, tip = page.locator("#map-canvas"), page.locator("#map-tip")
    canvas.scroll_into_view_if_needed()
    x, y = page.evaluate(
        """async () => {
            const { view } = await import("/page/map.js");
            const { points } = await (await fetch("/map")).json();
            const area = document.getElementById("map-canvas").getBoundingClientRect();
            const point = points.reduce((a, b) => (a.x < b.x ? a : b));  // no landmark of another point covers it
            const [x, y] = view.place(point);
            return [area.left + x, area.top + y];
        }"""
    )
    page.mouse.move(5, 5)
    page.mouse.move(x, y)
    expect(tip).to_be_visible()
    canvas.focus()
    page.get_by_role("button", name="Zoom in").click()
    before = tip.bounding_box()
    page.mouse.move(x + 140, y + 30)
    page.mouse.down()
    page.mouse.move(x + 200, y + 80, steps=3)
    page.mouse.up()
    expect(page.get_by_role("heading", name="From the gallery")).to_be_visible()  # a drag is not a click
    assert tip.bounding_box() != before
    page.get_by_role("button", name="Whole map").click()
    page.mouse.click(x, y)
    expect(page).to_have_url(re.compile(r"\?id=\d+$"))


def test_pictures_of_all_labels_mark_the_map_without_overlap(page: Page) -> None:
    open_panel(page, "Map")
    marks = page.evaluate(
        """async () => {
            const { landmarks } = await import("/page/map.js");
            return landmarks.map(({ box, lines }) => ({ ...box, name: lines.join(" ") }));
        }"""
    )
    assert 2 <= len(marks) <= len(toys.CLASSES)
    area = page.locator("#map-canvas").bounding_box()
    assert area
    assert min(mark["left"] for mark in marks) >= 0 <= min(mark["top"] for mark in marks)
    assert max(mark["right"] for mark in marks) <= area["width"]
    assert max(mark["bottom"] for mark in marks) <= area["height"], "the lowest name is cut"
    for i, one in enumerate(marks):
        for other in marks[:i]:
            apart = one["left"] > other["right"] or other["left"] > one["right"]
            assert apart or one["top"] > other["bottom"] or other["top"] > one["bottom"]


def test_a_picture_on_the_map_has_the_last_part_of_its_label_as_its_name(
    browser: Browser, gallery_folder: Path, tmp_path: Path
) -> None:
    """The other parts, which labels of one folder share, would push it out."""
    names = {"red stripes": "Northern Waterthrush", "blue checks": "Belted Kingfisher"}
    copy = Path(shutil.copytree(gallery_folder, tmp_path / "gallery"))
    with VectorGallery.open(copy) as gallery:
        for item in gallery.store.items(limit=100):
            name = names.get(str(item.label))
            label = name and f"photographs of birds/183.{name.replace(' ', '_')}"
            gallery.store.describe(item.id, label, {})
    with serving(copy) as running, opened(browser, running.url) as page:
        open_panel(page, "Map")
        marks = page.evaluate(
            """async () => (await import("/page/map.js")).landmarks.map(({ lines }) => lines.join(" "))"""
        )
        assert {mark for mark in marks if mark} == set(names.values())


def test_zooming_keeps_the_place_under_the_pointer(page: Page) -> None:
    x, y, far = page.evaluate(
        """async () => {
            const { View } = await import("/page/map.js");
            const view = new View();
            view.resize(300, 200);
            view.fit([{ x: 1, y: 0.5 }]);
            const point = { x: 0.4, y: -0.2 };
            const before = view.place(point);
            view.zoomAt(2.5, before);
            const after = view.place(point);
            return [after[0] - before[0], after[1] - before[1], view.zoom];
        }"""
    )
    assert (x, y, far) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9), 2.5)


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_the_description_of_the_api_is_complete_and_accessible(
    browser: Browser, server: Running, http: httpx.Client, size: tuple[int, int], scheme: str
) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    with opened(browser, f"{server.url}/docs", size, scheme) as page:
        expect(page.locator(".operation")).to_have_count(sum(map(len, paths.values())))
        expect(page.locator("#contents a")).to_have_count(page.locator(".operation").count())
        assert complaints(page) == []


class Hit(BaseModel):
    id: int
    label: str | None


def test_the_description_of_any_fastapi_service_is_shown(browser: Browser, server: Running) -> None:
    app = FastAPI(title="Toys", description="Finds toys.")

    @app.post("/search", summary="Find the nearest items")
    def search(
        image: UploadFile,
        k: Annotated[int, Query(ge=1, le=3, description="Number of results")] = 3,
        min_p: Annotated[float | None, Query(ge=0, le=1)] = None,
        label: Annotated[list[str] | None, Form(description="Labels to keep")] = None,
    ) -> list[Hit]:
        raise NotImplementedError

    with opened(browser, f"{server.url}/docs") as page:
        page.route("**/openapi.json", lambda route: route.fulfill(json=app.openapi()))
        page.reload()
        expect(page.locator("#description")).to_have_text("Finds toys.")
        expect(page.locator("#example")).to_contain_text("/search?k=3")
        rows = page.locator("tr").all_inner_texts()
        assert [row.split("\t") for row in rows] == [
            ["k", "integer, 1 to 3, default 3", "Number of results"],
            ["min_p", "number, 0 to 1", ""],
            ["image", "file", "form"],
            ["label", "[string]", "form: Labels to keep"],
            ["200", "Successful Response: [{id: integer, label: string or null}]"],
            ["422", "Validation Error"],
        ]


BIRDS, CARS = "birds-may-be-read", "cars-may-be-read"


@pytest.fixture(scope="module")
def collections(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("collections")
    for name in ("birds", "cars", "art"):
        shutil.copytree(gallery_folder, root / name)
    with VectorGallery.open(root / "art") as gallery:
        gallery.remove([1, 2, 3, 4])
    keys = {"ZOO_SERVE_READ_KEYS_BIRDS": BIRDS, "ZOO_SERVE_READ_KEYS_CARS": CARS}
    with serving([f"{name}={root / name}" for name in ("birds", "cars", "art")], environment=keys) as running:
        yield running


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_from_one_collection_to_the_others(
    browser: Browser, collections: Running, size: tuple[int, int], scheme: str
) -> None:
    with opened(browser, collections.url, size, scheme) as page:
        expect(page).to_have_url(f"{collections.url}/collections/art/")  # the first that needs no key
        expect(page.locator(".card")).to_have_count(20)
        page.goto(f"{collections.url}/collections/birds/")
        give(page, BIRDS)
        expect(page.locator(".card")).to_have_count(24)
        expect(page).to_have_title("birds: image search")
        shown = page.locator("#collections a")
        expect(shown).to_have_text(["birds 24", "art 20"])  # this key does not read cars
        expect(shown.first).to_have_attribute("aria-current", "page")
        assert complaints(page) == []
        if size != DESKTOP:
            return
        page.locator(".card").first.click()
        expect(page).to_have_url(re.compile(r"/collections/birds/\?id=\d+$"))
        loaded = "images => images.every((image) => image.complete && image.naturalWidth > 0)"
        expect(page.locator(".likeness").first).to_be_visible()
        page.wait_for_function(f"() => ({loaded})([...document.querySelectorAll('.card img')].slice(0, 4))")
        shown.nth(1).click()
        expect(page).to_have_url(f"{collections.url}/collections/art/")
        expect(page.locator(".card")).to_have_count(20)
        expect(page.locator("#collections a")).to_have_text(["art 20"])
        page.get_by_role("link", name="API").click()
        expect(page.locator("#operations .path").first).to_have_text("/collections/art/search")
        expect(page.locator("#example")).to_contain_text("/collections/art/search?k=5")
        page.goto(f"{collections.url}/collections/cars/")
        give(page, BIRDS)
        said = refusal("GET", f"{collections.url}/collections/cars/items", headers=bearer(BIRDS))
        expect(page.locator("#key-reason")).to_have_text(f"A key is needed: {said}")
        give(page, CARS)
        expect(page.locator(".card")).to_have_count(24)
        page.goto(f"{collections.url}/collections/birds/")
        expect(page.locator(".card")).to_have_count(24)  # its key is still held
        page.goto(f"{collections.url}/docs")  # at the root: of all collections
        expect(page.locator("#operations .path").first).to_have_text("/collections/{collection}/search")
        expect(page.locator("#example")).to_contain_text("/collections/NAME/search?k=5")


def test_the_root_of_guarded_collections_asks_for_a_key_and_leads_on(
    browser: Browser, gallery_folder: Path, tmp_path: Path
) -> None:
    for name in ("birds", "cars"):
        shutil.copytree(gallery_folder, tmp_path / name)
    keys = {"ZOO_SERVE_READ_KEYS_BIRDS": BIRDS, "ZOO_SERVE_READ_KEYS_CARS": CARS}
    galleries = [f"{name}={tmp_path / name}" for name in ("birds", "cars")]
    with serving(galleries, environment=keys) as running, opened(browser, running.url) as page:
        give(page, CARS)
        expect(page).to_have_url(f"{running.url}/collections/cars/")
        expect(page.locator(".card")).to_have_count(24)
        loaded = "images => images.every((image) => image.complete && image.naturalWidth > 0)"
        page.wait_for_function(f"() => ({loaded})([...document.querySelectorAll('.card img')].slice(0, 4))")
