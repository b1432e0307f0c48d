"""Rebuilds at the level of store and index: nothing is lost, and vectors of two models never meet."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serving.gallery import VectorGallery
from serving.gallery.backup import verify_gallery
from serving.gallery.gallery import STORE
from serving.gallery.rebuild import LAST, MissingItem, MissingItemsError, Outcome, Rebuild, ShownImage
from serving.gallery.staging import REBUILT, REPLACED, StagedEmbedding
from serving.gallery.store import MODEL, Store
from serving.gallery.types import model_json
from tests.raising import raises
from tests.serving.gallery.test_database import full_disk
from tests.serving.gallery.test_gallery import CARD, DIM, expected, new_items, unit_rows
from tests.serving.toys import content
from zoo.errors import GalleryError, ModelChangedError, ModelMismatchError
from zoo.models.card import Card

OTHER = replace(CARD, name="other", dim=DIM + 2, files={"model.safetensors": "1" * 64})
THIRD = replace(CARD, name="third", files={"model.safetensors": "2" * 64})


def embedded_by(card: Card, source: str) -> np.ndarray:
    """A unit row that depends on the model and on the item's source alone."""
    seed = int(source.removesuffix(".png"))
    row = np.random.default_rng([int(card.files["model.safetensors"][0]), seed]).normal(size=card.dim)
    return (row / np.linalg.norm(row)).astype(np.float32)


class Maker:
    """Embeds by `embedded_by`; `lost`: sources that it cannot; after each batch it does the next of `meanwhile`."""

    def __init__(self, card: Card, lost: Sequence[str] = (), meanwhile: Sequence[object] = ()) -> None:
        self.card, self.lost, self.meanwhile, self.asked = card, lost, list(meanwhile), 0

    def __call__(self, batches: Iterable[Sequence[ShownImage]]) -> Iterator[Outcome]:
        for batch in batches:
            self.asked += len(batch)
            sources = {image.id: image.items[0].source for image in batch}
            made = [
                StagedEmbedding(image, embedded_by(self.card, source).tobytes())
                for image, source in sources.items()
                if source not in self.lost
            ]
            lost = [image for image in batch if sources[image.id] in self.lost]
            yield made, [MissingItem(image.id, image.items[0].id, sources[image.id], "gone") for image in lost]
            if self.meanwhile:
                self.meanwhile.pop(0)()  # type: ignore[operator]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with VectorGallery.create(tmp_path / "g", CARD, "toy") as gallery:
        gallery.add(new_items(unit_rows(200)))
        gallery.index.compact()
        gallery.store.set_fact("calibration", "of the first model")
        gallery.remove([5])
    return tmp_path / "g"


def begun(store: Store, make: Maker) -> Rebuild:
    card = make.card
    token = store.staging.begin(model_json(CARD, "toy"), model_json(card, card.name), card.fingerprint, card.dim)
    return Rebuild(store, store.staging, token, make, batch_size=20)


def rebuild(path: Path, make: Maker, drop: bool = False, swap: bool = True) -> None:
    with closing(Store(path / STORE)) as store:
        run = begun(store, make)
        run.fill()
        if run.missing() and not drop:
            raise MissingItemsError(run.missing())
        with VectorGallery.open(path, other=True) as shadow:
            shadow.index.compact()
        if swap:
            run.swap(drop)


def assert_is(path: Path, card: Card) -> dict[int, str]:
    """Every item is embedded by this model, and found by exact search; their sources by id."""
    assert [check for check in verify_gallery(path) if check.ok is False] == []
    with VectorGallery.open(path) as gallery:
        assert gallery.card == card
        ids, vectors = content(gallery)
        sources = {item.id: item.source for item in gallery.store.items(limit=-1)}
        assert ids.tolist() == sorted(sources)
        rows = {item: embedded_by(card, source) for item, source in sources.items()}
        for item, row in zip(ids.tolist(), vectors, strict=True):
            np.testing.assert_array_equal(row, rows[item])
        query = embedded_by(card, "1234.png")[None]
        wanted = expected(query, rows, 5)[0]
        assert [hit.id for hit in gallery.search(query, 5)[0]] == [item for item, _ in wanted]
        return sources


def test_a_gallery_gets_another_model_and_the_first_one_back(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        before = gallery.store.items(limit=-1)
        first = {item.id: gallery.store.embedding(item.id) for item in before}
        generation = gallery.index.stats().generation
    make = Maker(OTHER)
    rebuild(path, make, swap=False)
    with VectorGallery.open(path) as gallery:
        assert gallery.card == CARD, "nothing has changed yet"
        assert gallery.index.stats().generation == generation
    rebuild(path, make)
    assert make.asked == 199, "what was made is not made again"
    sources = assert_is(path, OTHER)
    with VectorGallery.open(path) as gallery:
        assert gallery.store.items(limit=-1) == before
        assert len(sources) == 199
        assert gallery.store.fact("calibration") is None
        assert gallery.index.stats().frozen == 199
        assert gallery.index.stats().waiting == 0
        assert (gallery.model_ref, json.loads((path / MODEL).read_text())["ref"]) == ("other", "other")
        gallery.add([_item(500, OTHER)])
        gallery.remove([7])
    with VectorGallery.open(path) as gallery:  # the way back, with an item that the first model has not seen
        query = unit_rows(1)[0]
    back = Maker(CARD)
    rebuild(path, back)
    assert back.asked == 1
    with VectorGallery.open(path) as gallery:
        assert gallery.card == CARD
        assert gallery.store.fact("calibration") == "of the first model"
        ids, vectors = content(gallery)
        known = {**first, 201: embedded_by(CARD, "500.png")}
        assert ids.tolist() == [item for item in (*first, 201) if item != 7]
        np.testing.assert_array_equal(vectors, [known[item] for item in ids.tolist()])
        assert gallery.search(query[None], 1)[0][0].id == 1
    assert [check for check in verify_gallery(path) if check.ok is False] == []
    assert len(list(path.glob("*index-*"))) == 2


def _item(number: int, card: Card) -> object:
    return replace(new_items(unit_rows(1), number)[0], embedding=embedded_by(card, f"{number}.png"))


def test_what_is_written_meanwhile_is_in_the_new_embeddings(path: Path) -> None:
    """Added, removed and described between any two batches, also in the transaction of the exchange."""
    with VectorGallery.open(path) as writer:
        numbers = iter(range(1000, 5000))

        def add(count: int) -> object:
            return lambda: writer.add([_item(next(numbers), CARD) for _ in range(count)])

        meanwhile = [
            add(30),
            lambda: writer.remove([1, 2, 150, 199, 203]),
            lambda: writer.store.describe(10, "new", {"year": 1908}),
            *[add(3)] * 6,
            lambda: writer.remove([10, 231]),
            *[add(LAST + 5)] * 3,
            *[add(1)] * 3,
        ]
        make = Maker(OTHER, meanwhile=meanwhile)
        rebuild(path, make)
        assert make.meanwhile == []
        sources = assert_is(path, OTHER)
        assert len(sources) == writer.store.count()
        assert {1, 2, 10, 150, 199, 203, 231} & sources.keys() == set()
        with pytest.raises(ModelChangedError):
            writer.add([_item(9999, CARD)])
        assert writer.remove([11]) == 1, "what has nothing to do with embeddings goes on"


def test_a_description_meanwhile_is_kept(path: Path) -> None:
    with VectorGallery.open(path) as writer:
        rebuild(path, Maker(OTHER, meanwhile=[lambda: writer.store.describe(10, "new", {"year": 1908})]))
    with VectorGallery.open(path) as gallery:
        assert (gallery.store.item(10).label, gallery.store.item(10).metadata) == ("new", {"year": 1908})


def stop() -> None:
    raise KeyboardInterrupt


def test_a_rebuild_that_was_broken_off_goes_on(path: Path) -> None:
    make = Maker(OTHER, meanwhile=[lambda: None, stop])
    with pytest.raises(KeyboardInterrupt):
        rebuild(path, make)
    with VectorGallery.open(path) as gallery:
        assert gallery.card == CARD
    assert [check for check in verify_gallery(path) if check.ok is False] == []
    with VectorGallery.open(path, other=True) as shadow:
        assert shadow.store.count() == 0, "nothing is settled yet"
    again = Maker(OTHER)
    rebuild(path, again)
    assert (make.asked, again.asked) == (40, 159)
    assert_is(path, OTHER)


def test_what_cannot_be_embedded_is_named_and_dropped_only_when_told(path: Path) -> None:
    lost = ("3.png", "42.png")
    with raises(MissingItemsError, "missing-items", 2) as caught:
        rebuild(path, Maker(OTHER, lost))
    assert [one.source for one in caught.value.missing] == list(lost)
    with VectorGallery.open(path) as gallery:
        assert (gallery.card, gallery.store.count()) == (CARD, 199)
        gallery.remove([4])  # 3.png: an item that is gone is not missed
    found = Maker(OTHER, ("42.png",))
    rebuild(path, found, drop=True)
    assert found.asked == 1, "tried again"
    sources = assert_is(path, OTHER)
    assert len(sources) == 197
    assert not set(lost) & set(sources.values())
    rebuild(path, Maker(CARD))
    with VectorGallery.open(path) as gallery:
        assert gallery.store.count() == 197, "dropped for good"


def test_what_could_not_be_embedded_at_first_is_taken_up_later(path: Path) -> None:
    rebuild(path, Maker(OTHER, ("3.png",)), drop=True, swap=False)
    with VectorGallery.open(path, other=True) as shadow, VectorGallery.open(path) as gallery:
        assert (shadow.store.count(), gallery.store.count()) == (198, 199)
        assert shadow.card == OTHER
        assert 4 not in shadow.store.labels()
        with pytest.raises(MissingItemsError), closing(Store(path / STORE)) as store:
            run = begun(store, Maker(OTHER, ("3.png",)))
            run.fill()
            run.swap()
    rebuild(path, Maker(OTHER))
    assert len(assert_is(path, OTHER)) == 199


def test_a_gallery_that_is_open_answers_as_before_or_not_at_all(path: Path) -> None:
    with VectorGallery.open(path) as old, VectorGallery.open(path) as writer:
        rebuild(path, Maker(THIRD))  # as many numbers as the first, so that nothing but the check tells them apart
        for call in (
            lambda: old.search(unit_rows(1), 3),
            lambda: content(old),
            lambda: old.store.embedding(1),
            lambda: old.store.embeddings([1, 2]),
            lambda: old.index.stats(),
            lambda: old.store.fact("calibration"),
            lambda: old.store.set_fact("calibration", "x"),
            lambda: writer.add(new_items(unit_rows(1), 900)),
        ):
            with pytest.raises(ModelChangedError, match="another model"):
                call()
        with pytest.raises(ModelMismatchError):
            old.check_model(THIRD)
        assert old.store.item(1).source == "0.png"
        assert len(old.store.items(limit=300)) == old.store.count() == 199
        old.store.describe(1, "x", {})
        assert old.store.thumbnail(1).media_type == "image/png"
    assert_is(path, THIRD)


def test_a_search_under_way_ends_with_the_vectors_that_it_began_with(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        index, wanted = gallery.index.current(), gallery.search(unit_rows(3, seed=9), 5)
        rebuild(path, Maker(THIRD))
        _, found = index.search(unit_rows(3, seed=9), 5)
        assert found.tolist() == [[hit.id for hit in hits] for hits in wanted]


def test_the_last_rebuild_that_was_begun_counts(path: Path) -> None:
    with closing(Store(path / STORE)) as store:
        run = begun(store, Maker(OTHER))
        run.fill()
        store.staging.discard()
        again = begun(store, Maker(OTHER))  # of the same model, but what the first one had made is gone
        with pytest.raises(ModelChangedError, match="taken the place"):
            run.swap()
        run = again
        rebuild(path, Maker(THIRD), swap=False)
        for do in (run.fill, run.swap):
            with pytest.raises(ModelChangedError, match="taken the place"):
                do()
        slot = store.staging.slot()
        assert slot
        assert (slot.fingerprint, slot.role) == (THIRD.fingerprint, REBUILT)
    rebuild(path, Maker(THIRD))
    with closing(Store(path / STORE)) as store:
        slot = store.staging.slot()
        assert slot
        assert (slot.fingerprint, slot.role) == (CARD.fingerprint, REPLACED)
        store.staging.discard()
        assert store.staging.slot() is None
    assert_is(path, THIRD)
    with raises(GalleryError, "no-other-model"):
        VectorGallery.open(path, other=True)


@pytest.mark.parametrize(("sql", "right"), [
    ("DELETE FROM state WHERE key LIKE 'other %'", True),  # killed while it emptied the slot
    ("UPDATE embeddings_other SET embedding = zeroblob(4)", False),
])  # fmt: skip
def test_verify_accepts_a_slot_that_is_half_emptied_only(path: Path, sql: str, right: bool) -> None:
    rebuild(path, Maker(OTHER), swap=False)
    with closing(sqlite3.connect(path / STORE)) as db, db:
        assert db.execute("SELECT count(*) FROM embeddings_other").fetchone()[0]
        db.execute(sql)
    assert all(check.ok is not False for check in verify_gallery(path)) is right
    rebuild(path, Maker(THIRD))
    assert_is(path, THIRD)


def test_on_a_full_disk_the_gallery_stays_as_it_was(path: Path) -> None:
    with VectorGallery.open(path) as gallery:
        before = content(gallery)
    for limit in (2000, 20_000):
        with full_disk(limit), pytest.raises(GalleryError):
            rebuild(path, Maker(OTHER))
        with VectorGallery.open(path) as gallery:
            assert gallery.card == CARD
            np.testing.assert_array_equal(content(gallery)[1], before[1])
    rebuild(path, Maker(OTHER))
    assert_is(path, OTHER)


def test_compactions_of_both_models_keep_each_other(path: Path) -> None:
    rebuild(path, Maker(OTHER), swap=False)
    with VectorGallery.open(path) as gallery, VectorGallery.open(path, other=True) as shadow:
        gallery.index.compact()
        assert shadow.index.stats().frozen == 199
        shadow.index.compact()
        assert gallery.index.stats().frozen == 199
        assert len(list(path.glob("index-*"))) == 2
        gallery.index.tune(0.9, kinds=("flat",))
        assert gallery.index.stats().recall == 1.0
    rebuild(path, Maker(OTHER))
    assert_is(path, OTHER)
    with VectorGallery.open(path) as gallery:
        assert gallery.index.stats().recall is None, "what was measured was of the other model"


def test_a_copy_holds_both_models(path: Path, tmp_path: Path) -> None:
    from serving.gallery.backup import backup, restore

    rebuild(path, Maker(OTHER))
    backup(path, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "again")
    shutil.rmtree(path)
    assert_is(tmp_path / "again", OTHER)
    rebuild(tmp_path / "again", back := Maker(CARD))
    assert back.asked == 0
