"""The page in a real Chromium: searching by images, items and texts, the results, and the enlarged view."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.commandline import run_here as run
from tests.serving import toys
from tests.serving.browser import DESKTOP, LOOKS, PHONE, card, complaints, drop, found, labels, opened, refusal
from tests.serving.running import Running, serving

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser, server: Running) -> Iterator[Page]:
    with opened(browser, server.url) as page:
        yield page


@pytest.mark.slow
def test_a_dropped_image_finds_its_neighbours(page: Page) -> None:
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
    page.locator(".card").first.click()  # the last query finds the label that looks like HTML
    expect(page.locator("#query-name")).to_have_text(toys.HTML_LABEL)
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("img[src='x']").count() == 0


@pytest.mark.slow
def test_a_click_on_a_result_searches_from_it(page: Page) -> None:
    drop(page, toys.query(2))
    assert labels(page)[0] == "green disc"
    chosen = page.locator(".card").filter(has_text="blue checks").first
    clicked = int(chosen.get_attribute("data-id") or 0)
    chosen.click()
    expect(page).to_have_url(f"{page.url.partition('?')[0]}?id={clicked}")
    expect(page.locator("#query-name")).to_have_text("blue checks")
    expect(page.locator(".card .label").first).to_have_text("blue checks")
    expect(page.get_by_role("button", name="Crop")).to_be_hidden()
    ids = found(page)
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


def test_an_image_can_be_chosen_pasted_or_taken(browser: Browser, server: Running, tmp_path: Path) -> None:
    for kind in (0, 1):
        (tmp_path / f"{kind}.png").write_bytes(toys.query(kind))
    with opened(browser, server.url, PHONE, touch=True) as page:
        expect(page.get_by_text("Choose a photo")).to_be_visible()
        expect(page.get_by_text("Take a picture")).to_be_visible()
        page.set_input_files("#file", tmp_path / "0.png")
        assert labels(page)[:3] == ["red stripes"] * 3
        assert page.locator("#camera").get_attribute("capture") == "environment"
        page.set_input_files("#camera", tmp_path / "1.png")
        expect(page.locator(".card .label").first).to_have_text("blue checks")
        page.evaluate(
            """(data) => {
                const transfer = new DataTransfer();
                const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
                transfer.items.add(new File([bytes], "image.png", { type: "image/png" }));
                dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
            }""",
            base64.b64encode(toys.query(2)).decode(),
        )
        expect(page.locator(".card .label").first).to_have_text("green disc")
        page.locator("#k").select_option("12")
        expect(page.locator(".card")).to_have_count(12)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE[0]


def test_refusals_are_clear_and_the_next_search_works(page: Page, server: Running) -> None:
    alert = page.get_by_role("alert")

    def reason(data: bytes) -> str:
        return refusal("POST", f"{server.url}/search", files={"image": ("image", data, "image/png")})

    drop(page, b"this is not an image", "notes.png")
    expect(alert).to_have_text(f"Not valid: {reason(b'this is not an image')}")
    expect(page.locator(".query .unshown")).to_have_count(1)
    expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
    expect(page.locator(".card")).to_have_count(0)
    drop(page, toys.query(0)[:150], "cut.png")
    expect(alert).to_have_text(f"Not valid: {reason(toys.query(0)[:150])}")
    drop(page, b"", "nothing.png")
    expect(alert).to_contain_text("nothing.png is empty")
    drop(page, toys.query(0))
    expect(alert).to_be_hidden()
    assert labels(page)[:3] == ["red stripes"] * 3
    page.get_by_role("button", name="Start over").click()
    page.dispatch_event("body", "drop", {"dataTransfer": page.evaluate_handle("() => new DataTransfer()")})
    expect(alert).to_contain_text("That is not a file")
    page.get_by_role("button", name="Show others").click()
    expect(alert).to_be_hidden()
    expect(page.locator(".card")).to_have_count(24)


@pytest.mark.slow
def test_a_result_says_where_else_its_image_is(browser: Browser, model_folder: Path, folder: Path) -> None:
    first = sorted(folder.rglob("*.png"))[0]
    for number in range(2):
        shutil.copy(first, first.with_name(f"zz-copy-{number}.png"))
    gallery = folder.parent / "with-copies"
    assert run("index", model_folder, folder, "--out", gallery) == 0
    with serving(gallery) as running, opened(browser, running.url) as page:
        drop(page, first.read_bytes())
        expect(page.locator(".card")).to_have_count(24)
        nearest = page.locator(".card").first
        expect(nearest).to_contain_text("2 other places")
        expect(nearest).to_have_attribute("aria-label", re.compile("2 other places"))
        page.get_by_role("button", name="Enlarge").first.click()
        for number in range(2):
            expect(page.locator("#viewer-facts")).to_contain_text(f"zz-copy-{number}.png")
        assert complaints(page) == []


REFUSALS = {
    403: "Not allowed: Said.",
    413: "Too large: Said.",
    415: "Not an image file: Said.",
    422: "Not valid: Said.",
    429: "Too busy: Said. Wait 3 s, then try again.",
    500: "The service failed: Said.",
    0: "The server does not answer.",
}


@pytest.mark.slow
def test_a_refusal_says_its_reason_and_can_be_tried_again_if_it_passes(page: Page) -> None:
    refused: list[int] = []

    def refuse(status: int, route: Route) -> None:
        refused.append(status)
        message = "Said." + (" Try again in 3 s." if status == 429 else "")
        if refused.count(status) > 1:
            route.continue_()
        elif status:
            body = {"error": {"code": "some", "message": message}}
            route.fulfill(status=status, json=body, headers={"Retry-After": "3"} if status == 429 else {})
        else:
            route.abort()

    again = page.get_by_role("button", name="Try again")
    for status, said in REFUSALS.items():
        page.route("**/search?*", partial(refuse, status))
        page.locator(".card").first.click()
        expect(page.get_by_role("alert")).to_contain_text(said)
        expect(page.get_by_role("alert")).not_to_contain_text("Try again in")
        if status in (0, 429, 500):
            again.click()
        else:
            expect(again).to_have_count(0)
            page.locator("#k").select_option("48" if page.locator("#k").input_value() == "24" else "24")
        expect(page.locator(".likeness")).to_have_count(23)
        expect(page.get_by_role("alert")).to_be_hidden()


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
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("aria-label", re.compile("Search from this image$"))
    assert focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator(".card").first).to_have_attribute("aria-label", re.compile(r"similarity 0\."))
    expect(page.locator("#results-title")).to_be_focused()  # the card with the focus is gone


def test_a_result_is_enlarged(page: Page) -> None:
    drop(page, toys.query(1))
    ids = found(page)
    page.locator("li").filter(has=card(page, ids[1])).get_by_role("button", name="Enlarge").click()
    viewer, place = page.locator("#viewer"), page.locator("#viewer-place")
    expect(viewer).to_be_visible()
    expect(place).to_have_text("2 of 24")
    expect(page.locator("#viewer-title")).to_have_text("blue checks")
    expect(page.locator("#viewer-facts")).to_contain_text(f"Item{ids[1]}")
    assert page.locator("#viewer-image").bounding_box()["width"] > 300  # type: ignore[index]
    page.keyboard.press("ArrowRight")
    expect(place).to_have_text("3 of 24")
    page.keyboard.press("End")
    expect(place).to_have_text("24 of 24")
    expect(page.locator("#viewer-next")).to_be_disabled()
    page.keyboard.press("ArrowRight")
    expect(place).to_have_text("24 of 24")
    page.keyboard.press("Home")
    page.locator("#viewer-next").click()
    expect(place).to_have_text("2 of 24")
    for _ in range(8):  # the focus never reaches what is behind the dialog
        page.keyboard.press("Tab")
        assert page.evaluate(
            "() => document.activeElement === document.body || viewer.contains(document.activeElement)"
        )
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    expect(viewer).to_be_hidden()
    expect(page.locator(".enlarge").nth(2)).to_be_focused()
    page.keyboard.press("Enter")
    expect(place).to_have_text("3 of 24")
    page.mouse.click(5, 5)  # outside
    expect(viewer).to_be_hidden()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Search with this image").click()
    expect(page).to_have_url(re.compile(rf"\?id={ids[2]}$"))


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


def test_the_first_cards_are_announced_by_their_shapes(page: Page) -> None:
    waiting: list[Route] = []
    page.route("**/items?sample=*", lambda route: waiting.append(route))  # playwright takes no built-in method
    page.reload()
    expect(page.locator(".skeleton").first).to_be_visible()
    expect(page.locator("#found")).to_have_attribute("aria-busy", "true")
    waiting[0].continue_()
    expect(page.locator(".card")).to_have_count(24)
    expect(page.locator(".skeleton")).to_have_count(0)
    page.route("**/items?sample=*", lambda route: route.fulfill(json={"total": 0, "items": []}))
    page.get_by_role("button", name="Show others").click()
    expect(page.locator("#note")).to_have_text("The gallery is empty")
    expect(page.locator("#nothing")).to_contain_text("zoo index")


def test_a_service_that_gives_very_few_results_is_searched(browser: Browser, server: Running) -> None:
    def limit(route: Route) -> None:
        model = httpx.get(route.request.url).json()
        model["limits"]["max_k"] = 3
        route.fulfill(json=model)

    with opened(browser, server.url) as page:
        page.route("**/model", limit)
        page.goto(f"{server.url}/?id=1")  # searched with before the page knows any limit
        assert len(found(page)) == 3
        expect(page.locator("#k option")).to_have_text(["3"])
        with page.expect_response(re.compile("/search")) as answered:
            page.get_by_role("button", name="More results").click()
        assert answered.value.status == 200
        assert "k=3&offset=3" in answered.value.url
        expect(page.locator(".card")).to_have_count(6)
        expect(page.locator(".card").nth(3)).to_be_focused()


def nearest(server: Running, text: str) -> list[int]:
    answer = httpx.post(f"{server.url}/search", json={"text": text, "k": 24})
    return [hit["id"] for hit in answer.json()["results"]]


@pytest.mark.slow
def test_words_find_images_and_stay_in_the_address(browser: Browser, text_server: Running) -> None:
    with opened(browser, text_server.url) as page:
        field = page.get_by_role("searchbox", name="Or describe what you are looking for")
        field.fill("   ")
        field.press("Enter")
        expect(page.get_by_role("heading", name="From the gallery")).to_be_visible()
        field.fill("a red chair")
        field.press("Enter")
        assert found(page) == nearest(text_server, "a red chair")
        expect(page.locator("#query-name")).to_have_text("a red chair")
        expect(page.locator("#query .frame")).to_be_hidden()
        expect(page.locator("#note")).not_to_contain_text("not calibrated")
        assert page.url.endswith("?text=a+red+chair")
        field.fill("blue checks <b>")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator("#query-name")).to_have_text("blue checks <b>")
        assert found(page) == nearest(text_server, "blue checks <b>")
        page.go_back()
        expect(page.locator("#query-name")).to_have_text("a red chair")
        expect(field).to_have_value("a red chair")
        page.reload()
        assert found(page) == nearest(text_server, "a red chair")
        page.locator(".card").first.click()
        expect(page.locator("#query-name")).not_to_have_text("a red chair")
        expect(page.locator("#query .frame")).to_be_visible()
        expect(field).to_have_value("")
        field.fill("rain " * 30)
        field.press("Enter")
        expect(page.locator("#note")).to_contain_text("its end was left out")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_a_search_by_text_is_accessible(
    browser: Browser, text_server: Running, size: tuple[int, int], scheme: str
) -> None:
    with opened(browser, f"{text_server.url}/?text=a+red+chair", size, scheme, touch=size != DESKTOP) as page:
        found(page)
        assert complaints(page) == []


def test_a_model_without_texts_has_no_field_for_them(browser: Browser, server: Running) -> None:
    with opened(browser, server.url) as page:
        page.goto(f"{server.url}/?text=a+red+chair")
        said = refusal("POST", f"{server.url}/search", json={"text": "a red chair"})
        expect(page.get_by_role("alert")).to_contain_text(said)
        expect(page.locator("#facts")).to_contain_text("toy-pool")
        expect(page.locator("#text-form")).to_be_hidden()
