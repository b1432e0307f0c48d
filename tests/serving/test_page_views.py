"""What the page shows beside the search: filters, crop, map; and that axe finds nothing to complain of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.serving import toys
from tests.serving.browser import complaints, opened
from tests.serving.running import Running

pytestmark = pytest.mark.browser

PHONE = (360, 780)


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with opened(browser, server.url) as page:
        yield page


def pick(page: Page, folder: Path, image: Image.Image) -> None:
    image.save(folder / "picked.png")
    page.set_input_files("#file", folder / "picked.png")
    expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")


def halves(left: int, right: int) -> Image.Image:
    """A picture of one class beside one of another."""
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
    page.locator("#label").fill("blue checks")
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
    ids = page.locator(".card").evaluate_all("cards => cards.map((card) => card.dataset.id)")
    assert len(set(ids)) == 24
    expect(page.locator(".card").nth(12)).to_be_focused()
    page.locator("#filters summary").click()
    page.locator("#least").fill("0.7")
    page.locator("#least").press("Enter")
    page.locator("#least").blur()
    expect(page.locator(".card")).to_have_count(6)
    expect(page.get_by_role("button", name="More results")).to_be_hidden()


@pytest.mark.parametrize("by", ["fields", "mouse"])
def test_a_region_is_searched_by(page: Page, tmp_path: Path, by: str) -> None:
    pick(page, tmp_path, halves(0, 2))
    page.get_by_role("button", name="Crop").click()
    expect(page.locator("#crop-left")).to_be_focused()
    if by == "fields":
        page.locator("#crop-left").fill("50")
    else:
        page.locator("#crop-stage").scroll_into_view_if_needed()
        area = page.locator("#crop-stage").bounding_box()
        assert area
        page.mouse.move(area["x"] + area["width"] * 0.5, area["y"] + 1)
        page.mouse.down()
        page.mouse.move(area["x"] + area["width"] * 0.8, area["y"] + area["height"] * 0.6)
        page.mouse.move(area["x"] + area["width"] - 1, area["y"] + area["height"] - 1)
        page.mouse.up()
        assert float(page.locator("#crop-left").input_value()) == pytest.approx(50, abs=1)
    with page.expect_request(re.compile("/search")) as asked:
        page.get_by_role("button", name="Search with this region").click()
    assert "crop=0.5" in asked.value.url or "crop=0.49" in asked.value.url
    expect(page.locator("#crop-note")).to_contain_text(re.compile("Region: (49|50|51) to (99|100) % across"))
    expect(page.locator(".card .label").first).to_have_text("green disc")
    page.locator("#crop-left").fill("100")
    page.get_by_role("button", name="Search with this region").click()
    assert not page.locator("#crop-right").evaluate("field => field.checkValidity()")
    page.get_by_role("button", name="Whole image").click()
    expect(page.locator("#crop-note")).to_be_empty()


def test_an_item_is_not_cropped(page: Page) -> None:
    page.locator(".card").first.click()
    expect(page.locator("#query-name")).not_to_be_empty()
    expect(page.get_by_role("button", name="Crop")).to_be_hidden()


def test_the_map_is_walked_in_by_keyboard(page: Page, http: httpx.Client) -> None:
    places = {point["id"]: point for point in http.get("/map").json()["points"]}
    page.get_by_role("button", name="Map", exact=True).click()
    expect(page.locator("#map-status")).to_contain_text("24 images")
    expect(page.locator("#map-title")).to_be_focused()
    page.locator("#map-canvas").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#map-tip")).to_be_visible()
    first = int(page.locator("#map-tip").get_attribute("data-id") or 0)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#map-tip")).not_to_have_attribute("data-id", str(first))
    second = int(page.locator("#map-tip").get_attribute("data-id") or 0)
    assert places[second]["x"] > places[first]["x"]
    expect(page.locator("#map-status")).to_contain_text(f"item {second}")
    for key in "++-0":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"\?id={second}$"))
    expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
    page.locator("#map-canvas").press("Escape")
    expect(page.locator("#map")).to_be_hidden()


def test_the_map_is_walked_in_by_mouse(page: Page) -> None:
    page.get_by_role("button", name="Map", exact=True).click()
    expect(page.locator("#map-status")).to_contain_text("24 images")
    canvas = page.locator("#map-canvas")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#map-tip")).to_be_visible()
    wanted = page.locator("#map-tip").get_attribute("data-id")
    x, y = place_of(page, wanted)
    page.mouse.move(5, 5)
    page.mouse.move(x, y)
    expect(page.locator("#map-tip")).to_be_visible()
    before = page.locator("#map-tip").bounding_box()
    page.get_by_role("button", name="Zoom in").click()
    page.mouse.move(x + 40, y + 30)
    page.mouse.down()
    page.mouse.move(x + 100, y + 80, steps=3)
    page.mouse.up()
    expect(page.get_by_role("heading", name="From the gallery")).to_be_visible()  # a drag is no click
    assert page.locator("#map-tip").bounding_box() != before
    page.get_by_role("button", name="Whole map").click()
    page.mouse.click(x, y)
    expect(page).to_have_url(re.compile(r"\?id=\d+$"))


def place_of(page: Page, item: str | None) -> tuple[float, float]:
    """Where the point of an item is drawn on the whole map, in pixels of the page."""
    page.locator("#map-canvas").scroll_into_view_if_needed()
    x, y = page.evaluate(
        """async (item) => {
            const { View } = await import("/page/map.js");
            const { points } = await (await fetch("/map")).json();
            const area = document.getElementById("map-canvas").getBoundingClientRect();
            const view = new View();
            view.resize(area.width, area.height);
            view.fit(points);
            const [x, y] = view.place(points.find((point) => point.id === Number(item)));
            return [area.left + x, area.top + y];
        }""",
        item,
    )
    return x, y


def test_zooming_leaves_the_place_under_the_pointer_where_it_is(page: Page) -> None:
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


def test_a_phone_offers_its_camera(browser: Browser, server: Running, tmp_path: Path) -> None:
    with opened(browser, server.url, PHONE, touch=True) as page:
        expect(page.get_by_text("Take a picture")).to_be_visible()
        inside, below = page.locator(".camera").bounding_box(), page.locator("#filters").bounding_box()
        assert inside
        assert below
        assert inside["y"] + inside["height"] <= below["y"]
        camera = page.locator("#camera")
        assert camera.get_attribute("capture") == "environment"
        (tmp_path / "photo.png").write_bytes(toys.query(1))
        camera.set_input_files(tmp_path / "photo.png")
        expect(page.locator(".card .label").first).to_have_text("blue checks")


@pytest.mark.parametrize(("size", "scheme"), [((1200, 820), "light"), (PHONE, "dark")])
def test_axe_finds_nothing(
    browser: Browser, server: Running, tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    with opened(browser, server.url, size, scheme, touch=size == PHONE) as page:
        found = {"start": complaints(page)}
        page.locator("#filters summary").click()
        found["filters"] = complaints(page)
        page.locator("#filters summary").click()
        for name in ("Map", "Model", "Add"):
            page.get_by_role("button", name=name, exact=True).click()
            expect(page.locator(f"#{name.lower()} [role=status]").first).not_to_have_text(re.compile("…$"))
            found[name] = complaints(page)
            assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
        page.get_by_role("button", name="Add", exact=True).click()
        pick(page, tmp_path, halves(0, 1))
        page.get_by_role("button", name="Crop").click()
        found["results and crop"] = complaints(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
        page.goto(f"{server.url}/docs")
        expect(page.locator(".operation").first).to_be_visible()
        found["docs"] = complaints(page)
    assert {place: what for place, what in found.items() if what} == {}
