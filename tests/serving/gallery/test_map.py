from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import trustworthiness

from serving.gallery import VectorGallery
from serving.gallery.map import Atlas, draw, neighbour_plane, principal_plane
from tests.serving import toys


@pytest.fixture
def gallery(gallery_folder: Path, tmp_path: Path) -> Iterator[VectorGallery]:
    shutil.copytree(gallery_folder, tmp_path / "copy")
    with VectorGallery.open(tmp_path / "copy") as opened:
        yield opened


@pytest.mark.parametrize(("n", "d"), [(40, 6), (5, 16), (2, 3)])
def test_the_plane_is_that_of_scikit_learn(n: int, d: int) -> None:
    vectors = np.random.default_rng(n).normal(size=(n, d)) * np.linspace(1, 3, d)
    places, explained = principal_plane(vectors)
    expected = PCA(2).fit(vectors)
    np.testing.assert_allclose(np.abs(places), np.abs(expected.transform(vectors)), atol=1e-9)
    np.testing.assert_allclose(explained, expected.explained_variance_ratio_, atol=1e-4)


@pytest.mark.parametrize("vectors", [np.empty((0, 4)), np.ones((1, 4)), np.ones((3, 4)), np.ones((3, 1))])
def test_without_spread_all_points_are_one(vectors: np.ndarray) -> None:
    places, explained = principal_plane(vectors)
    np.testing.assert_allclose(places, np.zeros((len(vectors), 2)), atol=1e-12)
    assert explained == [0, 0]


def test_a_line_is_a_line() -> None:
    places, explained = principal_plane(np.array([[1.0], [2.0], [6.0]]))
    np.testing.assert_allclose(places, [[-2, 0], [-1, 0], [3, 0]])
    assert explained == [1, 0]


def groups(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around random directions, and the number of each one's direction."""
    rng = np.random.default_rng(5)
    own = np.repeat(np.arange(count), size)
    vectors = rng.normal(size=(count, 64))[own] + 0.7 * rng.normal(size=(count * size, 64))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), own


@pytest.mark.parametrize(("count", "size"), [(4, 6), (30, 20)])
def test_near_vectors_are_near_points(count: int, size: int) -> None:
    vectors, own = groups(count, size)
    start, _ = principal_plane(vectors)
    places = neighbour_plane(vectors, start)
    assert trustworthiness(vectors, places, n_neighbors=5) > max(0.95, trustworthiness(vectors, start, n_neighbors=5))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (own[apart.argmin(axis=1)] == own).mean() > 0.95
    np.testing.assert_array_equal(neighbour_plane(vectors, start), places)


def test_few_or_equal_vectors_stay_where_they_start() -> None:
    few, equal = groups(2, 4)[0], np.ones((50, 1))
    for vectors in (few, equal):
        start, _ = principal_plane(vectors)
        np.testing.assert_array_equal(neighbour_plane(vectors, start), start)


def test_a_map_is_drawn_anew_once_the_gallery_has_changed(gallery: VectorGallery) -> None:
    atlas = Atlas()
    first = atlas.map_of(gallery)
    assert atlas.map_of(gallery) is first
    assert first["total"] == len(first["points"]) == 24
    assert max(abs(point[axis]) for point in first["points"] for axis in "xy") == 1
    gallery.remove([first["points"][0]["id"]])
    assert [point["id"] for point in atlas.map_of(gallery)["points"]] == [point["id"] for point in first["points"][1:]]
    assert len(draw(gallery, 5)["points"]) == 5
    assert draw(gallery, 5) == draw(gallery, 5)


def test_an_empty_gallery_has_an_empty_map(gallery: VectorGallery) -> None:
    gallery.remove(range(1, 100))
    assert draw(gallery) == {"total": 0, "explained": [0, 0], "points": []}


def test_labels_are_counted(http: httpx.Client, gallery_folder: Path) -> None:
    with VectorGallery.open(gallery_folder) as gallery:
        expected = Counter(gallery.store.labels().values())
    answer = http.get("/labels").json()
    assert answer["total"] == len(expected) == len(toys.CLASSES)
    assert {row["label"]: row["items"] for row in answer["labels"]} == expected
    assert http.get("/labels?limit=1").json()["total"] == len(toys.CLASSES)
    assert http.get("/labels?limit=0").status_code == 422
    assert len(http.get("/map").json()["points"]) == 24
