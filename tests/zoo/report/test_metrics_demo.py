"""The metrics demo, compared with scikit-learn, pytorch-metric-learning, single steps and hand calculations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from tests.zoo.report.test_model import Reader
from zoo.cli.main import main
from zoo.report import metrics_demo
from zoo.report.metrics_demo import CLASSES, POINTS_PER_CLASS, SHARES, draw, embeddings, rankings, scores_of, sectors


def test_rankings_by_hand() -> None:
    """MAP@R of two relatives of ten, at ranks 1 and 10: (1/1 + 2/10) / 10."""
    scores = [tuple(item.metrics[name] for name in ("recall_at_1", "r_precision", "map_at_r")) for item in rankings()]
    assert scores == [pytest.approx(expected) for expected in ((1, 0.1, 0.1), (1, 0.2, 0.12), (1, 0.2, 0.2), (1, 1, 1))]


def test_rankings_by_single_steps() -> None:
    draws = np.random.default_rng(0)
    for relatives in (1, 3, 10):
        for _ in range(20):
            found = [rank for rank in range(1, relatives + 1) if draws.random() < 0.5]
            total = sum(sum(other <= rank for other in found) / rank for rank in found)
            expected = {"recall_at_1": float(1 in found), "r_precision": len(found) / relatives}
            assert scores_of(found, relatives) == pytest.approx({**expected, "map_at_r": total / relatives})


@pytest.mark.parametrize("seed", range(3))
def test_three_metrics_agree_and_two_differ(seed: int) -> None:
    well, less, hardly = embeddings(seed)
    for item in (well, less, hardly):
        assert [item.metrics[name] for name in ("recall_at_1", "nmi", "f1_clusters")] == pytest.approx([1, 1, 1])
    for name in ("r_precision", "map_at_r"):
        assert well.metrics[name] == 1
        assert less.metrics[name] < 0.9
        assert hardly.metrics[name] < less.metrics[name] - 0.1
        assert hardly.metrics[name] > 0.5  # far above chance, 29 of 239


@pytest.mark.parametrize("place", range(len(SHARES)))
def test_scores_are_those_of_other_libraries(place: int) -> None:
    item = embeddings()[place]
    unit = item.points / np.linalg.norm(item.points, axis=1, keepdims=True)
    clusters = KMeans(CLASSES, n_init=20, random_state=0).fit_predict(unit)
    ((_, both_apart), (apart, both)) = pair_confusion_matrix(item.labels, clusters)
    assert item.metrics["nmi"] == pytest.approx(normalized_mutual_info_score(item.labels, clusters))
    assert item.metrics["f1_clusters"] == pytest.approx(2 * both / (2 * both + both_apart + apart))
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", knn_func=CustomKNN(CosineSimilarity()))
    theirs = calculator.get_accuracy(torch.from_numpy(unit), torch.from_numpy(item.labels))
    ours = [item.metrics[name] for name in ("recall_at_1", "r_precision", "map_at_r")]
    assert ours == pytest.approx([theirs[name] for name in names], abs=1e-6)


def test_the_limit_of_classes_that_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calculate the limit for many points per class.

    A query is at t of its class's width from the nearest edge, t <= 1/2. Its R nearest reach 1/2 to each side, and
    1/2 - t of them are of other classes; the mean of 1/2 + t is 3/4. MAP@R counts 2 t at precision 1 and then, at each
    distance r from t to 1/2, one in two at precision (t + r) / 2 r; over all t that makes 11/16.
    """
    monkeypatch.setattr(metrics_demo, "POINTS_PER_CLASS", 400)
    points, labels = sectors(1.0, 0)
    scores = metrics_demo.retrieval_metrics(points, labels, k=(1,))
    assert scores["r_precision"] == pytest.approx(3 / 4, abs=0.003)
    assert scores["map_at_r"] == pytest.approx(11 / 16, abs=0.003)


@pytest.mark.parametrize("share", SHARES.values())
def test_gaps_between_classes_are_wider_than_within(share: float) -> None:
    points, labels = sectors(share, 0)
    assert (points.shape, np.bincount(labels).tolist()) == (
        (CLASSES * POINTS_PER_CLASS, 2),
        [POINTS_PER_CLASS] * CLASSES,
    )
    angles = np.sort(np.mod(np.arctan2(points[:, 1], points[:, 0]), 2 * np.pi))
    gaps = np.sort(np.diff(angles, append=angles[0] + 2 * np.pi))
    assert gaps[-CLASSES] > 1.3 * gaps[-CLASSES - 1]


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "metrics"]) == 0
    out = capsys.readouterr().out
    assert "made for this table (no paper's)" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["well", "clustered", *["100.0"] * 5] in rows
    assert ["the", "1st", "and", "the", "10th", "100.0", "20.0", "12.0"] in rows
    assert main(["benchmark", "metrics", "--json", "--seed", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["metrics"] for row in printed["embeddings"]] == [item.metrics for item in embeddings(1)]
    assert [row["found"] for row in printed["rankings"]] == [[1], [1, 10], [1, 2], list(range(1, 11))]


def test_pictures_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("m.png", "new/m.svg", "m.PDF", "m.html"):
        assert main(["benchmark", "metrics", "--out", str(tmp_path / name)]) == 0
        assert f"The picture: {tmp_path / name}" in capsys.readouterr().out
    with Image.open(tmp_path / "m.png") as image:
        image.load()
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)
        colours = {colour[:3] for _, colour in image.getcolors(1 << 24)}
    assert {(0x4A, 0x7B, 0xDC), (0x8D, 0x6E, 0x63)} <= colours  # the first class's and the eighth's
    assert ElementTree.parse(tmp_path / "new" / "m.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "m.PDF").read_bytes().startswith(b"%PDF")
    reader = Reader((tmp_path / "m.html").read_text())
    assert [tag for tag, _ in reader.tags].count("img") == len(SHARES)
    for text in ("no paper's", "72.0", "the 1st and the 10th", "12.0"):
        assert text in reader.text
    assert draw(embeddings(), rankings(), "svg") == (tmp_path / "new" / "m.svg").read_bytes()


def test_the_tables_need_only_numpy() -> None:
    """Print the tables in a new process, to see the modules that it loads."""
    code = """
import sys
from zoo.cli.main import main
assert main(["benchmark", "metrics"]) == 0
print({"torch", "timm", "matplotlib", "sklearn", "scipy"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith("set()\n")


def test_random_embeddings_score_by_chance_alone() -> None:
    """P@1 is near 1 / classes; NMI rises with the number of classes although nothing is learnt (Reality, 2.3)."""
    scores = metrics_demo.random_scores(points=1000, classes=(2, 10, 100))
    for classes, by_name in scores.items():
        assert by_name["recall_at_1"] == pytest.approx(1 / classes, abs=4 * (1 / classes / 1000) ** 0.5)
    nmis = [by_name["nmi"] for by_name in scores.values()]
    assert nmis == sorted(nmis)
    assert nmis[-1] > 0.4
    assert [row[0] for row in metrics_demo.random_table(scores).rows] == ["2", "10", "100"]
