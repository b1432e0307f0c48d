"""The report of a model: one page that needs nothing else, with searches, projections and scores checked by hand."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from sklearn.decomposition import PCA

from tests.raising import raises
from tests.serving import toys
from zoo.data import load_dataset
from zoo.data.dataset import Dataset
from zoo.errors import MissingDependencyError, UsageError
from zoo.evaluation import evaluate
from zoo.models.load import Embedder, load
from zoo.render import Table
from zoo.report.figures import principal_components, tsne
from zoo.report.html import (
    Details,
    ForestLine,
    ForestPlot,
    HeatMap,
    ImageTile,
    Legend,
    NumberedList,
    Paragraph,
    Picture,
    Section,
    Thumbnails,
    page,
)
from zoo.report.model import choose_examples, example_searches, recall_by_epoch, report

VOID = {"meta", "img"}


class Reader(HTMLParser):
    """The tags of a page with their attributes, and its text; every tag must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Embedder, Dataset]:
    root = tmp_path_factory.mktemp("report")
    folder = toys.write_model(root / "toy-pool")
    log = [{"epoch": 1, "validation_recall_at_1": 0.5}, {"epoch": 2, "validation_recall_at_1": 0.75}]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (folder / "recipe.json").write_text(json.dumps({"recipe": {"head_end": "lda", "heads": [{}]}}))
    data = load_dataset("folder", "test", toys.write_pictures(root / "pictures"))
    return load(folder, "onnx"), data


@pytest.fixture(scope="module")
def html(toy: tuple[Embedder, Dataset]) -> str:
    return report(*toy)


@pytest.fixture(scope="module")
def reader(html: str) -> Reader:
    return Reader(html)


@pytest.mark.slow
def test_the_page_requests_nothing(html, reader):
    """Check elements, addresses in attributes and style, and the page's policy."""
    assert not {"script", "link", "iframe", "object", "embed", "base", "form", "a"} & {tag for tag, _ in reader.tags}
    for tag, attributes in reader.tags:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            if key in ("src", "href", "srcset", "data", "action", "poster", "background"):
                assert value.startswith("data:image/")
    outside = re.sub(r'src="data:[^"]*"', "", html)
    assert "://" not in outside
    assert "url(" not in outside
    assert "@import" not in outside
    policy = next(a["content"] for t, a in reader.tags if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_a_label_with_markup_is_text(html, reader):
    assert toys.HTML_LABEL not in html
    assert toys.HTML_LABEL in reader.text
    assert not [a for t, a in reader.tags if t == "img" and a["src"] == "x"]
    captions = [a["alt"] for t, a in reader.tags if t == "img"]
    assert any(toys.HTML_LABEL in caption for caption in captions)


def test_scores_are_those_of_evaluate(toy, reader):
    measured = evaluate(*toy)
    for name, value in measured.metrics.items():
        low, high = measured.intervals[name]
        assert f"{name} {value:.4f} {low:.4f} to {high:.4f}" in reader.text
    assert "24 queries of 4 classes" in reader.text
    assert "onnx in fp32" in reader.text


def test_the_head_is_named(reader):
    assert " head LDA " in reader.text


def test_every_picture_can_be_decoded_and_is_small(html, reader):
    kinds = {"image/jpeg": "JPEG", "image/png": "PNG"}
    for attributes in (a for t, a in reader.tags if t == "img"):
        kind, data = attributes["src"].removeprefix("data:").split(";base64,")
        content = base64.b64decode(data, validate=True)
        if kind == "image/svg+xml":
            assert ElementTree.fromstring(content).tag.endswith("svg")
            assert b'href="http' not in content
        else:
            image = Image.open(BytesIO(content))
            image.load()
            assert image.format == kinds[kind]
            assert kind == "image/png" or max(image.size) <= 128
        assert attributes["alt"]
    assert len(html) < 600_000


def test_sections_and_marks(reader):
    headings = (
        "Scores",
        "Model",
        "What it finds",
        "Map of the embeddings",
        "Singular values",
        "p_same",
        "R@1 by epoch",
    )
    for heading in headings:
        assert heading in reader.text
    marks = [a["class"] for t, a in reader.tags if t == "figure"]
    assert marks[0] == ""
    assert set(marks) <= {"", "good", "bad"}
    assert len(marks) == marks.count("") * 7


@pytest.mark.slow
def test_equal_input_gives_an_equal_page_except_for_the_date(toy, html):
    def undated(text: str) -> str:
        return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", "", text)

    assert undated(report(*toy)) == undated(html)


def test_an_unknown_map_is_refused(toy):
    with raises(UsageError, "unknown-name"):
        report(*toy, mapping="umap")


@pytest.mark.parametrize(("module", "mapping"), [("matplotlib", "pca"), ("sklearn", "tsne")])
def test_a_missing_library_is_reported_before_anything_is_embedded(toy, monkeypatch, module, mapping):
    monkeypatch.setitem(sys.modules, module, None)
    model = dataclasses.replace(toy[0], run=lambda _: pytest.fail("embedded"))
    with raises(MissingDependencyError):
        report(model, toy[1], mapping=mapping)


def test_tsne(toy):
    rows = toy[0].embed(toy[1].images)
    plane = tsne(rows)
    assert plane.shape == (24, 2)
    assert np.isfinite(plane).all()


@pytest.mark.slow
def test_a_folder_without_a_log_has_no_curve(toy, tmp_path):
    bare = load(toys.write_model(tmp_path / "bare"), "onnx")
    assert "R@1 by epoch" not in report(bare, toy[1])


def test_principal_components_are_scikit_learns():
    rows = np.random.default_rng(0).normal(size=(60, 9)) * np.arange(1, 10)
    plane, share = principal_components(rows)
    theirs = PCA(2).fit(rows)
    np.testing.assert_allclose(np.abs(plane), np.abs(theirs.transform(rows)), rtol=1e-9)
    assert share == pytest.approx(theirs.explained_variance_ratio_.sum())
    np.testing.assert_allclose(principal_components(rows + 5)[0], plane, atol=1e-9)


@pytest.mark.parametrize("rows", [np.zeros((3, 2)), np.ones((1, 4)), np.arange(4.0)[:, None]])
def test_principal_components_of_few_rows_or_columns(rows):
    plane, share = principal_components(rows)
    assert plane.shape == (len(rows), 2)
    assert share == pytest.approx(1)
    np.testing.assert_allclose(plane[:, 1], 0, atol=1e-12)


def dataset_of(labels: list[int], **factors: np.ndarray) -> Dataset:
    n = len(labels)
    images = [np.zeros((4, 4, 3), np.uint8)] * n
    return Dataset("d", "test", images, np.array(labels), ("a", "b"), [str(i) for i in range(n)], factors)


def test_searches_by_hand():
    """On the circle at 0, 10, 30 and 90 degrees: neighbours by angle, the query left out by its index."""
    angles = np.radians([0, 10, 30, 90])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    searches = example_searches(rows, dataset_of([0, 1, 0, 1]))
    assert [list(example.neighbours) for example in searches] == [[1, 2, 3], [0, 2, 3], [1, 0, 3], [2, 1, 0]]
    assert [list(example.hits) for example in searches][3] == [False, True, False]
    np.testing.assert_allclose(searches[0].similarities, np.cos(angles[1:]), atol=1e-6)


def test_queries_search_the_gallery_alone():
    angles = np.radians([0, 10, 30, 90])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    searches = example_searches(rows, dataset_of([0, 1, 0, 1], query=np.array([1, 1, 0, 0])))
    assert [(example.query, list(example.neighbours)) for example in searches] == [(0, [2, 3]), (1, [2, 3])]


def test_half_of_the_examples_are_failures_if_there_are_enough():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    chosen = choose_examples(rows, dataset_of(list(rng.integers(0, 2, 200))))
    assert len({example.query for example in chosen}) == 8
    assert not any(example.hits[0] for example in chosen[4:])
    perfect = choose_examples(np.repeat(np.eye(2, dtype=np.float32), 10, 0), dataset_of([0] * 10 + [1] * 10))
    assert len(perfect) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"epoch": 1, "validation_recall_at_1": 0.5}\n{"epoch": 2}\n', {"validation_recall_at_1": [(1, 0.5)]}),
        ('{"epoch": 1, "recall_at_1": 1}\nnonsense\n[]\n{"recall_at_1": 3}\n', {"recall_at_1": [(1, 1.0)]}),
        ('{"epoch": 1, "recall_at_1": "x", "loss": 2}', {}),
        ("", {}),
    ],
)
def test_logs(tmp_path, text, expected):
    (tmp_path / "log.jsonl").write_text(text)
    assert recall_by_epoch(tmp_path) == expected


def test_missing_and_binary_logs(tmp_path: Path):
    assert recall_by_epoch(tmp_path) == {}
    (tmp_path / "log.jsonl").write_bytes(b"\xff")
    assert recall_by_epoch(tmp_path) == {}


EVIL = "</title></section><script>alert('1')</script>\"'&"


def test_every_part_of_a_page_escapes():
    blocks = [
        Paragraph(EVIL),
        Table((EVIL,), [[EVIL]]),
        Thumbnails([ImageTile(b"x", EVIL)]),
        Legend([EVIL], ["#fff"]),
        NumberedList([EVIL]),
        Picture(b"x", "image/png", EVIL),
        ForestPlot([ForestLine(EVIL, 1.0, None, EVIL, EVIL, EVIL)]),
        HeatMap([EVIL, "b"], [[], [1.0]]),
    ]
    text = page(EVIL, [Section(EVIL, blocks, EVIL), Section("", [Details(EVIL, [Paragraph(EVIL)])])])
    assert "<script" not in text
    reader = Reader(text)
    assert reader.text.count(EVIL) == 15
    attributes = [value for _, pairs in reader.tags for value in pairs.values()]
    assert attributes.count(EVIL) == 4  # the size, two alternative texts, the tone
