"""`zoo index`: images of a folder, labels, repeated runs, `--prune`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serving.gallery import VectorGallery
from serving.gallery.filters import Filter
from serving.gallery.image_files import find_images
from serving.gallery.indexing import index_folder
from serving.gallery.originals import Originals
from serving.gallery.query import SearchQuery
from serving.gallery.search import Searcher, SearchOptions
from serving.gallery.types import make_thumbnail, thumbnail_decode_side
from tests.commandline import run_here
from tests.raising import raises
from tests.serving import toys
from tests.serving.gallery.terminal import Terminal
from zoo.data.listing import other_kinds
from zoo.errors import DatasetError, GalleryError, ModelFolderError, ModelMismatchError, UsageError
from zoo.models.load import Embedder


def test_a_folder_becomes_a_gallery(model: Embedder, gallery_folder: Path, pictures: Path) -> None:
    files = sorted(path for path in pictures.rglob("*") if path.is_file())
    vectors = {path.relative_to(pictures).as_posix(): row for path, row in zip(files, model.embed(files), strict=True)}
    with VectorGallery.open(gallery_folder) as gallery:
        items = gallery.store.items(limit=100)
        assert len(items) == len(files) == len(toys.CLASSES) * toys.PER_CLASS
        for item in items:
            assert item.label == Path(item.source).parent.as_posix()
            assert item.content_sha256 == hashlib.sha256((pictures / item.source).read_bytes()).hexdigest()
            np.testing.assert_allclose(gallery.store.embedding(item.id), vectors[item.source], atol=1e-5)


def test_small_pictures_are_kept_pixel_by_pixel_and_large_ones_shrunk(gallery_folder: Path, pictures: Path) -> None:
    with VectorGallery.open(gallery_folder) as gallery:
        for item in gallery.store.items(0, 100, Filter(("green disc",))):
            thumbnail = gallery.store.thumbnail(item.id)
            with Image.open(BytesIO(thumbnail.data)) as shown, Image.open(pictures / item.source) as original:
                if item.source.endswith(".png"):
                    assert thumbnail.media_type == "image/png"
                    np.testing.assert_array_equal(np.asarray(shown), np.asarray(original))
                else:
                    assert (thumbnail.media_type, shown.size) == ("image/jpeg", (256, 256))


def test_thumbnails_carry_no_metadata() -> None:
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    out = BytesIO()
    Image.new("RGB", (300, 200)).save(out, "JPEG", exif=exif, comment=b"secret")
    thumbnail = make_thumbnail(Image.open(out))
    with Image.open(BytesIO(thumbnail.data)) as shown:
        assert shown.size == (256, 171)
        assert not shown.getexif()
        assert "comment" not in shown.info


@pytest.mark.parametrize(
    ("size", "side"), [((100, 60), 60), ((256, 200), 200), ((1024, 768), 192), ((768, 1024), 192), ((3000, 2), 1)]
)
def test_an_image_is_decoded_no_larger_than_its_thumbnail_needs(size: tuple[int, int], side: int) -> None:
    assert thumbnail_decode_side(size) == side


@pytest.mark.parametrize(
    ("size", "shown_size"), [((1024, 768), (256, 192)), ((768, 1024), (192, 256)), ((100, 60), (100, 60))]
)
def test_jpegs_decoded_small_have_whole_thumbnails(
    model: Embedder, tmp_path: Path, size: tuple[int, int], shown_size: tuple[int, int]
) -> None:
    (tmp_path / "in").mkdir()
    toys.picture(2, np.random.default_rng(0), side=64).resize(size).save(tmp_path / "in" / "a.jpg")
    index_folder(model, "toy", tmp_path / "in", tmp_path / "g")
    with VectorGallery.open(tmp_path / "g") as gallery, Image.open(BytesIO(gallery.store.thumbnail(1).data)) as shown:
        assert shown.size == shown_size
        np.testing.assert_allclose(gallery.store.embedding(1), model.embed(tmp_path / "in" / "a.jpg")[0], atol=1e-6)


def test_indexing_again_adds_only_what_is_new(model: Embedder, folder: Path, tmp_path: Path) -> None:
    first = index_folder(model, "toy", folder, tmp_path / "g", batch_size=7)
    assert (first.found, first.added, first.already_there, first.items) == (24, 24, 0, 24)
    toys.picture(0, np.random.default_rng(55)).save(folder / "new.png")
    shutil.copy(folder / "new.png", folder / "twin.png")
    again = index_folder(model, "toy", folder, tmp_path / "g", batch_size=7)
    assert (again.found, again.added, again.already_there, again.items) == (26, 2, 24, 26)
    assert again.copies == [("twin.png", "new.png")]
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert gallery.store.item(25).label is None
        assert gallery.store.item(25).source == "new.png"


def test_indexing_again_follows_the_folder(model: Embedder, folder: Path, tmp_path: Path) -> None:
    index_folder(model, "toy", folder, tmp_path / "g")
    image = (folder / "red stripes" / "0.png").read_bytes()
    (folder / "red stripes" / "0.png").rename(folder / "blue checks" / "moved.png")
    (folder / "red stripes" / "1.png").unlink()
    (folder / "green disc").rename(folder / "green")
    report = index_folder(model, "toy", folder, tmp_path / "g")
    assert (report.found, report.added, report.already_there, report.moved, report.items) == (23, 0, 23, 7, 24)
    assert report.not_in_folder == ["red stripes/1.png"]
    with VectorGallery.open(tmp_path / "g") as gallery:
        (hit,) = gallery.search(model.embed(image), 1)[0]
        assert (hit.source, hit.label) == ("blue checks/moved.png", "blue checks")
        assert [gallery.store.count(Filter((label,))) for label in ("red stripes", "green", "green disc")] == [5, 6, 0]
        assert len(gallery.search(model.embed(image), 100)[0]) == 24, "each item is found once"
    shutil.copy(folder / "blue checks" / "moved.png", folder / "twin.png")
    for added in (1, 0):
        report = index_folder(model, "toy", folder, tmp_path / "g")
        assert (report.added, report.already_there, report.moved) == (added, 24 - added, 0), "a copy is another item"


def test_files_of_other_kinds_are_counted(model: Embedder, folder: Path, tmp_path: Path) -> None:
    for name in ("a.svg", "red stripes/b.SVG", "labels.csv", "LICENCE", ".hidden.svg"):
        (folder / name).write_bytes(b"")
    report = index_folder(model, "toy", folder, tmp_path / "g")
    others = ["LICENCE", "a.svg", "labels.csv", "red stripes/b.SVG"]
    assert (report.found, [source for source, _ in report.other_files]) == (24, others)
    assert report.excluded == [(".hidden.svg", ".*")]
    assert other_kinds(report.other_files) == "2 .svg, 1 without a suffix, 1 .csv"
    labels = folder / "labels.csv"
    labels.write_text("path,label\n" + "".join(f"{one.source},x\n" for one in find_images(folder)[0]))
    for _ in range(2):  # neither the table that was named nor the gallery is an image left out
        within = index_folder(model, "toy", folder, folder / "g", labels=labels)
        assert [source for source, _ in within.other_files] == [name for name in others if name != "labels.csv"]
    assert other_kinds((f"a.{letter}", "") for letter in "abcdefg").endswith("1 .e, and 2 more")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "one.mov").write_bytes(b"")
    with raises(UsageError, "no-images", "one.mov"):
        index_folder(model, "toy", tmp_path / "none", tmp_path / "other")


def test_linked_folders_are_indexed_and_loops_are_not(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "linked").symlink_to(pictures / "green disc")
    (tmp_path / "top" / "loop").symlink_to(tmp_path / "top")
    report = index_folder(model, "toy", tmp_path / "top", tmp_path / "g", follow_links=True)
    assert (report.found, report.added) == (toys.PER_CLASS, toys.PER_CLASS)
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert gallery.store.count(Filter(("linked",))) == toys.PER_CLASS


def test_a_run_that_was_broken_off_is_taken_up(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = VectorGallery.add, []

    def break_off(self: VectorGallery, items: list) -> object:
        calls.append(len(items))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return add(self, items)

    monkeypatch.setattr(VectorGallery, "add", break_off)
    with pytest.raises(KeyboardInterrupt):
        index_folder(model, "toy", folder, tmp_path / "g", batch_size=5)
    monkeypatch.undo()
    report = index_folder(model, "toy", folder, tmp_path / "g", batch_size=5)
    assert (report.already_there, report.added, report.items) == (10, 14, 24)


def test_unreadable_images_are_left_out_and_listed(model: Embedder, folder: Path, tmp_path: Path) -> None:
    (folder / "empty.png").touch()
    (folder / "text.jpg").write_text("no image")
    (folder / "cut.png").write_bytes(toys.query(0)[:200])
    os.mkfifo(folder / "pipe.png")
    (folder / ".hidden.png").write_text("no image")
    (folder / "notes.txt").write_text("not looked at")
    report = index_folder(model, "toy", folder, tmp_path / "g")
    assert report.added == 24
    assert sorted(source for source, _ in report.unreadable) == ["cut.png", "empty.png", "text.jpg"]
    assert dict(report.unreadable)["empty.png"] == "the image is empty."


def test_file_names_of_any_bytes_are_stored(model: Embedder, folder: Path, tmp_path: Path) -> None:
    (folder / "red stripes" / "0.png").rename(folder / os.fsdecode(b"caf\xe9.png"))
    report = index_folder(model, "toy", folder, tmp_path / "g")
    assert report.unreadable == []
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert r"caf\xe9.png" in {item.source for item in gallery.store.items()}


def test_folders_without_usable_images_are_refused(model: Embedder, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with raises(UsageError, "no-images"):
        index_folder(model, "toy", tmp_path / "empty", tmp_path / "g")
    with raises(DatasetError, "not-found"):
        find_images(tmp_path / "nowhere")
    (tmp_path / "empty" / "bad.png").write_text("no image")
    with raises(GalleryError, "no-images"):
        index_folder(model, "toy", tmp_path / "empty", tmp_path / "g")
    with raises(UsageError, "invalid-value"):
        index_folder(model, "toy", tmp_path / "empty", tmp_path / "g", batch_size=0)
    assert not (tmp_path / "g").exists()


def test_labels_come_from_a_file(model: Embedder, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(
        "note,label,path\nx,red,red stripes/0.png\n,,./red stripes/1.png\n,none,nowhere.png\n", "utf-8-sig"
    )
    report = index_folder(model, "toy", folder, tmp_path / "g", labels=table)
    assert (report.added, report.unlabelled, report.labels_unused) == (24, 22, ["nowhere.png"])
    with VectorGallery.open(tmp_path / "g") as gallery:
        assert {item.source: item.label for item in gallery.store.items() if item.label} == {"red stripes/0.png": "red"}
    report = index_folder(model, "toy", folder, tmp_path / "g")
    assert (report.added, report.moved, report.kept) == (0, 0, 24), "who labels by a file does not mean the folders"
    report = index_folder(model, "toy", folder, tmp_path / "g", update=True)
    assert (report.added, report.moved, report.kept) == (0, 24, 0), "labels of the folders again"


def test_indexing_again_takes_no_label_away_that_somebody_gave(model: Embedder, folder: Path, tmp_path: Path) -> None:
    index_folder(model, "toy", folder, tmp_path / "g")
    source = "red stripes/0.png"
    with VectorGallery.open(tmp_path / "g") as gallery:
        corrected = next(item.id for item in gallery.store.items() if item.source == source)
        gallery.store.describe(corrected, label="by hand")

    def labels() -> dict[str, str | None]:
        with VectorGallery.open(tmp_path / "g") as gallery:
            return {item.source: item.label for item in gallery.store.items()}

    report = index_folder(model, "toy", folder, tmp_path / "g")
    assert (report.moved, report.kept, labels()[source]) == (0, 1, "by hand")
    (folder / source).rename(folder / "blue checks" / "elsewhere.png")
    report = index_folder(model, "toy", folder, tmp_path / "g")
    assert (report.moved, report.kept, labels()["blue checks/elsewhere.png"]) == (1, 1, "by hand")
    report = index_folder(model, "toy", folder / "blue checks", tmp_path / "g")
    found = labels()
    assert (report.moved, found["elsewhere.png"], found["0.png"]) == (7, "by hand", "blue checks")
    table = tmp_path / "labels.csv"
    table.write_text("path,label\nelsewhere.png,of the file\n")
    index_folder(model, "toy", folder / "blue checks", tmp_path / "g", labels=table)
    assert (labels()["elsewhere.png"], labels()["0.png"]) == ("of the file", "blue checks")
    index_folder(model, "toy", folder, tmp_path / "g", update=True)
    assert labels()["blue checks/elsewhere.png"] == "blue checks"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has: nothing"),
        ("file,label\n", "it has: file, label"),
        ("path,label\na.png\n", "line 2: a row needs"),
        ("path,label\nred stripes/0.png,a\nred stripes/0.png,b\n", "line 3: red stripes/0.png has another"),
        ("path,label\nnowhere.png,a\n", "names none of the 24 images"),
        ('path,label\n"a', "cannot be read as CSV"),
    ],
)
def test_bad_tables_of_labels_are_refused(
    model: Embedder, pictures: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        index_folder(model, "toy", pictures, tmp_path / "g", labels=tmp_path / "labels.csv")
    assert not (tmp_path / "g").exists()


def test_another_model_can_neither_add_nor_search(
    model: Embedder, other_model: Embedder, folder: Path, tmp_path: Path
) -> None:
    index_folder(model, "toy", folder, tmp_path / "g")
    with raises(ModelMismatchError) as raised:
        index_folder(other_model, "models/other", folder, tmp_path / "g")
    assert f"zoo gallery rebuild {tmp_path / 'g'} --model models/other" in str(raised.value)
    with VectorGallery.open(tmp_path / "g") as gallery, pytest.raises(ModelMismatchError):
        Searcher(gallery, other_model)
    with pytest.raises(ModelMismatchError):
        Searcher.open(tmp_path / "g", model=str(other_model.folder))


def test_the_right_neighbours_come_first(gallery_folder: Path) -> None:
    searcher = Searcher.open(gallery_folder)
    for kind, label in enumerate(toys.CLASSES):
        result = searcher.find(SearchQuery.of(toys.query(kind)), SearchOptions(3))
        assert {hit.label for hit in result.hits} == {label}
    hits = searcher.find(SearchQuery.of(item=1), SearchOptions(30)).hits
    assert len(hits) == 23
    assert 1 not in {hit.id for hit in hits}
    searcher.close()


def test_a_model_that_does_not_give_its_golden_embedding_is_refused(gallery_folder: Path, tmp_path: Path) -> None:
    from zoo.models.golden import write_golden
    from zoo.models.load import load

    model = load(toys.write_model(tmp_path / "m"), runtime="onnx")
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    write_golden(model.folder, model.card, [image], model.run)
    with VectorGallery.open(gallery_folder) as gallery:
        assert Searcher(gallery, model).is_ready()
        write_golden(model.folder, model.card, [image], lambda pixels: -model.run(pixels))
        with raises(ModelFolderError, "golden-mismatch"):
            Searcher(gallery, model)


def test_a_fresh_index_names_copies_as_such(
    model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding: "2 were there already" about two equal files, in a gallery that was new."""
    for name in ("green disc/0.png", "red stripes/twin.png"):
        shutil.copy(folder / "red stripes" / "0.png", folder / name)
    assert index(model_folder, folder, "--out", tmp_path / "g") == 0
    said = capsys.readouterr().out
    assert "red stripes/twin.png is a copy of green disc/0.png" in said
    assert "25 added, 0 already there" in said


def test_of_one_image_in_two_folders_each_copy_has_the_label_of_its_own(
    model: Embedder, folder: Path, tmp_path: Path
) -> None:
    first = sorted(folder.rglob("*.png"))[0]
    (folder / "zebra").mkdir()
    shutil.copy(first, folder / "zebra" / "copy.png")
    for _ in range(2):
        index_folder(model, "toy", folder, tmp_path / "g")
        with VectorGallery.open(tmp_path / "g") as gallery:
            labels = {item.source: item.label for item in gallery.store.items(limit=100)}
            (hit,) = gallery.search(model.embed(first), 1)[0]
        assert labels == {source: source.rpartition("/")[0] for source in labels}
        places = {hit.source, *(other.source for other in hit.also)}
        assert places == {first.relative_to(folder).as_posix(), "zebra/copy.png"}, "one result, and where it is besides"


FIRST, SECOND = "red stripes/0.png", "red stripes/1.png"


def index(*words: object) -> int:
    return run_here("index", *words)


def sources(gallery_folder: Path) -> set[str]:
    with VectorGallery.open(gallery_folder) as gallery:
        return {item.source for item in gallery.store.items(limit=100)}


def count(gallery_folder: Path) -> int:
    with VectorGallery.open(gallery_folder) as gallery:
        return gallery.store.count()


def test_items_without_their_image_are_removed(
    model: Embedder, model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    before = sources(gallery_folder)
    (folder / FIRST).rename(folder / "moved.png")
    (folder / SECOND).unlink()
    shutil.copy(folder / "red stripes/2.png", folder / "red stripes/3.png")  # its former content is gone
    assert index(model_folder, folder, "--out", gallery_folder, "--prune", "--yes") == 0
    assert sources(gallery_folder) == before - {FIRST, SECOND} | {"moved.png"}
    said = capsys.readouterr().out
    assert "1 item was removed" in said
    assert f"({SECOND})" in said
    assert "1 item has another image now" in said


def test_items_that_were_added_by_hand_are_not_pruned_and_others_are_named(
    model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery, elsewhere = tmp_path / "g", tmp_path / "elsewhere.png"
    index(model_folder, folder, "--out", gallery)
    (folder / SECOND).rename(elsewhere)
    (folder / FIRST).unlink()
    run_here("gallery add", gallery, elsewhere, "--key", "HAND-1")
    run_here("gallery add", gallery, elsewhere, "--key", "HAND-2")
    capsys.readouterr()
    assert index(model_folder, folder, "--out", gallery, "--prune", "--yes", "--json") == 0
    assert sorted(json.loads(capsys.readouterr().out)["pruned"]) == sorted([FIRST, SECOND])
    with VectorGallery.open(gallery) as kept:
        assert {"HAND-1", "HAND-2"} <= {place.key for place in kept.store.places()}


def test_it_asks_first(
    model: Embedder,
    model_folder: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    words = (model_folder, folder, "--out", gallery_folder)
    (folder / FIRST).unlink()
    with raises(UsageError, "option-without-effect"):
        index(*words, "--yes")
    with raises(UsageError, "not-confirmed"):
        index(*words, "--prune")
    for answer, left in (("n\n", 24), ("", 24), ("y\n", 23)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        index(*words, "--prune")
        output = capsys.readouterr()
        assert f"Remove 1 item whose image is not among those indexed now ({FIRST})? [y/N]" in output.err
        assert ("stay in the gallery" in output.out) == (left == 24)
        assert len(sources(gallery_folder)) == left


def test_an_image_that_cannot_be_read_now_stays(
    model: Embedder, model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    (folder / FIRST).write_bytes(b"cut off")
    words = (model_folder, folder, "--out", gallery_folder, "--prune", "--yes")
    assert index(*words) == 0
    assert len(sources(gallery_folder)) == 24
    assert index(*words, "--strict") == 1, "so that cron reports it"
    for path in filter(Path.is_file, list(folder.rglob("*"))):
        path.write_bytes(b"cut off")
    (folder / SECOND).rename(folder / "other.png")
    assert index(*words) == 0
    assert len(sources(gallery_folder)) == 24, "a folder without readable images does not show which images are gone"


def test_items_of_another_folder_are_not_pruned(
    model: Embedder, model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gallery_folder, other = tmp_path / "g", tmp_path / "other"
    (folder / "green disc").rename(other)
    for source in (folder, other, folder / "red stripes"):
        index_folder(model, "toy", source, gallery_folder)
    words = (model_folder, folder, "--out", gallery_folder, "--prune", "--yes")
    with raises(UsageError, "overwrites-input") as caught:
        index(*words)
    assert str(other) in str(caught.value)
    assert f"zoo gallery remove {gallery_folder} --label" in str(caught.value)
    assert count(gallery_folder) == 24
    capsys.readouterr()
    assert index(*words[:-2]) == 0
    assert "--prune" not in capsys.readouterr().out, "it would be refused"
    shutil.rmtree(other)
    assert index(*words) == 0
    assert count(gallery_folder) == 18


def test_a_name_cannot_steer_the_terminal(
    model_folder: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad\x1b[31mred.png").write_bytes(b"cut off")
    index(model_folder, folder, "--out", tmp_path / "g")
    assert capsys.readouterr().out.startswith(r"left out bad\x1b[31mred.png: ")


def test_more_than_half_is_pruned_only_after_a_question(
    model: Embedder,
    model_folder: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gallery_folder = tmp_path / "g"
    index_folder(model, "toy", folder, gallery_folder)
    for path in filter(Path.is_dir, list(folder.iterdir())):
        if path.name != "green disc":  # as where a disk is not mounted
            shutil.rmtree(path)
    left = sum(path.is_file() for path in folder.rglob("*"))
    words = (model_folder, folder, "--out", gallery_folder, "--prune")
    with raises(UsageError, "not-confirmed") as caught:
        index(*words, "--yes")
    assert f"{24 - left} of 24" in str(caught.value)
    assert count(gallery_folder) == 24
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    index(*words)
    assert count(gallery_folder) == left


@pytest.mark.slow
def test_links_out_of_the_folder_are_left_out_or_followed(
    model_folder: Path, model: Embedder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a folder, a file, a link to a link, and in a table; links within the folder are followed."""
    private = tmp_path / "private"
    (private / "deep").mkdir(parents=True)
    for number in range(3):
        (private / "deep" / f"{number}.png").write_bytes(toys.query(number))
    (folder / "album").symlink_to(private)
    (folder / "one.png").symlink_to(private / "deep" / "0.png")
    (folder / "again").symlink_to("album")
    (folder / "inside").symlink_to(folder / "green disc")
    capsys.readouterr()
    assert index(model_folder, folder, "--out", tmp_path / "g", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["items"], report["links_left_out"]) == (30, ["again", "album", "one.png"])
    assert "inside/0.png" in [source for source, _ in report["copies"]] + [first for _, first in report["copies"]]
    index(model_folder, folder, "--out", tmp_path / "g")
    assert "--follow-links" in capsys.readouterr().out

    index(model_folder, folder, "--out", tmp_path / "followed", "--follow-links", "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["items"], report["links_left_out"]) == (37, [])
    with VectorGallery.open(tmp_path / "followed") as gallery:
        originals = Originals.of(gallery)
        assert all(originals.read(item) for item in gallery.store.items(limit=-1)), "found again by their sources"

    names = ["green disc/0.png", "album/deep/1.png", "one.png", str(private / "deep" / "2.png")]
    (folder / "table.csv").write_text("image\n" + "".join(f"{name}\n" for name in names))
    listed = index_folder(model, "toy", folder / "table.csv", tmp_path / "table")
    assert (listed.items, listed.links_left_out) == (2, ["album/deep/1.png", "one.png"])
    assert index_folder(model, "toy", folder / "table.csv", tmp_path / "table", follow_links=True).items == 4


def test_a_folder_of_links_only_says_how_to_follow_them(model_folder: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "all").symlink_to(folder)
    with raises(UsageError, "no-images", "--follow-links"):
        index(model_folder, tmp_path / "links", "--out", tmp_path / "g")
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\nlinks/all/green disc/0.png,disc\n")
    (tmp_path / "links" / "table.csv").write_text("image\nall/green disc/0.png\n")
    with raises(UsageError, "no-images", "--follow-links"):
        index(model_folder, tmp_path / "links" / "table.csv", "--out", tmp_path / "g")
    linked = (tmp_path / "links", "--labels", labels, "--follow-links")
    assert index(model_folder, *linked, "--out", tmp_path / "linked") == 0
    with VectorGallery.open(tmp_path / "linked") as gallery:
        assert gallery.store.count(Filter(("disc",))) == 1, "the table names it from its own folder"
    (tmp_path / "root").symlink_to(folder)
    assert index(model_folder, tmp_path / "root", "--out", tmp_path / "g") == 0, "the folder itself may be a link"
