"""Items are images at places: shared pictures, edited files, several folders, removals, and results by group."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import zoo
from serving.gallery import NewItem, VectorGallery
from serving.gallery.types import MAX_ALSO
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.test_gallery import CARD, unit_rows
from tests.serving.running import local_client
from zoo.errors import UsageError
from zoo.models.load import Embedder

Capture = pytest.CaptureFixture[str]
KEY = "k" * 20


def picture(number: int, edited: bool = False) -> bytes:
    """Return an image file; an edited one has the same pixels and other bytes."""
    pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), np.uint8)
    image = Image.fromarray(pixels)
    return toys.encoded(image) + (b"edited" if edited else b"")


def write(folder: Path, files: dict[str, int], edited: bool = False) -> Path:
    for name, number in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture(number, edited))
    return folder


def index(model: Embedder, folder: Path, gallery: Path, *words: object, status: int = 0) -> None:
    assert run_here("index", model.folder, folder, "--out", gallery, *words) == status


def items_of(gallery: Path) -> list[dict[str, Any]]:
    """Return what is known of each item, without its image."""
    with VectorGallery.open(gallery) as opened:
        return [
            {name: value for name, value in asdict(item).items() if name not in ("content_sha256", "change")}
            for item in opened.store.items(limit=-1)
        ]


def described(gallery: Path) -> list[dict[str, Any]]:
    """Give every second item a label and metadata by hand, and some a key; return what is known of the items."""
    with VectorGallery.open(gallery) as opened:
        for number, item in enumerate(opened.store.items(limit=-1)):
            if number % 2:
                opened.store.describe(
                    item.id, f"by hand {number}", {"n": number}, f"K{number}" if number % 4 == 1 else None
                )
    return items_of(gallery)


FILES = {f"{name}/{number}.png": 10 * row + number for row, name in enumerate("ab") for number in range(4)}


def test_edited_files_keep_what_is_known_of_them_in_every_nightly_run(model: Embedder, tmp_path: Path) -> None:
    folder, gallery = write(tmp_path / "pictures", FILES), tmp_path / "gallery"
    index(model, folder, gallery)
    known = described(gallery)
    write(folder, FILES, edited=True)
    for _ in range(2):
        index(model, folder, gallery, "--prune", "--yes")
        assert items_of(gallery) == known
    with VectorGallery.open(gallery) as opened:
        (item,) = (item for item in opened.store.items(limit=-1) if item.source == "a/0.png")
        assert opened.store.item_of_content(item.content_sha256) == item
        assert zoo.Gallery(gallery, model).search(folder / "a/0.png", k=1)[0].id == item.id


def test_a_file_that_was_moved_and_edited_at_once_is_the_same_item(model: Embedder, tmp_path: Path) -> None:
    folder, gallery = write(tmp_path / "pictures", FILES), tmp_path / "gallery"
    index(model, folder, gallery)
    known = described(gallery)
    shutil.rmtree(folder / "a")
    moved = {name.replace("a/", "c/"): number for name, number in FILES.items() if name.startswith("a/")}
    other, copied = {"c/3.png": 99}, {"d/0.png": FILES["b/0.png"]}
    write(folder, moved | other | copied, edited=True)
    index(model, folder, gallery, "--prune", "--yes")
    now = {item["source"]: item for item in items_of(gallery)}
    for item in known[:3]:
        source = str(item["source"]).replace("a/", "c/")
        label = "c" if item["label"] == "a" else item["label"]
        assert now.pop(source) == {**item, "source": source, "label": label}
    first = max(item["id"] for item in known) + 1
    assert sorted((item["id"], item["source"]) for item in now.values() if item["id"] >= first) == [
        (first, "c/3.png"),
        (first + 1, "d/0.png"),
    ], "another picture of the name, and a copy beside its original, are items of their own"
    assert [now[item["source"]] for item in known[4:]] == known[4:]


@pytest.mark.parametrize("how", ["renamed", "linked", "imported", "restored", "copied"])
def test_a_folder_that_is_elsewhere_now_is_known_though_its_files_were_edited(
    model: Embedder, tmp_path: Path, how: str
) -> None:
    folder, gallery = write(tmp_path / "pictures", FILES), tmp_path / "gallery"
    index(model, folder, gallery)
    known, there = described(gallery), tmp_path / "new" / "place"
    there.parent.mkdir()
    folder.rename(there)
    if how == "linked":
        folder.symlink_to(there)
    if how == "imported":
        run_here("gallery export", gallery, tmp_path / "export")
        run_here("gallery import", tmp_path / "export", tmp_path / "imported")
        gallery = tmp_path / "imported"
    if how == "restored":
        run_here("gallery backup", gallery, tmp_path / "copy")
        run_here("gallery restore", tmp_path / "copy", tmp_path / "restored")
        gallery = tmp_path / "restored"
    if how == "copied":
        run_here("gallery backend", gallery, tmp_path / "copied")
        gallery = tmp_path / "copied"
    write(there, FILES, edited=True)
    index(model, there, gallery, "--prune", "--yes")
    assert items_of(gallery) == known


def test_equal_names_in_two_folders_are_two_places(model: Embedder, tmp_path: Path) -> None:
    first, second = write(tmp_path / "first", {"1.png": 1}), write(tmp_path / "second", {"1.png": 2})
    for _ in range(2):
        for folder in (first, second):
            index(model, folder, tmp_path / "gallery")
    with VectorGallery.open(tmp_path / "gallery") as gallery:
        assert [item.source for item in gallery.store.items()] == ["1.png", "1.png"]
        for number in (1, 2):
            (hit,) = gallery.search(model.embed([picture(number)]), 1)[0]
            assert (hit.id, hit.also) == (number, ())


def test_an_image_of_a_client_is_not_the_file_of_its_name(model: Embedder, tmp_path: Path) -> None:
    folder, gallery = write(tmp_path / "pictures", {"1.png": 1}), tmp_path / "gallery"
    index(model, folder, gallery)
    with local_client(gallery, KEY) as client:
        form = {"label": "of a client"}
        (sent,) = client.post("/items", files={"image": ("2.png", picture(5))}, data=form).json()["items"]
        same = client.post("/items", files={"image": ("other.png", picture(5))}).json()
        assert (same["new"], same["items"][0]["id"]) == (0, sent["id"]), "an image without a place is added once"
    write(folder, {"2.png": 2})
    index(model, folder, gallery)
    sources = [(item["source"], item["label"]) for item in items_of(gallery)]
    assert sources == [("1.png", None), ("2.png", "of a client"), ("2.png", None)]
    write(folder, {"sent.png": 5})
    index(model, folder, gallery)
    assert items_of(gallery)[1]["source"] == "sent.png", "the file of a client's image is its place from then on"
    assert items_of(gallery)[1]["label"] == "of a client"


def shop(tmp_path: Path, model: Embedder) -> Path:
    """Index a shop in which two products share a picture, and an unlisted copy of another comes first."""
    folder = write(tmp_path / "shop", {"A/upload.png": 0, **{f"Z/p{number}.png": number for number in range(4)}})
    table = tmp_path / "shop.csv"
    table.write_text(
        "path,key,label,price\nZ/p0.png,SKU-P,lily,9.99\nZ/p1.png,SKU-Q,lily,8.88\n"
        "Z/p2.png,POT-1,pot,5\nZ/p2.png,POT-2,pot,6\nZ/p3.png,POT-3,pot,7\n"
    )
    for _ in range(2):
        index(model, folder, tmp_path / "gallery", "--labels", table)
    return tmp_path / "gallery"


def test_products_that_share_a_picture_are_items_and_one_result(
    model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    gallery = shop(tmp_path, model)
    items = {item["key"]: (item["label"], item["metadata"]) for item in items_of(gallery)}
    assert items == {
        "SKU-P": ("lily", {"price": 9.99}), "SKU-Q": ("lily", {"price": 8.88}), "POT-1": ("pot", {"price": 5.0}),
        "POT-2": ("pot", {"price": 6.0}), "POT-3": ("pot", {"price": 7.0}), None: (None, {}),
    }  # fmt: skip
    with zoo.Gallery(gallery, model) as opened:
        hits = opened.search(picture(2), k=10)
        assert len(hits) == 4, "one result per picture"
        assert (hits[0].key, [other.key for other in hits[0].also]) == ("POT-1", ["POT-2"])
        assert next(hit for hit in hits if hit.key == "SKU-P").also[0].source == "A/upload.png"
        dear = opened.search(picture(2), k=10, where={"price": {"gt": 5.5, "lt": 6.5}})
        assert [(hit.key, hit.also) for hit in dear] == [("POT-2", ())], "only what the filter lets through"
    with local_client(gallery) as client:
        answer = client.post("/search?k=10", files={"image": picture(2)}).json()["results"]
        assert [(hit["key"], [other["key"] for other in hit["also"]]) for hit in answer] == [
            (hit.key, [other.key for other in hit.also]) for hit in hits
        ]
        assert client.get("/items/by-key/SKU-P").json()["label"] == "lily"
    (tmp_path / "query.png").write_bytes(picture(2))
    capsys.readouterr()
    run_here("search", gallery, tmp_path / "query.png", "--json")
    told = json.loads(capsys.readouterr().out)["results"]
    assert [hit["also"] for hit in told] == [[asdict(other) for other in hit.also] for hit in hits]
    run_here("search", gallery, tmp_path / "query.png")
    assert "POT-2" in capsys.readouterr().out


def test_a_picture_that_thousands_of_products_share_is_one_result(tmp_path: Path) -> None:
    with VectorGallery.create(tmp_path / "gallery", CARD, "toy") as gallery:
        (vector,) = unit_rows(1)
        item = NewItem("none.png", vector, toys.thumbnail(1), "a" * 64)
        gallery.put([replace(item, key=f"K{number}", label="x" if number == 1500 else None) for number in range(2000)])
        (hit,) = gallery.search(vector[None], 10)[0]
        assert (hit.key, len(hit.also)) == ("K1500", MAX_ALSO), "the best described one, and not all others"
        (hit,) = gallery.search(vector[None], 10, exclude_ids=[hit.id])[0]
        assert (hit.key, gallery.store.count()) == ("K0", 2000)


def nearest_of_groups(hits: Iterable[Any], key: str, items: dict[int, dict[str, Any]]) -> list[int]:
    """Return the first item of each value, by a plain loop over all items in the order of the hits."""
    chosen: dict[str, int] = {}
    for hit in hits:
        shown = [hit.id, *(other.id for other in hit.also)]
        values = {item: items[item]["label"] if key == "label" else items[item]["metadata"].get(key) for item in shown}
        for item in shown:
            if values[item] is not None:
                chosen.setdefault(repr(values[item]), item)
        if all(value is None for value in values.values()):
            chosen[f"image {hit.id}"] = hit.id
    return list(chosen.values())


@pytest.mark.parametrize("key", ["label", "price", "colour", "no such key"])
def test_results_are_grouped_by_label_or_metadata(model: Embedder, tmp_path: Path, key: str, capsys: Capture) -> None:
    folder, gallery = tmp_path / "pictures", tmp_path / "gallery"
    rng = np.random.default_rng(0)
    write(
        folder,
        {f"{number}.png": number for number in range(60)} | {f"copy {number}.png": number for number in range(9)},
    )
    index(model, folder, gallery)
    with VectorGallery.open(gallery) as opened:
        for item in opened.store.items(limit=-1):
            label, price = (None, "x", "y")[rng.integers(3)], int(rng.integers(6))
            metadata = {"price": price, **({"colour": ["red", "blue"][price % 2]} if rng.random() < 0.4 else {})}
            opened.store.describe(item.id, label, metadata)
    items = {item["id"]: item for item in items_of(gallery)}
    with zoo.Gallery(gallery, model) as opened:
        everything = opened.search(picture(3), k=200)
        expected = nearest_of_groups(everything, key, items)
        for k in (1, 4, 200):
            assert [hit.id for hit in opened.search(picture(3), k=k, group_by=key)] == expected[:k]
    with local_client(gallery) as client:
        parameters = [{"k": 3, "offset": offset, "group_by": key} for offset in (0, 3)]
        pages = [client.post("/search", params=page, files={"image": picture(3)}).json() for page in parameters]
        assert [hit["id"] for page in pages for hit in page["results"]] == expected[:6]
        assert bool(pages[0]["notes"]) == (key == "no such key")
    (tmp_path / "query.png").write_bytes(picture(3))
    capsys.readouterr()
    run_here("search", gallery, tmp_path / "query.png", "-k", 4, "--group-by", key, "--json")
    assert [hit["id"] for hit in json.loads(capsys.readouterr().out)["results"]] == expected[:4]


def test_removed_items_stay_out_until_they_are_wanted_again(model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    gallery = shop(tmp_path, model)
    folder, labels = tmp_path / "shop", ("--labels", tmp_path / "shop.csv")
    run_here("gallery remove", gallery, "--key", "POT-2")
    with local_client(gallery, KEY) as client:
        (first,) = (item["id"] for item in items_of(gallery) if item["key"] == "SKU-Q")
        client.delete(f"/items/{first}").raise_for_status()
        client.delete("/items/by-key/POT-3").raise_for_status()
    (folder / "Z/p1.png").rename(folder / "Z/moved.png")
    write(folder, {"Z/p3.png": 3}, edited=True)
    for _ in range(2):
        capsys.readouterr()
        index(model, folder, gallery, *labels, "--prune", "--yes", "--json")
        told = json.loads(capsys.readouterr().out)
        assert sorted(told["stay_out"]) == ["Z/moved.png", "Z/p2.png", "Z/p3.png"]
        assert {item["key"] for item in items_of(gallery)} == {"SKU-P", "POT-1", None}
    index(model, folder, gallery, *labels)
    assert "--readd" in capsys.readouterr().out
    run_here("gallery add", gallery, folder / "Z/moved.png", "--label", "lily")
    assert "Z/moved.png" in {item["source"] for item in items_of(gallery)}, "who names a file wants it"
    index(model, folder, gallery, *labels, "--readd")
    assert {item["key"] for item in items_of(gallery)} == {"SKU-P", "POT-1", "POT-2", "POT-3", None}
    index(model, folder, gallery, *labels)
    assert len(items_of(gallery)) == 6, "and they stay"


def test_an_item_whose_file_is_gone_is_pruned_and_comes_back_with_its_file(model: Embedder, tmp_path: Path) -> None:
    folder, gallery = write(tmp_path / "pictures", FILES), tmp_path / "gallery"
    index(model, folder, gallery)
    shutil.move(folder / "a", tmp_path / "away")
    (folder / "b/0.png").rename(tmp_path / "0.png")
    shutil.move(tmp_path / "away", folder / "a")
    index(model, folder, gallery, "--prune", "--yes")
    assert len(items_of(gallery)) == 7
    (tmp_path / "0.png").rename(folder / "b/0.png")
    index(model, folder, gallery, "--prune", "--yes")
    assert len(items_of(gallery)) == 8, "nobody has removed the item, only its file was away"


YEARS = "path,year,stock,note\n" + "".join(
    f"{number}.png,{year},{stock},{note}\n"
    for number, (year, stock, note) in enumerate(
        [("1908", "TRUE", "ü"), (" 1912", "FALSE", ""), ("1950", "TRUE", ""), ("ca. 1960", "TRUE", ""),
         ("NaN", "FALSE", ""), ("1.95e3", "TRUE", "")]
    )
)  # fmt: skip


def test_columns_are_what_most_of_their_cells_are_and_the_others_are_named(
    model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    folder, table = write(tmp_path / "years", {f"{number}.png": number for number in range(6)}), tmp_path / "years.csv"
    table.write_text(YEARS)

    def metadata(gallery: str) -> dict[str, dict[str, Any]]:
        return {item["source"]: item["metadata"] for item in items_of(tmp_path / gallery)}

    index(model, folder, tmp_path / "guessed", "--labels", table)
    said = capsys.readouterr().out
    assert "'ca. 1960' in line 5" in said
    assert "--column year=text" in said
    found = metadata("guessed")
    assert [found[f"{number}.png"].get("year") for number in range(6)] == [1908, 1912, 1950, "ca. 1960", None, 1950]
    assert [found[f"{number}.png"]["stock"] for number in range(6)] == [True, False, True, True, False, True]
    run_here("gallery list", tmp_path / "guessed", "--where", '{"year": {"gte": 1900, "lt": 1920}}', "--json")
    assert json.loads(capsys.readouterr().out)["total"] == 2
    index(model, folder, tmp_path / "texts", "--labels", table, "--column", "year=text")
    assert [metadata("texts")[f"{number}.png"]["year"] for number in (1, 4)] == [" 1912", "NaN"]
    table.write_bytes(YEARS.replace(",", ";").encode("utf-16"))
    index(model, folder, tmp_path / "other", "--labels", table, "--delimiter", ";", "--encoding", "utf-16")
    assert metadata("other") == found
    filled = zoo.index(model, folder, tmp_path / "python", labels=table, delimiter=";", encoding="utf-16")
    assert filled.report.columns[0].misfits == ((5, "ca. 1960"),)
    assert metadata("python") == found


def test_an_identifier_that_makes_a_column_of_numbers_a_text_is_named(model: Embedder, tmp_path: Path) -> None:
    folder, table = write(tmp_path / "p", {f"{number}.png": number for number in range(4)}), tmp_path / "prices.csv"
    table.write_text("path,price,code\n0.png,9.99,017\n1.png,05,018\n2.png,8.88,119\n3.png,7,a\n")
    price, code = zoo.index(model, folder, tmp_path / "g", labels=table).report.columns
    assert (price.kind, price.identifier, code.kind, code.identifier) == ("text", (3, "05"), "text", None)
    price, _ = zoo.index(model, folder, tmp_path / "g", labels=table, columns={"price": "number"}).report.columns
    assert (price.kind, price.identifier) == ("number", None)
    assert [item["metadata"]["price"] for item in items_of(tmp_path / "g")] == [9.99, 5, 8.88, 7]


def test_fields_that_no_item_has_are_named(model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    folder, gallery = write(tmp_path / "f", {f"{number}.png": number for number in range(3)}), tmp_path / "g"
    (tmp_path / "t.csv").write_text("image,price\n0.png,3\n1.png,4\n")
    index(model, folder, gallery, "--labels", tmp_path / "t.csv")
    (tmp_path / "query.png").write_bytes(picture(3))
    capsys.readouterr()
    for fields, unknown in ((["price"], []), (["*"], []), (["price", "prise", "colour"], ["prise", "colour"])):
        words = [word for name in fields for word in ("--fields", name)]
        run_here("search", gallery, tmp_path / "query.png", *words)
        said = capsys.readouterr().err
        assert [name for name in ("prise", "colour") if repr(name) in said] == unknown
        with local_client(gallery) as client:
            answer = client.post("/search", params={"fields": fields}, files={"image": picture(3)}).json()
        assert len(answer["notes"]) == len(unknown)


def test_decimal_commas_stay_text_until_the_user_decides(model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    cells = ["1.250,00", "3,5", "-0,25", "1.250", "1.5", "12", "on request", "NaN"]
    folder, table = write(tmp_path / "shop", {f"{n}.png": n for n in range(len(cells))}), tmp_path / "shop.csv"
    table.write_text("image;price\n" + "".join(f"{n}.png;{cell}\n" for n, cell in enumerate(cells)))

    def prices(name: str, *words: str) -> tuple[list[Any], str]:
        capsys.readouterr()
        index(model, folder, tmp_path / name, "--labels", table, "--delimiter", ";", *words)
        values = {item["source"]: item["metadata"].get("price") for item in items_of(tmp_path / name)}
        return [values[f"{n}.png"] for n in range(len(cells))], capsys.readouterr().out

    found, said = prices("guessed")
    assert found == cells
    assert "--column price=decimal-comma" in said
    found, said = prices("decided", "--column", "price=decimal-comma")
    assert found == [1250.0, 3.5, -0.25, 1250.0, "1.5", 12.0, "on request", None]
    assert "'1.5' in line 6" in said
    assert "decimal-comma" not in said


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--delimiter", ";;"], "invalid-value"),
        (["--encoding", "latin-99"], "unknown-name"),
        (["--encoding", "utf-16"], "invalid-table"),
        (["--column", "year"], "invalid-value"),
        (["--column", "year=date"], "unknown-name"),
        (["--column", "yaer=text"], "unknown-name"),
    ],
)
def test_a_wrong_form_of_a_table_is_refused(model: Embedder, tmp_path: Path, words: list[str], code: str) -> None:
    folder, table = write(tmp_path / "years", {f"{number}.png": number for number in range(6)}), tmp_path / "years.csv"
    table.write_text(YEARS)
    with raises(UsageError, code):
        index(model, folder, tmp_path / "gallery", "--labels", table, *words)
    with raises(UsageError, "option-without-effect"):
        index(model, folder, tmp_path / "gallery", "--delimiter", ";")
    assert not (tmp_path / "gallery").exists()
