"""Copies of one item: the list of hashes follows a store; items of older galleries are found by their embeddings."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import ImageOps

from serving.duplicates.lookup import NEAR, CopyFinder, HashList
from serving.duplicates.pictures import PictureTable
from serving.duplicates.rule import RULE
from serving.gallery import VectorGallery
from serving.gallery.indexing import index_folder
from tests.raising import raises
from tests.serving.duplicates.toys import copies, new_item, open_store, picture
from zoo.data.perceptual_hash import hamming, mirror_hash, perceptual_hash
from zoo.errors import ItemNotFoundError
from zoo.models.load import load


def near(hashes: dict[int, np.ndarray], wanted: np.ndarray) -> set[int]:
    """Ids within the radius, by a plain loop."""
    both = (wanted, mirror_hash(wanted))
    return {item for item, own in hashes.items() if min(hamming(own, one) for one in both) <= RULE.candidate_distance}


def test_the_list_of_hashes_follows_additions_and_removals(tmp_path: Path):
    with closing(open_store(tmp_path, [*copies(1, of=7), new_item(9, picture(8), of=8)])) as store:
        table, listed, wanted = PictureTable(store), HashList(store), perceptual_hash(picture(7))
        assert set(listed.near(wanted)) == near(table.hashes(range(1, 20)), wanted) == {1, 2, 3}
        store.add([new_item(10, picture(7).resize((150, 112)), of=7)])
        store.remove([2])
        assert set(listed.near(wanted)) == near(table.hashes(range(1, 20)), wanted) == {1, 3, 6}
        assert listed.near(perceptual_hash(picture(50))) == []


def test_the_nearest_hashes_are_returned_first_and_not_more_than_asked_for(tmp_path: Path):
    same = [new_item(number, picture(7).resize((200 - number, 150)), of=7) for number in range(1, NEAR + 9)]
    with closing(open_store(tmp_path, same)) as store:
        wanted = perceptual_hash(picture(7).resize((199, 150)))
        found = HashList(store).near(wanted)
        assert len(found) == NEAR + 1
        hashes = PictureTable(store).hashes(found)
        distances = [int(hamming(hashes[item], wanted)) for item in found]
        assert distances == sorted(distances)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture, a smaller copy, its mirror image and another picture."""
    folder = tmp_path_factory.mktemp("lookup")
    original = picture(7, (320, 240))
    for name, image in {
        "1": original,
        "2": original.resize((200, 150)),
        "3": ImageOps.mirror(original),
        "4": picture(8),
    }.items():
        image.save(folder / f"{name}.png")
    index_folder(load("photos", "onnx"), "photos", folder, folder / "gallery")
    return folder / "gallery"


def test_copies_of_an_item(gallery: Path):
    with VectorGallery.open(gallery) as opened:
        assert {copy.item for copy in CopyFinder().copies_of(opened, 1)} == {2, 3}
        with raises(ItemNotFoundError):
            CopyFinder().copies_of(opened, 5)
