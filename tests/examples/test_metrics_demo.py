"""The metrics demo, compared with scikit-learn, pytorch-metric-learning and hand calculations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from examples import metrics_demo
from examples.metrics_demo import CLASSES, SHARES, embedding_scores, random_scores, ranking_scores, sectors
from zoo.evaluation import retrieval_metrics


def test_rankings_by_single_steps() -> None:
    draws = np.random.default_rng(0)
    for relatives in (1, 3, 10):
        for _ in range(20):
            found = [rank for rank in range(1, relatives + 1) if draws.random() < 0.5]
            total = sum(sum(other <= rank for other in found) / rank for rank in found)
            expected = {"recall_at_1": float(1 in found), "r_precision": len(found) / relatives}
            assert ranking_scores(found, relatives) == pytest.approx({**expected, "map_at_r": total / relatives})


@pytest.mark.parametrize("share", SHARES.values())
def test_scores_are_those_of_other_libraries(share: float) -> None:
    points, labels = sectors(share, 0)
    scores = embedding_scores(points, labels)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    clusters = KMeans(CLASSES, n_init=20, random_state=0).fit_predict(unit)
    assert scores["nmi"] == pytest.approx(normalized_mutual_info_score(labels, clusters))
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", knn_func=CustomKNN(CosineSimilarity()))
    theirs = calculator.get_accuracy(torch.from_numpy(unit), torch.from_numpy(labels))
    ours = [scores[name] for name in ("recall_at_1", "r_precision", "map_at_r")]
    assert ours == pytest.approx([theirs[name] for name in names], abs=1e-6)


def test_the_limit_of_classes_that_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calculate the limit for many points per class.

    A query is at t of its class's width from the nearest edge, t <= 1/2. Its R nearest reach 1/2 to each side, and
    1/2 - t of them are of other classes; the mean of 1/2 + t is 3/4. MAP@R counts 2 t at precision 1 and then, at each
    distance r from t to 1/2, one in two at precision (t + r) / 2 r; over all t that makes 11/16.
    """
    monkeypatch.setattr(metrics_demo, "POINTS_PER_CLASS", 400)
    scores = retrieval_metrics(*sectors(1.0, 0), k=(1,))
    assert scores["r_precision"] == pytest.approx(3 / 4, abs=0.003)
    assert scores["map_at_r"] == pytest.approx(11 / 16, abs=0.003)


@pytest.mark.slow
def test_the_script_prints_both_tables_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three metrics agree and two differ; MAP@R of two relatives of ten, at ranks 1 and 10: (1/1 + 2/10) / 10."""
    metrics_demo.main(["--out", str(tmp_path / "new" / "m.png")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["well", "clustered", *["1.0000"] * 5] in rows
    (hardly,) = [row for row in rows if row[:1] == ["hardly"]]
    assert hardly[1:4] == ["1.0000"] * 3
    assert float(hardly[5]) < 0.8
    assert ["the", "1st", "and", "the", "10th", "1.0000", "0.2000", "0.1200"] in rows
    with Image.open(tmp_path / "new" / "m.png") as image:
        image.load()


def test_random_embeddings_score_by_chance_alone() -> None:
    """P@1 is near 1 / classes; NMI rises with the number of classes although nothing is learnt (Reality, 2.3)."""
    scores = random_scores(points=1000, classes=(2, 10, 100))
    for classes, by_name in scores.items():
        n = int(classes)
        assert by_name["recall_at_1"] == pytest.approx(1 / n, abs=4 * (1 / n / 1000) ** 0.5)
    nmis = [by_name["nmi"] for by_name in scores.values()]
    assert nmis == sorted(nmis)
    assert nmis[-1] > 0.4
