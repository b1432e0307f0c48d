"""Functions behind commands, as a user of Python calls them; the commands have their own tests."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import zoo
from tests.commandline import run_here
from tests.models import make_model
from tests.raising import raises
from zoo.errors import DatasetError, EvaluationError, ItemNotFoundError, ModelNotFoundError, UsageError
from zoo.evaluation import retrieval_metrics


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return a folder of eight pictures of two classes, of which the last is a copy of the first in another format."""
    draw = np.random.default_rng(0)
    for number in range(7):
        small = draw.integers(0, 256, (6, 6, 3), np.uint8)
        file = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC).save(file)
    Image.open(tmp_path / "pictures" / "a" / "0.png").save(tmp_path / "pictures" / "b" / "copy.jpg", quality=90)
    return tmp_path / "pictures"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    make_model(tmp_path / "toy")
    return tmp_path / "toy"


def test_verify_gives_checks_one_after_another(toy: Path) -> None:
    checks = zoo.verify(zoo.load(toy), quick=True)
    assert next(iter(checks)).ok
    assert not any(check.fails for check in checks)
    (toy / "config.json").write_text("{}")
    assert any(check.fails for check in zoo.verify(toy, quick=True))
    with pytest.raises(ModelNotFoundError):
        zoo.verify("no-such-model")  # at the call, not at the first check
    with pytest.raises(DatasetError):
        zoo.verify(toy, toy / "nowhere")


def test_embed_writes_what_score_reads(toy: Path, pictures: Path, tmp_path: Path) -> None:
    (pictures / "a" / "bad.png").write_text("no image")
    embedded = zoo.embed(toy, pictures, tmp_path / "rows.npy", runtime="torch")
    assert embedded.rows.shape == (8, embedded.model.dim)
    assert (sorted(set(embedded.labels)), len(embedded.left_out["unreadable"])) == (["a", "b"], 1)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), embedded.rows)
    sources = [pictures / image["path"] for image in embedded.images]
    np.testing.assert_allclose(embedded.model.embed(sources), embedded.rows, atol=1e-6)
    assert run_here("score", tmp_path / "rows.npy", "--labels", tmp_path / "rows.csv") == 0
    with raises(UsageError, "already-exists"):
        zoo.embed(toy, pictures, tmp_path / "rows.npy")
    assert zoo.embed(embedded.model, pictures / "a" / "0.png").files == ()


def test_compare_agrees_with_two_evaluations_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(1)
    labels = np.repeat(np.arange(12), 5)
    means = draw.standard_normal((12, 8))
    good, poor = (means[labels] + noise * draw.standard_normal((60, 8)) for noise in (0.4, 2.0))
    compared = zoo.compare(good, poor, labels, margins={"map_at_r": 0.005})
    first, second = (retrieval_metrics(rows, labels) for rows in (good, poor))
    for metric in ("recall_at_1", "map_at_r"):
        assert compared.differences[metric].mean == pytest.approx(first[metric] - second[metric])
        assert str(compared.verdicts[metric]) == "better"
    for name, rows in (("good", good), ("poor", poor)):
        np.save(tmp_path / f"{name}.npy", rows)
    (tmp_path / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    files = [tmp_path / "good.npy", tmp_path / "poor.npy"]
    run_here("score", *files, "--labels", tmp_path / "labels.txt", "--margin", "map_at_r=0.005", "--json")
    assert (
        json.loads(capsys.readouterr().out)["differences"] == json.loads(json.dumps(compared.to_json()))["differences"]
    )
    assert "<table>" in compared._repr_html_()
    for margins, code in (({"mrr": 0.1}, "unknown-name"), ({"map_at_r": -1.0}, "invalid-value")):
        with raises(UsageError, code):
            zoo.compare(good, poor, labels, margins=margins)
    with pytest.raises(EvaluationError):
        zoo.compare(good, poor[:-1], labels)


def test_copies_are_found_reported_and_moved(pictures: Path, tmp_path: Path) -> None:
    found = zoo.duplicates(pictures, gallery=tmp_path / "gallery", out=[tmp_path / "copies.csv"])
    (group,) = found.report.groups
    assert {copy.source for copy in group} == {"a/0.png", "b/copy.jpg"}
    assert found.indexed is not None
    assert found.indexed.added == 8
    assert len((tmp_path / "copies.csv").read_text().splitlines()) == 3
    with raises(UsageError, "not-confirmed"):
        zoo.duplicates(tmp_path / "gallery", move_to=tmp_path / "moved")
    asked: list[Path] = []
    moved = zoo.duplicates(
        tmp_path / "gallery", move_to=tmp_path / "moved", confirm=lambda folders: bool(asked.extend(folders) or True)
    )
    assert asked == [pictures]
    assert moved.moved is not None
    assert len(moved.moved.moved) == 1
    with raises(UsageError, "unknown-format"):
        zoo.duplicates(pictures, out=["copies.txt"])


def test_two_models_become_one(toy: Path, pictures: Path) -> None:
    make_model(toy.parent / "other")
    model = zoo.load(zoo.ensemble([toy, zoo.load(toy.parent / "other", "torch")], "both"), "torch")
    parts = [zoo.load(folder, "torch").embed([pictures / "a" / "0.png"]) for folder in (toy, toy.parent / "other")]
    expected = np.concatenate(parts, axis=1) / np.sqrt(2)
    np.testing.assert_allclose(model.embed([pictures / "a" / "0.png"]), expected, atol=1e-5)
    with raises(UsageError, "already-exists"):
        zoo.ensemble([toy, toy.parent / "other"], "both")


def test_a_data_set_becomes_a_folder(tmp_path: Path) -> None:
    images = zoo.data.export_dataset("folder", tmp_path / "out", "all", _labelled(tmp_path / "in"))
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.png")) == [
        *("A/0.png", "a-2/0.png"),
    ]
    assert len(images.classes) == 2
    merged = zoo.data.export_dataset("folder", tmp_path / "merged", "all", tmp_path / "in", merge_labels=True)
    assert len(merged.classes) == 1


def _labelled(folder: Path) -> Path:
    for name in ("A", "a"):
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (40, 90, 200) if name == "a" else (200, 10, 10)).save(folder / name / "x.png")
    return folder


def test_a_gallery_is_looked_after(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zoo.index("margin-conv4-glyphs", pictures, out=tmp_path / "gallery") as gallery:
        Image.new("RGB", (64, 64), "red").save(tmp_path / "new.png")
        assert gallery.add([tmp_path / "new.png"], "red", {"year": 1908}).added == 1
        (item,) = gallery.items(where={"year": {"gte": 1900}})
        assert (item.label, len(gallery.items()), len(gallery.items("a"))) == ("red", 9, 4)
        with raises(UsageError, "invalid-value"):
            gallery.add([tmp_path / "new.png"], metadata={"bad": object()})
        with raises(UsageError, "not-found"):
            gallery.add([tmp_path / "none.png"])
        assert gallery.remove([item.id, item.id + 100, "no such key"]) == 1
        facts = gallery.compact()
        assert facts is not None
        assert facts.count == 8
        chosen, _ = gallery.tune(recall=1, kind=["flat"])
        assert chosen is not None
        assert all(check.ok is not False for check in gallery.verify())
        assert gallery.backup(tmp_path / "backup").items == gallery.export(tmp_path / "export") == 8
        assert gallery.calibrate().pairs == gallery.stats()["calibration"]["pairs"] > 0
        sources, stats = [item.source for item in gallery.items()], gallery.stats()
        assert stats["items"] == len(gallery) == 8
    for again in (
        zoo.Gallery.restore(tmp_path / "backup", tmp_path / "again"),
        zoo.Gallery.read_export(tmp_path / "export", tmp_path / "read"),
    ):
        with again:
            assert [item.source for item in again.items()] == sources
    capsys.readouterr()
    run_here("gallery stats", tmp_path / "gallery", "--json")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(stats))


def test_an_item_is_put_described_and_removed(pictures: Path, tmp_path: Path) -> None:
    with zoo.index("margin-conv4-glyphs", pictures, out=tmp_path / "gallery") as gallery:
        Image.new("RGB", (64, 64), "red").save(tmp_path / "new.png")
        put = gallery.put("own/1", tmp_path / "new.png", "red", {"year": 1908, "place": {"town": "x", "street": "y"}})
        assert (put.status, gallery.put("own/1", tmp_path / "new.png", "red").status) == ("created", "updated")
        assert gallery.item("own/1").metadata == {}
        gallery.describe("own/1", metadata={"year": 1908, "place": {"town": "x", "street": "y"}})
        changed = gallery.describe(put.id, "scarlet", {"year": None, "place": {"town": "z"}})
        assert (changed.label, changed.metadata) == ("scarlet", {"place": {"town": "z", "street": "y"}})
        assert gallery.describe("own/1", unlabel=True, metadata={"a": 1}, replace=True, key="own/2") == gallery.item(
            put.id
        )
        item = gallery.item("own/2")
        assert (item.id, item.label, item.metadata) == (put.id, None, {"a": 1})
        for wrong in ({}, {"label": "x", "unlabel": True}, {"metadata": {"bad": object()}}, {"key": "a\nb"}):
            with pytest.raises(UsageError):
                gallery.describe(put.id, **wrong)
        with pytest.raises(ItemNotFoundError):
            gallery.describe("own/1", "red")
        assert gallery.labels() == {"a": 4, "b": 4}
        assert gallery.count("a", {"a": 1}) == 0
        assert gallery.count(where={"a": 1}) == 1
        assert gallery.remove("own/2") == 1
        with pytest.raises(ItemNotFoundError):
            gallery.remove(label="scarlet")
        with raises(UsageError, "conflicting-options"):
            gallery.remove([1], label="a")
        assert (gallery.remove(label="a"), gallery.labels()) == (4, {"b": 4})


def test_copies_of_an_item_are_found_and_new_ones_are_reported(pictures: Path, tmp_path: Path) -> None:
    with zoo.index("margin-conv4-glyphs", pictures, out=tmp_path / "gallery") as gallery:
        first, copy = (next(i for i in gallery.items() if i.source == name) for name in ("a/0.png", "b/copy.jpg"))
        (found,) = gallery.duplicates(first.id)
        assert (found.id, found.source, found.mirrored, found.width) == (copy.id, "b/copy.jpg", False, 96)
        assert found.similarity > 0.95
        with Image.open(BytesIO(gallery.thumbnail(copy.id).data)) as picture:
            assert picture.size == (96, 96)
        Image.open(pictures / "a" / "2.png").save(tmp_path / "again.jpg", quality=85)
        report = gallery.add([tmp_path / "again.jpg"])
        two = next(item for item in gallery.items() if item.source == "a/2.png")
        assert [near["of"] for near in report.near_duplicates] == [[two.id]]
        measured = gallery.evaluate()
        assert {step["step"] for step in measured["steps"]} >= {"gallery, exact"}
        assert measured["items"] == len(gallery)


@pytest.mark.slow
def test_features_are_kept_and_a_run_is_examined(pictures: Path, tmp_path: Path) -> None:
    kept = zoo.features("margin-conv4-glyphs", pictures, out=tmp_path / "kept", views=2, split="all")
    assert (len(kept), kept.views.shape[:2]) == (8, (2, 8))
    trained = zoo.train("margin-conv4-glyphs", settings={"schedule.epochs": 1, "schedule.steps": 2}, name="short")
    health = zoo.doctor(trained)
    assert health.folder == trained.folder
    assert health.to_json()["healthy"] == (health.findings == [])
    again = zoo.reproduce(trained, settings={"schedule.steps": 2})
    assert again.same_weights
    assert again.within
