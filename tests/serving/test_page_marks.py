"""The page with a write key: results marked right or wrong, labels edited, metadata filtered by, keys forgotten."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from serving.configuration import READ_KEYS, WRITE_KEYS
from serving.gallery import Gallery
from tests.serving import toys
from tests.serving.browser import complaints, opened
from tests.serving.running import Running, serving
from tests.serving.test_page_keys import give

pytestmark = pytest.mark.browser

READER, WRITER = "read-key-of-the-tests", "write-key-of-the-tests"
PHONE = (360, 780)


@pytest.fixture(scope="module")
def folder(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("marked page") / "gallery"
    shutil.copytree(gallery_folder, copy)
    with Gallery.open(copy) as gallery:
        for item, metadata in ((1, {"year": 1908, "place": "<i>Rome</i>"}), (2, {"year": "1908"}), (3, {"year": 1909})):
            gallery.describe(item, gallery.item(item).label, metadata)
    return copy


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with serving(folder, environment={READ_KEYS: READER, WRITE_KEYS: WRITER}) as running:
        yield running


@pytest.fixture
def http(service: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"authorization": f"Bearer {WRITER}"}, timeout=30) as client:
        yield client
        for mark in client.get("/feedback").json()["marks"]:
            client.delete(f"/feedback/{mark['id']}")


@pytest.fixture
def page(browser: Browser, service: Running, http: httpx.Client) -> Iterator[Page]:
    with opened(browser, service.url) as page:
        enter(page)
        yield page


def enter(page: Page) -> None:
    """With both keys."""
    give(page, READER)
    expect(page.locator(".card")).to_have_count(24)
    page.evaluate(
        """(key) => {
            sessionStorage.setItem("zoo-write-key", key);
            dispatchEvent(new CustomEvent("zoo-keys"));
        }""",
        WRITER,
    )


def search(page: Page, item: int) -> None:
    page.locator(f'.card[data-id="{item}"]').click()
    expect(page.get_by_role("heading", name="Nearest")).to_be_visible()
    expect(page.locator(".marking")).to_have_count(23)


def mark(page: Page, item: int, verdict: str) -> Locator:
    return page.locator(f'.mark[data-item="{item}"][data-verdict="{verdict}"]')


def kept(http: httpx.Client) -> list[tuple[Any, int, str]]:
    marks = http.get("/feedback").json()["marks"]
    return [(one["query"]["id"], one["result"]["id"], one["verdict"]) for one in marks]


def test_results_are_marked_with_the_keyboard_and_marks_undone(page: Page, http: httpx.Client) -> None:
    expect(page.locator(".marking")).to_have_count(0)
    search(page, 7)
    right, wrong = mark(page, 10, "right"), mark(page, 10, "wrong")
    expect(right).to_be_visible()
    assert complaints(page) == []
    right.focus()
    page.keyboard.press("Space")
    expect(right).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#note")).to_contain_text("Marked blue checks, item 10, right")
    expect(right).to_be_focused()
    assert kept(http) == [(7, 10, "right")]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(wrong).to_have_attribute("aria-pressed", "true")
    expect(right).to_have_attribute("aria-pressed", "false")
    assert complaints(page) == []
    page.get_by_role("button", name="Undo the mark of blue checks").click()
    expect(right).to_have_attribute("aria-pressed", "true")
    expect(right).to_be_focused()
    assert kept(http) == [(7, 10, "right")]
    right.click()  # what is pressed once more is let go
    expect(right).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#note")).to_contain_text("is no longer marked")
    assert kept(http) == []
    page.get_by_role("button", name="Undo the mark of blue checks").click()
    expect(right).to_have_attribute("aria-pressed", "true")
    mark(page, 3, "wrong").click()
    expect(mark(page, 3, "wrong")).to_have_attribute("aria-pressed", "true")
    page.reload()
    expect(mark(page, 3, "wrong")).to_have_attribute("aria-pressed", "true")
    expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(2)
    page.get_by_role("button", name="Start over").click()
    expect(page.locator(".marking")).to_have_count(0)


def test_results_of_an_image_that_was_sent_are_marked(page: Page, http: httpx.Client, tmp_path: Path) -> None:
    image = toys.query(1)
    (tmp_path / "my query.png").write_bytes(image)
    page.set_input_files("#file", tmp_path / "my query.png")
    expect(page.locator(".marking")).to_have_count(24)
    mark(page, 8, "right").click()
    expect(mark(page, 8, "right")).to_have_attribute("aria-pressed", "true")
    (one,) = http.get("/feedback").json()["marks"]
    assert one["query"]["content_sha256"] == hashlib.sha256(image).hexdigest()
    assert (one["query"]["source"], one["result"]["id"]) == ("my query.png", 8)
    page.get_by_role("button", name="Crop").click()
    page.locator("#crop-right").fill("50")
    with page.expect_response("**/search?*"):
        page.get_by_role("button", name="Search with this region").click()
    expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(0)
    mark(page, 8, "wrong").click()
    expect(mark(page, 8, "wrong")).to_have_attribute("aria-pressed", "true")
    whole, part = http.get("/feedback").json()["marks"]
    assert (part["verdict"], whole["verdict"]) == ("wrong", "right")
    assert part["query"]["content_sha256"] != whole["query"]["content_sha256"]
    page.get_by_role("button", name="Whole image").click()
    expect(mark(page, 8, "right")).to_have_attribute("aria-pressed", "true")


def test_without_a_write_key_nothing_can_be_marked_or_edited(browser: Browser, service: Running) -> None:
    with opened(browser, service.url) as page:
        give(page, READER)
        page.locator(".card").first.click()
        expect(page.locator(".marking")).to_have_count(23)
        for hidden in (".marking", ".tool.edit", ".remove"):
            expect(page.locator(hidden).first).to_be_hidden()


@pytest.mark.parametrize(("size", "scheme"), [((1200, 820), "light"), (PHONE, "dark")])
def test_axe_finds_nothing(
    browser: Browser, service: Running, http: httpx.Client, size: tuple[int, int], scheme: str
) -> None:
    with opened(browser, service.url, size, scheme, touch=size == PHONE) as page:
        enter(page)
        search(page, 1)
        mark(page, 4, "right").click()
        mark(page, 9, "wrong").click()
        expect(page.locator('.mark[aria-pressed="true"]')).to_have_count(2)
        found = {"marks": complaints(page)}
        page.locator("#filters summary").click()
        expect(page.locator("#values .chip").first).to_be_visible()
        found["metadata"] = complaints(page)
        page.locator(".tool.edit").first.click()
        found["edit"] = complaints(page)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Model", exact=True).click()
        page.get_by_role("button", name="Measure now").click()
        expect(page.locator("#calibration svg")).to_have_count(2)
        found["model"] = complaints(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
    assert {place: what for place, what in found.items() if what} == {}


def test_a_label_is_edited(page: Page, http: httpx.Client) -> None:
    search(page, 7)
    likeness = page.locator('.card[data-id="11"] .likeness').inner_text()
    label = '<b onclick="hacked = 1">new</b>'
    page.get_by_role("button", name="Edit blue checks, item 11").click()
    expect(page.locator("#edit-title")).to_contain_text("Label of item 11")
    expect(page.locator("#edit-label")).to_have_value("blue checks")
    page.keyboard.press("Escape")
    expect(page.locator("#edit")).to_be_hidden()
    page.get_by_role("button", name="Edit blue checks, item 11").click()
    page.locator("#edit-label").fill(label)
    page.keyboard.press("Enter")
    expect(page.locator('.card[data-id="11"] .label')).to_have_text("b>")  # the last part of a path of labels
    expect(page.locator("#note")).to_contain_text(f"Item 11 now has the label {label}")
    assert http.get("/items/11").json()["label"] == label
    assert page.locator('.card[data-id="11"] .likeness').inner_text() == likeness
    expect(page.locator('li:has(.card[data-id="11"]) .tool.edit')).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("#edit-label").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.locator('.card[data-id="11"] .label')).to_have_text("no label")
    http.patch("/items/11", json={"label": "blue checks"})


def test_results_are_filtered_by_metadata(page: Page) -> None:
    page.locator("#filters summary").click()
    expect(page.locator("#values .chip")).to_have_text(["place: <i>Rome</i> 1", "year: 1908 1", "year: 1909 1"])
    page.locator("#values .chip", has_text="year: 1908").click()
    expect(page.locator(".card")).to_have_count(2)  # the number and the text
    expect(page.locator("#note")).to_have_text("2 images with this metadata")
    page.locator("#values .chip", has_text="year: 1909").click()
    expect(page.locator(".card")).to_have_count(3)
    page.locator("#values .chip", has_text="place: <i>Rome</i>").click()
    expect(page.locator(".card")).to_have_count(1)
    page.get_by_role("button", name="Clear all").click()
    expect(page.locator(".card")).to_have_count(24)
    page.locator("#metadata-key").fill("year")
    page.locator("#metadata-value").fill("1909")
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_have_count(1)
    page.locator("#metadata-key").fill("colour")
    page.locator("#metadata-value").fill("red")
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_have_count(0)
    expect(page.locator("#values .chip", has_text="colour: red")).to_have_attribute("aria-pressed", "true")
    page.locator("#values .chip", has_text="colour: red").click()
    with page.expect_request(re.compile("search.*where=")):
        page.locator(".card").first.click()
    expect(page.locator("#note")).to_contain_text("No image matches the filters")


OUTSIDE = """all => all.filter((one) => {
    const [text, picture] = [one, one.ownerSVGElement].map((each) => each.getBoundingClientRect());
    return ["left", "top"].some((side) => text[side] < picture[side]) ||
        ["right", "bottom"].some((side) => text[side] > picture[side]);
}).map((one) => one.textContent)"""
"""Texts of a picture that it cuts off."""


def test_measuring_shows_what_was_promised_and_what_was_so(page: Page, http: httpx.Client) -> None:
    for item, verdict in ((8, "right"), (9, "wrong"), (1, "wrong")):  # items 7, 8, 9 are of one label
        http.post("/feedback", json={"query": 7, "item": item, "verdict": verdict}).raise_for_status()
    page.get_by_role("button", name="Model", exact=True).click()
    page.get_by_role("button", name="Measure now").click()
    picture = page.locator("#calibration svg").last
    expect(page.locator("#calibration svg")).to_have_count(2)
    expect(page.locator("#marks-note")).to_have_text(
        "3 results marked, 33 % of them right. 1 mark contradicts the labels:"
    )
    expect(page.locator("#contradictions li")).to_have_text("item 7 (blue checks) and item 9 (blue checks): wrong")
    expect(page.locator("#calibration figcaption").first).to_contain_text("3 marked results")
    bins = http.get("/evaluate").json()["reliability"]
    drawn = picture.locator("circle").evaluate_all(
        "all => all.map((one) => [one.cx.baseVal.value, one.cy.baseVal.value])"
    )
    assert len(drawn) == len(bins)
    (x0, y0), (x1, y1) = picture.locator(".even").evaluate(
        "one => [[one.x1.baseVal.value, one.y1.baseVal.value], [one.x2.baseVal.value, one.y2.baseVal.value]]"
    )
    for (x, y), one in zip(drawn, bins, strict=True):
        assert (x - x0) / (x1 - x0) == pytest.approx(one["probability"], abs=1e-3)
        assert (y - y0) / (y1 - y0) == pytest.approx(one["share"], abs=1e-3)
    cut = page.locator("#calibration text").evaluate_all(OUTSIDE)
    assert cut == []


def test_an_image_that_is_there_under_another_label_is_said(page: Page, http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "known.png").write_bytes(toys.query(3))
    with (tmp_path / "known.png").open("rb") as file:
        item = http.post("/items", files={"image": file}, data={"label": "old"}).json()["items"][0]["id"]
    page.get_by_role("button", name="Add", exact=True).click()
    for update, said, label in ((False, "it was not changed", "old"), (True, "it has the new label now", "new")):
        page.locator("#add-files").set_input_files(tmp_path / "known.png")
        page.locator("#add-label").fill("new")
        page.locator("#add-update").set_checked(update)
        page.locator("#add-submit").click()
        expect(page.locator("#add-differing li")).to_have_text(
            f"known.png: exists as item {item} with label old; {said}"
        )
        assert http.get(f"/items/{item}").json()["label"] == label
    http.delete(f"/items/{item}")


def test_keys_are_forgotten(page: Page) -> None:
    page.get_by_role("button", name="Forget keys").click()
    expect(page.locator("#key-title")).to_have_text("This gallery needs a read key")
    expect(page.locator(".card")).to_have_count(0)
    assert page.evaluate("() => [sessionStorage.length, document.cookie]") == [0, ""]
    give(page, READER)
    expect(page.locator(".card")).to_have_count(24)
    expect(page.get_by_role("button", name="Forget keys")).to_be_visible()
    expect(page.locator(".tool.edit").first).to_be_hidden()
