"""DeepFashion In-Shop in its archive's layout, and the retrieval of its queries from its gallery."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.raising import raises
from tests.zoo.data.written import write_images, write_lines
from zoo.data import load_dataset, retrieval_sets
from zoo.data.dataset import Dataset
from zoo.data.official import Counts
from zoo.errors import DatasetError, EvaluationError
from zoo.evaluation import evaluate

HEADER = ("8", "image_name item_id evaluation_status")
ROWS = [
    ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
    ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
    ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "train"),
    ("img/WOMEN/Skirts/id_00000009/01_1_front.jpg", "id_00000009", "query"),
    ("img/WOMEN/Skirts/id_00000009/01_2_side.jpg", "id_00000009", "gallery"),
    ("img/WOMEN/Skirts/id_00000009/01_3_back.jpg", "id_00000009", "gallery"),
    ("img/MEN/Shorts/id_00000001/04_3_back.jpg", "id_00000001", "gallery"),
    ("img/MEN/Shorts/id_00000001/04_1_front.jpg", "id_00000001", "query"),
]
EXPECTED = {"train": Counts(3, 2), "test": Counts(5, 2), "query": Counts(2, 2), "gallery": Counts(3, 2)}
FOLDER = "In-shop Clothes Retrieval Benchmark"


def write_list(path: Path, rows: list[tuple[str, str, str]]) -> None:
    write_lines(path, *HEADER, *(f"{name:70s} {item} {status}" for name, item, status in rows))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_images(tmp_path / FOLDER / "Img", [name for name, _, _ in ROWS])
    write_list(tmp_path / FOLDER / "Eval" / "list_eval_partition.txt", ROWS)
    return tmp_path


def test_the_split_is_the_authors_own(data: Path) -> None:
    train, test = (retrieval_sets.load_inshop(split, data, EXPECTED) for split in ("train", "test"))
    assert (train.name, train.split, train.classes) == ("inshop", "train", ("id_00000002", "id_00000080"))
    assert (train.labels.tolist(), dict(train.factors)) == ([0, 0, 1], {})
    assert (test.split, test.classes) == ("test", ("id_00000001", "id_00000009"))
    assert test.labels.tolist() == [1, 1, 1, 0, 0]
    assert test.factors["query"].tolist() == [1, 0, 0, 0, 1]
    assert test.labels.dtype == test.factors["query"].dtype == np.int64
    assert list(test.sources) == [name for name, _, _ in ROWS[3:]]
    assert list(test.images) == [data / FOLDER / "Img" / source for source in test.sources]


def test_list_and_images_may_be_in_the_folder_itself(tmp_path: Path) -> None:
    write_images(tmp_path, [name for name, _, _ in ROWS])
    write_list(tmp_path / "list_eval_partition.txt", ROWS)
    assert list(retrieval_sets.load_inshop("train", tmp_path, EXPECTED).images) == [
        tmp_path / name for name, _, _ in ROWS[:3]
    ]


def test_missing_files_are_named(data: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = data / FOLDER / "Eval" / "list_eval_partition.txt"
    with raises(DatasetError, "damaged-file", "2 images of 2 classes for query", "14,218 images of 3,985 classes"):
        load_dataset("inshop", "test", data)
    with raises(DatasetError, "damaged-file", "3 images of 2 classes for train", "25,882 images of 3,997 classes"):
        load_dataset("inshop", "train", data)
    (data / FOLDER / "Img" / ROWS[4][0]).unlink()
    with raises(DatasetError, "missing-file", "1 of the 5", ROWS[4][0]):
        retrieval_sets.load_inshop("test", data, EXPECTED)
    (data / FOLDER / "Img" / "img").rename(data / "elsewhere")
    with raises(DatasetError, "missing-file", "5 of the 5"):
        retrieval_sets.load_inshop("test", data, EXPECTED)
    path.unlink()
    with raises(DatasetError, "missing-file", path, "mmlab.ie.cuhk.edu.hk"):
        retrieval_sets.load_inshop("test", data, EXPECTED)
    with raises(DatasetError, "dataset-missing", "In-Shop"):
        load_dataset("inshop", data=tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({7: ("img/x.jpg", "id_00000001", "probe")}, "damaged-file", "'img/x.jpg id_00000001 probe'"),
        ({7: ("img/x.jpg", "", "query")}, "damaged-file", "'img/x.jpg query'"),
        ({7: ("../x.jpg", "id_00000001", "query")}, "unsafe-file", "'../x.jpg'"),
        ({7: (ROWS[3][0], "id_00000001", "query")}, "invalid-table", ROWS[3][0]),
        ({7: (ROWS[7][0], "id_00000001", "gallery")}, "damaged-file", "1 images of 1 classes for query"),
        ({4: (ROWS[4][0], "id_00000005", "gallery")}, "damaged-file", "3 images of 3 classes for gallery"),
    ],
)
def test_a_damaged_list_is_refused(data: Path, change: dict[int, tuple[str, str, str]], code: str, value: str) -> None:
    path = data / FOLDER / "Eval" / "list_eval_partition.txt"
    write_list(path, [change.get(i, row) for i, row in enumerate(ROWS)])
    with raises(DatasetError, code, value):
        retrieval_sets.load_inshop("test", data, EXPECTED)


def test_a_list_that_was_cut_off_is_refused(data: Path) -> None:
    write_list(data / FOLDER / "Eval" / "list_eval_partition.txt", ROWS[:-1])
    with raises(DatasetError, "damaged-file", "1 images of 1 classes for query"):
        retrieval_sets.load_inshop("test", data, EXPECTED)


def test_queries_search_only_the_gallery(data: Path) -> None:
    """By hand: the query of class 1 is next to the other query and to a gallery image of class 0."""
    test = retrieval_sets.load_inshop("test", data, EXPECTED)
    angles = np.radians([0, 40, 90, 10, 1])  # query 1, gallery 1, gallery 1, gallery 0, query 0
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    result = evaluate(rows, test, k=(1, 2, 3))
    # Query 1 finds 0, 1, 1: R = 2, so P(2) = 1/2 and MAP@R = (0 + 1/2) / 2. Query 0 finds its only relative first.
    assert result.metrics == pytest.approx(
        {
            "recall_at_1": 0.5,
            "recall_at_2": 1.0,
            "recall_at_3": 1.0,
            "precision_at_1": 0.5,
            "r_precision": (0.5 + 1) / 2,
            "map_at_r": (0.25 + 1) / 2,
        }
    )
    assert (result.queries, result.classes, result.protocol) == (2, 2, "queries to gallery, cosine, exact")


def test_one_embedding_per_image_is_needed(data: Path) -> None:
    test = retrieval_sets.load_inshop("test", data, EXPECTED)
    with pytest.raises(EvaluationError):
        evaluate(np.eye(4), test, k=(1,))


@pytest.mark.parametrize("query", [[0, 0, 0], [1, 1, 1]])
def test_queries_and_gallery_must_have_images(query: list[int]) -> None:
    blank = np.zeros((2, 2), np.uint8)
    data = Dataset("toy", "test", [blank] * 3, np.zeros(3, int), ("a",), list("abc"), {"query": np.array(query)})
    with pytest.raises(EvaluationError):
        evaluate(np.eye(3), data, k=(1,))
