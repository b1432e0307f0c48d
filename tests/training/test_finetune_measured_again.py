"""The scores of `zoo finetune` are those of `zoo evaluate` and `zoo verify` on the same folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import zoo
from tests.training.cached.pictures import make_model, write_pictures
from training.finetune import Finetuned, FinetuneRequest, finetune
from zoo.cli.main import main
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.remeasure import remeasure
from zoo.models.results import read_results

pytestmark = pytest.mark.slow

QUICK = ["schedule.epochs=1", "schedule.steps=2", "data.validation=0"]


def fit(own_zoo: Path, source: Path) -> Finetuned:
    make_model(own_zoo / "models" / "toy")
    return finetune(source, FinetuneRequest("toy", "mine", settings=QUICK, views=1, device="cpu"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write images of eight classes, each with an unreadable file, and of one class with a single image."""
    root = write_pictures(tmp_path / "products")
    for label in range(8):
        (root / f"class {label}" / "broken.png").write_bytes(b"no image")
    (root / "alone").mkdir()
    (root / "class 0" / "0.png").rename(root / "alone" / "0.png")
    return root


def test_the_held_out_classes_are_measured_and_verified(
    root: Path, own_zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = fit(own_zoo, root)
    (card,) = read_results(own_zoo / "models" / "mine")
    test, train = fitted.split.test, fitted.split.train
    assert (len(train.classes), len(test.classes), len(train) + len(test)) == (6, 2, 8 * 6 - 1)

    (check,) = remeasure(own_zoo / "models" / "mine", root)
    assert (check.name, check.ok) == ("scores folder test torch fp32", True)

    capsys.readouterr()
    assert main(["evaluate", "mine", "--data", str(root), "--device", "cpu", "-k", "1", "--json", "--save"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert {row.metric: row.after for row in fitted.rows}.items() <= found["metrics"].items()
    same = ("model", "dataset", "split", "protocol", "runtime", "precision", "dim", "queries", "classes")
    same += ("fingerprint", "versions")
    assert [found[key] for key in same] == [card[key] for key in same]
    assert (found["metrics"], found["intervals"]) == (card["metrics"], card["intervals"])
    assert (found["queries"], found["classes"], found["unreadable"]) == (len(test), 2, 2)
    assert [result["date"] for result in read_results(own_zoo / "models" / "mine")] == [found["date"]]
    assert "measured on the 2 classes that were held out when mine was made" in err
    assert "images have changed" not in err
    assert err.count("zoo: left out: image") == 2

    model = zoo.load("mine", device="cpu")
    # More metrics are measured here, and the intervals are the same.
    usual = zoo.evaluate(model, data=root, unreadable={}, metrics="ranking")
    assert {row.metric: row.after_interval for row in fitted.rows}.items() <= usual.intervals.items()
    learnt = zoo.evaluate(model, split="train", data=root, k=(1,), unreadable={})
    rows = model.embed(train.images)
    assert (learnt.split, learnt.queries, learnt.classes, learnt.unreadable) == ("train", len(train), 6, 6)
    assert learnt.metrics == pytest.approx(retrieval_metrics(rows, train.labels, (1,)))
    whole = zoo.evaluate(model, split="all", data=root, k=(1,), unreadable={})
    assert (whole.split, whole.queries, whole.queries_without_relatives, whole.unreadable) == ("all", 48, 1, 8)


def test_a_table_too(tmp_path: Path, own_zoo: Path) -> None:
    root = write_pictures(tmp_path / "products")
    table = tmp_path / "products.csv"
    with table.open("w", newline="") as file:
        rows = [(path.relative_to(tmp_path), path.parent.name) for path in sorted(root.rglob("*.png"))]
        csv.writer(file).writerows([("image", "label"), *rows])
    fitted = fit(own_zoo, table)
    (check,) = remeasure(own_zoo / "models" / "mine", table)
    assert check.ok is True
    found = zoo.evaluate(zoo.load("mine", device="cpu"), data=table, k=(1,), unreadable={})
    assert (found.split, found.queries) == ("test", 12)
    assert found.metrics["map_at_r"] == next(row.after for row in fitted.rows if row.metric == "map_at_r")
    # The same pictures as a folder: the classes are found, the images have other names.
    (check,) = remeasure(own_zoo / "models" / "mine", root)
    assert check.ok is True
