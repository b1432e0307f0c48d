"""The page of a service with keys: reading, adding, editing, deleting, measuring, and forgetting the keys."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Response, Route, expect

from tests.serving import toys
from tests.serving.browser import DESKTOP, LOOKS, bearer, card, complaints, found, give, open_panel, opened, refusal
from tests.serving.running import Running, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]

READER, WRITER = 'read "key"; of the tests', "write-key-of-the-tests"
"""A key may contain characters that a cookie may not."""
MAX_BODY, MAX_PIXELS, MAX_K = 200_000, 500_000, 23
SMALL, HALF, OVER = 20, 190, 320
"""Sides of noise pictures, in pixels: of a few kB, of more than half of a request's bytes, and of more than all."""
METADATA = {1: {"year": 1908, "place": "<i>Rome</i>"}, 2: {"year": "1908"}, 3: {"year": 1909}}


@pytest.fixture(scope="module")
def service(gallery_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with keys and low limits; its items 1 to 3 have metadata, and its similarities are calibrated."""
    folder = shutil.copytree(gallery_folder, tmp_path_factory.mktemp("with keys") / "gallery")
    limits = ("--max-body", MAX_BODY, "--max-pixels", MAX_PIXELS, "--max-k", MAX_K)
    keys = {"ZOO_SERVE_READ_KEYS": READER, "ZOO_SERVE_WRITE_KEYS": WRITER}
    with serving(Path(folder), *limits, environment=keys) as running:
        with writing(running) as client:
            for item, metadata in METADATA.items():
                client.patch(f"/items/{item}", json={"metadata": metadata}).raise_for_status()
            client.post("/evaluate").raise_for_status()
        yield running


def writing(service: Running) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"authorization": f"Bearer {WRITER}"}, timeout=30)


@pytest.fixture
def http(service: Running) -> Iterator[httpx.Client]:
    """A client with the write key; items that a test adds are deleted after it."""
    with writing(service) as client:
        yield client
        for item in client.get("/items", params={"limit": 200}).json()["items"]:
            if item["id"] > 24:
                client.delete(f"/items/{item['id']}")


@pytest.fixture
def page(browser: Browser, service: Running, http: httpx.Client) -> Iterator[Page]:
    """The page, with both keys."""
    with opened(browser, service.url) as page:
        enter(page)
        yield page


def enter(page: Page) -> None:
    give(page, READER)
    expect(page.locator(".card")).to_have_count(24)
    page.evaluate(
        """(key) => {
            sessionStorage.setItem("zoo-write-key", key);
            dispatchEvent(new CustomEvent("zoo-keys"));
        }""",
        WRITER,
    )


@pytest.fixture
def noise(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[int, str], Path]:
    """Return a function that writes a picture of this side, in pixels, which no other test adds."""
    random = np.random.default_rng(list(request.node.name.encode()))

    def make(side: int, name: str) -> Path:
        Image.fromarray(random.integers(0, 256, (side, side, 3), np.uint8)).save(tmp_path / name)
        return tmp_path / name

    return make


def test_the_read_key_is_asked_for_and_kept_in_the_tab(browser: Browser, service: Running) -> None:
    with opened(browser, service.url) as page:
        expect(page.locator("#key-title")).to_have_text("This gallery needs a read key")
        while page.locator("#key-dialog").is_visible():
            page.keyboard.press("Escape")
            page.wait_for_timeout(50)
        expect(page.get_by_role("alert")).to_contain_text("A key is needed")
        expect(page.locator(".card")).to_have_count(0)
        page.reload()
        give(page, "not the key of this service")
        said = refusal("GET", f"{service.url}/items", headers=bearer("not the key of this service"))
        expect(page.locator("#key-reason")).to_have_text(f"A key is needed: {said}")
        give(page, READER)
        expect(page.locator(".card")).to_have_count(24)
        loaded = "images => images.every((image) => image.complete && image.naturalWidth > 0)"
        page.wait_for_function(f"() => ({loaded})([...document.querySelectorAll('.card img')].slice(0, 6))")
        assert page.locator("#key").input_value() == ""
        page.reload()
        expect(page.locator(".card")).to_have_count(24)
        expect(page.locator("#key-dialog")).to_be_hidden()
        cookie = next(one for one in page.context.cookies() if one["name"] == "zoo-key")
        assert (cookie["sameSite"], cookie["path"]) == ("Strict", "/")
        page.locator(".card").first.click()
        expect(page.locator(".card")).to_have_count(23)
        for hidden in (".edit", ".remove"):  # they need a write key
            expect(page.locator(hidden).first).to_be_hidden()


def test_a_page_that_is_seen_again_tells_what_others_changed(
    page: Page, http: httpx.Client, noise: Callable[[int, str], Path]
) -> None:
    expect(page.locator("#facts")).to_contain_text("24 images")
    http.post("/items", files={"image": noise(SMALL, "other.png").read_bytes()}).raise_for_status()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#facts")).to_contain_text("25 images")


def test_results_say_how_likely_they_are_of_the_class(page: Page) -> None:
    page.locator(".card").first.click()
    expect(page.locator(".chance")).to_have_count(23)
    expect(page.locator(".chance").first).to_have_text(re.compile(r"^(over )?\d+ % same class$"))
    expect(page.locator(".card").first).to_have_attribute("aria-label", re.compile("likely the same class"))
    expect(page.locator("#note")).not_to_contain_text("not calibrated")
    expect(page.locator("#k option")).to_have_text(["12", str(MAX_K)])  # the service gives no more
    expect(page.locator("#k")).to_have_value(str(MAX_K))
    page.locator("#filters summary").click()
    page.locator("#least").fill("50")
    with page.expect_request(re.compile(r"min_p=0\.5(&|$)")):
        page.locator("#least").blur()
    expect(page.locator(".card")).not_to_have_count(23)


def test_the_identical_picture_is_of_the_same_class(page: Page, pictures: Path) -> None:
    page.locator("#file").set_input_files(sorted(pictures.rglob("*.png"))[0])
    expect(page.locator(".chance").first).to_have_text("100 % same class")
    expect(page.locator(".chance").nth(1)).not_to_have_text("100 % same class")


def test_images_are_added_and_deleted(
    browser: Browser, service: Running, http: httpx.Client, tmp_path: Path, noise: Callable[[int, str], Path]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    label = '<b onclick="hacked = 1">noise</b>'
    with opened(browser, service.url) as page:
        give(page, READER)
        expect(page.locator(".remove").first).to_be_hidden()
        open_panel(page, "Add")
        page.get_by_role("button", name="Enter the write key").click()
        give(page, "no write key of this service")
        page.locator("#add-files").set_input_files(
            [noise(SMALL, "1.png"), noise(SMALL, "2.png"), tmp_path / "broken.png"]
        )
        page.locator("#add-label").fill(label)
        page.locator("#add-submit").click()
        said = refusal("DELETE", f"{service.url}/items/1", headers=bearer("no write key of this service"))
        expect(page.locator("#key-reason")).to_have_text(f"A key is needed: {said}")
        give(page, WRITER)
        expect(page.locator("#add-note")).to_have_text("2 images added, 1 refused")
        expect(page.locator("#add-refused li")).to_contain_text(["broken.png"])
        expect(page.locator(".card .label")).to_have_text([label.split("/")[-1]] * 2)
        expect(page.locator("#facts")).to_contain_text("26 images")
        page.locator(".remove").first.click()
        expect(page.locator("#confirm-question")).to_contain_text(label)
        expect(page.get_by_role("button", name="Keep it")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#confirm")).to_be_hidden()
        expect(page.locator(".card")).to_have_count(2)
        for left in (1, 0):
            page.locator(".remove").first.click()
            page.locator("#confirm").get_by_role("button", name="Delete").click()
            expect(page.locator(".card")).to_have_count(left)
        expect(page.locator("#facts")).to_contain_text("24 images")
        page.get_by_role("button", name="Forget the key").click()
        expect(page.locator("#add-form")).to_be_hidden()


def send(page: Page, files: list[Path]) -> list[int]:
    """Add the files; return the statuses of the answers."""
    statuses: list[int] = []

    def listen(response: Response) -> None:
        if response.request.method == "POST" and response.url.endswith("/items"):
            statuses.append(response.status)

    if page.locator("#add").is_hidden():
        open_panel(page, "Add")
    page.on("response", listen)
    page.locator("#add-files").set_input_files(files)
    page.locator("#add-submit").click()
    expect(page.locator("#add-note")).to_have_text(re.compile("added"))
    expect(page.locator("#add-submit")).to_be_enabled()
    return statuses


def test_images_are_grouped_by_bytes_and_a_large_one_stops_no_other(
    page: Page, noise: Callable[[int, str], Path]
) -> None:
    files = [noise(HALF, f"{number}.png") for number in range(4)]
    assert MAX_BODY / 2 < files[0].stat().st_size < MAX_BODY
    statuses = send(page, [*files[:2], noise(OVER, "over.png"), *files[2:]])
    expect(page.locator("#add-note")).to_have_text("4 images added, 1 refused")
    expect(page.locator("#add-refused li")).to_have_text([re.compile(r"^over\.png: Too large: ")])
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator(".card")).to_have_count(4)
    assert statuses == [201, 201, 413, 201, 201]


def test_an_image_of_too_many_pixels_that_is_alone_in_its_request_is_named(
    page: Page, tmp_path: Path, noise: Callable[[int, str], Path]
) -> None:
    Image.new("RGB", (1000, 600)).save(tmp_path / "wide.png")
    files = [noise(SMALL, f"{number}.png") for number in range(4)]
    assert send(page, [*files, tmp_path / "wide.png"]) == [201, 413]
    expect(page.locator("#add-note")).to_have_text("4 images added, 1 refused")
    expect(page.locator("#add-refused li")).to_have_text([re.compile(r"^wide\.png: Too large: .*1000 x 600")])


def test_where_all_images_are_bad_each_one_has_its_reason(page: Page, tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_bytes(b"this is no image")
    Image.new("RGB", (1000, 600)).save(tmp_path / "wide.png")
    reasons = [re.compile(r"^notes\.png: .+"), re.compile(r"^wide\.png: .*1000 x 600")]
    for error in ({"code": "unreadable_image", "message": "None of them can be read."}, None):  # of all images
        page.evaluate(
            """(error) => {
                window.realFetch ??= window.fetch;
                window.fetch = async (...asked) => {
                    const answer = await window.realFetch(...asked);
                    if (answer.status !== 422) return answer;
                    return new Response(JSON.stringify({ ...(await answer.json()), error }), { status: 422 });
                };
            }""",
            error,
        )
        assert send(page, [tmp_path / "notes.png", tmp_path / "wide.png"]) == [422]
        expect(page.locator("#add-note")).to_have_text("0 images added, 2 refused")
        expect(page.locator("#add-refused li")).to_have_text(reasons)


def test_images_that_are_refused_together_are_sent_one_by_one(page: Page, noise: Callable[[int, str], Path]) -> None:
    asked: list[Route] = []

    def fail_once(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.fulfill(status=500, json={"error": {"code": "internal_error", "message": "It failed."}})
        elif len(asked) == 3:
            route.fulfill(status=413, body="<h1>Request Entity Too Large</h1>")  # as a proxy in between says it
        else:
            route.continue_()

    page.route("**/items", fail_once)
    statuses = send(page, [noise(SMALL, f"{number}.png") for number in range(5)])
    assert statuses == [500, 201, 413, 201, 201, 201]
    expect(page.locator("#add-note")).to_have_text("4 images added, 1 refused")
    expect(page.locator("#add-refused li")).to_have_text(["1.png: Too large: The server answered with status 413."])


@pytest.mark.parametrize(("status", "said"), [(403, "Not allowed: Said."), (429, "Too busy: Said.")])
def test_a_refusal_that_concerns_all_says_what_was_added_before(
    page: Page, noise: Callable[[int, str], Path], status: int, said: str
) -> None:
    asked: list[Route] = []

    def refuse_second(route: Route) -> None:
        asked.append(route)
        if len(asked) == 2:
            route.fulfill(status=status, json={"error": {"code": "some", "message": "Said."}})
        else:
            route.continue_()

    page.route("**/items", refuse_second)
    files = [noise(SMALL, f"{number}.png") for number in range(9)]
    assert send(page, files) == [201, status]
    expect(page.locator("#add-note")).to_have_text("4 images added, 5 not sent")
    expect(page.get_by_role("alert")).to_have_text(said)
    expect(page.locator(".card")).to_have_count(4)
    page.locator("#add-submit").click()  # they are still chosen
    expect(page.locator("#add-note")).to_have_text("5 images added, 4 existed")


def test_a_service_without_write_keys_says_so(
    browser: Browser, server: Running, noise: Callable[[int, str], Path]
) -> None:
    with opened(browser, server.url) as page:
        open_panel(page, "Add")
        page.get_by_role("button", name="Enter the write key").click()
        give(page, WRITER)
        page.locator("#add-files").set_input_files(noise(SMALL, "1.png"))
        page.locator("#add-submit").click()
        said = refusal("DELETE", f"{server.url}/items/1", headers=bearer(WRITER))
        expect(page.get_by_role("alert")).to_have_text(f"Not allowed: {said}")


def test_an_existing_image_with_another_label_is_reported(page: Page, http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "known.png").write_bytes(toys.query(3))
    with (tmp_path / "known.png").open("rb") as file:
        item = http.post("/items", files={"image": file}, data={"label": "old"}).json()["items"][0]["id"]
    open_panel(page, "Add")
    for update, said, label in ((False, "it was not changed", "old"), (True, "it has the new label now", "new")):
        page.locator("#add-files").set_input_files(tmp_path / "known.png")
        page.locator("#add-label").fill("new")
        page.locator("#add-update").set_checked(update)
        page.locator("#add-submit").click()
        expect(page.locator("#add-differing li")).to_have_text(
            f"known.png: exists as item {item} with label old; {said}"
        )
        assert http.get(f"/items/{item}").json()["label"] == label


def test_what_was_assumed_about_an_added_file_is_shown(
    page: Page, noise: Callable[[int, str], Path], tmp_path: Path
) -> None:
    Image.fromarray(np.arange(900, dtype=np.uint16).reshape(30, 30)).save(tmp_path / "dark.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    open_panel(page, "Add")
    send(page, [tmp_path / "bad.png", noise(SMALL, "plain.png"), tmp_path / "dark.png"])
    expect(page.locator("#add-assumed li")).to_have_count(1)
    expect(page.locator("#add-assumed li")).to_contain_text("dark.png: ")
    send(page, [noise(SMALL, "2.png")])
    expect(page.locator("#add-assumed li")).to_have_count(0)


def test_an_image_is_added_under_a_key_which_is_shown(
    page: Page, http: httpx.Client, noise: Callable[[int, str], Path]
) -> None:
    key, first, second = "cam-1/<i>0001</i>", noise(SMALL, "1.png"), noise(SMALL, "2.png")
    open_panel(page, "Add")
    page.locator("#add-key").fill(key)
    page.locator("#add-files").set_input_files([first, second])
    page.locator("#add-submit").click()
    expect(page.get_by_role("alert")).to_contain_text("a single image")
    assert http.get("/stats").json()["items"] == 24
    assert send(page, [first]) == [201]
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#add-key")).to_have_value("")
    item = http.get(f"/items/by-key/{key}").json()["id"]
    for _ in range(2):  # among the added images, and among the results of a search
        expect(card(page, item)).to_contain_text(key)
        expect(card(page, item)).to_have_attribute("aria-label", re.compile(re.escape(f"key {key}")))
        card(page, item).locator("xpath=..").get_by_role("button", name="Enlarge").click()
        expect(page.locator("#viewer-facts dt", has_text="Key")).to_have_count(1)
        expect(page.locator("#viewer-facts")).to_contain_text(f"Key{key}")
        page.keyboard.press("Escape")
        page.locator("#file").set_input_files(first)
        found(page)
    page.locator("#add-key").fill(key)
    assert send(page, [second]) == [409]
    with second.open("rb") as file:
        said = http.post("/items", files={"image": file}, data={"key": key}).json()["error"]["message"]
    expect(page.locator("#add-refused li")).to_have_text(f"2.png: Key taken: {said}")
    assert http.get(f"/items/by-key/{key}").json()["id"] == item


def search(page: Page, item: int) -> None:
    card(page, item).click()
    expect(page.locator(".card")).to_have_count(23)
    found(page)


def test_a_label_is_edited_and_shown_in_words(page: Page, http: httpx.Client) -> None:
    search(page, 7)
    likeness = card(page, 11).locator(".likeness").inner_text()
    page.get_by_role("button", name="Edit blue checks, item 11").click()
    expect(page.locator("#edit-title")).to_contain_text("Label of item 11")
    expect(page.locator("#edit-label")).to_have_value("blue checks")
    page.keyboard.press("Escape")
    expect(page.locator("#edit")).to_be_hidden()
    for label, shown in (('<b onclick="hacked = 1">new</b>', "b>"), ("Birds/016.Painted_Bunting", "Painted Bunting")):
        card(page, 11).locator("xpath=..").locator(".edit").click()
        page.locator("#edit-label").fill(label)
        page.keyboard.press("Enter")
        expect(card(page, 11).locator(".label")).to_have_text(shown)  # the last part of a path of labels
        expect(page.locator("#note")).to_contain_text(f"Item 11 now has the label {label}")
        assert http.get("/items/11").json()["label"] == label
    assert card(page, 11).locator(".likeness").inner_text() == likeness
    expect(card(page, 11).locator(".folder")).to_have_text("Birds")
    expect(card(page, 11)).to_have_attribute("title", re.compile(r"Birds/016\.Painted_Bunting\n"))
    page.locator("#filters summary").click()
    chip = page.locator("#chips .chip", has_text="Birds / Painted Bunting")
    expect(chip).to_have_attribute("title", "Birds/016.Painted_Bunting")
    with page.expect_request(re.compile(r"label=Birds%2F016\.Painted_Bunting")):
        page.locator("#label").fill("birds / painted bunting")
        page.locator("#label").press("Enter")
    expect(chip).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Clear all").click()
    edit = card(page, 11).locator("xpath=..").locator(".edit")
    edit.click()
    page.locator("#edit-label").fill("")
    page.get_by_role("button", name="Save").click()
    expect(card(page, 11).locator(".label")).to_have_text("no label")
    expect(edit).to_be_focused()
    http.patch("/items/11", json={"label": "blue checks"}).raise_for_status()


def test_metadata_are_edited_and_changes_of_others_stay(page: Page, http: httpx.Client) -> None:
    before = {"price": 9.5, "size": {"w": 1, "h": 2}, "tags": ["a"], "big": 2**62}
    http.patch("/items/11", json={"metadata": before, "replace": True}).raise_for_status()
    search(page, 7)
    edit, text = card(page, 11).locator("xpath=..").locator(".edit"), page.locator("#edit-metadata")
    edit.click()
    expect(text).not_to_have_value("")
    assert json.loads(text.input_value()).keys() == before.keys()
    text.fill("{no object")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#edit")).to_be_visible()
    http.patch("/items/11", json={"metadata": {"stock": 3}}).raise_for_status()  # by somebody else, meanwhile
    text.fill('{"price": 12, "size": {"w": 1, "d": 4}, "big": 4611686018427388000, "new": "<b>x</b>"}')
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#note")).to_have_text("Item 11 now has other metadata")
    expected = {"price": 12, "size": {"w": 1, "d": 4}, "big": 2**62, "new": "<b>x</b>", "stock": 3}
    assert http.get("/items/11").json()["metadata"] == expected
    edit.click()
    with page.expect_request(lambda request: request.method == "PATCH") as sent:
        page.locator("#edit-label").fill("other")
        page.locator("#edit-label").press("Enter")
    assert sent.value.post_data_json == {"label": "other"}
    expect(page.locator("#note")).to_contain_text("other")
    http.patch("/items/11?replace=true", json={"label": "blue checks", "metadata": {}}).raise_for_status()


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
    page.locator("li").filter(has=page.locator(".card")).get_by_role("button", name="Enlarge").click()
    expect(page.locator("#viewer-facts")).to_contain_text("year1909")
    page.keyboard.press("Escape")
    page.locator("#metadata-key").fill("colour")
    page.locator("#metadata-value").fill("red")
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_have_count(0)
    expect(page.locator("#nothing")).to_contain_text("No image has all of these values.")
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


def test_measuring_shows_the_metrics_and_how_good_the_probabilities_were(page: Page, http: httpx.Client) -> None:
    open_panel(page, "Model")
    expect(page.locator("#model-facts")).to_contain_text("toy-pool")
    expect(page.locator("#calibration svg .line")).to_be_visible()
    with page.expect_response(lambda answer: answer.request.method == "POST" and answer.url.endswith("/evaluate")):
        page.get_by_role("button", name="Measure now").click()
    expect(page.locator("#calibration figcaption").first).to_contain_text("neighbours (the first 23")
    expect(page.locator("#model-note")).to_contain_text("Measured")
    measured = http.get("/evaluate").json()
    expect(page.locator("#steps-body tr")).to_have_count(len(measured["steps"]))
    shown = page.locator("#steps-body tr").last.locator("td").first.inner_text()
    assert shown.startswith(f"{measured['steps'][-1]['metrics']['recall_at_1']:.4f}")
    curve = page.locator("#calibration polyline").get_attribute("points") or ""
    heights = [float(point.split(",")[1]) for point in curve.split()]
    assert heights == sorted(heights, reverse=True)  # the curve rises, and y grows downwards
    picture = page.locator("#calibration svg").last
    dots = picture.locator("circle").evaluate_all(
        "all => all.map((one) => [one.cx.baseVal.value, one.cy.baseVal.value])"
    )
    (x0, y0), (x1, y1) = picture.locator(".even").evaluate(
        "one => [[one.x1.baseVal.value, one.y1.baseVal.value], [one.x2.baseVal.value, one.y2.baseVal.value]]"
    )
    for (x, y), one in zip(dots, measured["reliability"], strict=True):
        assert (x - x0) / (x1 - x0) == pytest.approx(one["probability"], abs=1e-3)
        assert (y - y0) / (y1 - y0) == pytest.approx(one["share"], abs=1e-3)
    assert page.locator("#calibration text").evaluate_all(OUTSIDE) == []


def test_keys_are_forgotten(page: Page) -> None:
    page.get_by_role("button", name="Forget keys").click()
    expect(page.locator("#key-title")).to_have_text("This gallery needs a read key")
    expect(page.locator(".card")).to_have_count(0)
    assert page.evaluate("() => [sessionStorage.length, document.cookie]") == [0, ""]
    give(page, READER)
    expect(page.locator(".card")).to_have_count(24)
    expect(page.get_by_role("button", name="Forget keys")).to_be_visible()
    expect(page.locator(".edit").first).to_be_hidden()


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_every_part_of_the_page_is_accessible(
    browser: Browser, service: Running, http: httpx.Client, tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    http.patch("/items/1", json={"key": "cam-1/0001/" + "long" * 20}).raise_for_status()
    with opened(browser, service.url, size, scheme, touch=size != DESKTOP) as page:
        wrong = {"key": complaints(page)}
        enter(page)
        wrong["start"] = complaints(page)
        page.locator("#filters summary").click()
        expect(page.locator("#values .chip").first).to_be_visible()
        wrong["filters"] = complaints(page)
        page.locator("#filters summary").click()
        for name in ("Map", "Model", "Add"):
            open_panel(page, name)
            wrong[name] = complaints(page)
        page.locator("#add .close").click()
        page.locator(".enlarge").first.click()
        wrong["enlarged"] = complaints(page)
        page.keyboard.press("Escape")
        for button, dialog in ((".edit", "#edit"), (".remove", "#confirm")):
            page.locator(button).first.click()
            expect(page.locator(dialog)).to_be_visible()
            wrong[dialog] = complaints(page)
            page.keyboard.press("Escape")
        (tmp_path / "picked.png").write_bytes(toys.query(1))
        page.set_input_files("#file", tmp_path / "picked.png")
        page.get_by_role("button", name="Crop").click()
        expect(page.locator("#found")).to_have_attribute("aria-busy", "false")  # results to be replaced are paler
        wrong["results and crop"] = complaints(page)
        page.route("**/search?*", lambda route: route.abort())
        page.locator(".card").first.click()
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
        wrong["error"] = complaints(page)
    assert {place: what for place, what in wrong.items() if what} == {}
