"""`zoo gallery rebuild` and `rollback` with real models, images and labels."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from serving.gallery import VectorGallery
from serving.gallery.backup import verify_gallery
from serving.gallery.calibration import calibrate_gallery, stored_calibration
from serving.gallery.evaluate import report
from serving.gallery.filters import Filter
from serving.gallery.gallery import STORE
from serving.gallery.indexing import index_folder
from serving.gallery.originals import Originals, indexed_folders
from serving.gallery.rebuild import ModelComparison
from serving.gallery.store import Store
from tests.commandline import parsed
from tests.commandline import run_here as run
from tests.raising import raises
from tests.serving import toys
from tests.serving.running import local_client
from tests.serving.toys import content
from zoo.cli import options
from zoo.errors import GalleryError, ModelMismatchError, ModelNotFoundError, UsageError, VariantNotFoundError
from zoo.evaluation import PerQuery, intervals_over_classes, per_query
from zoo.evaluation.statistics import SIGNED
from zoo.models.load import Embedder
from zoo.models.names import find_model

pytestmark = pytest.mark.usefixtures("unannounced")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def gallery(folder: Path, model: Embedder, tmp_path: Path) -> Path:
    index_folder(model, str(model.folder), folder, tmp_path / "gallery")
    return tmp_path / "gallery"


def told(capsys: Capture, command: str, *words: object) -> dict:
    run(command, *words, "--json")
    return json.loads(capsys.readouterr().out)


def vectors(path: Path) -> np.ndarray:
    assert [check for check in verify_gallery(path) if check.ok is False] == []
    with VectorGallery.open(path) as gallery:
        return content(gallery)[1]


def test_the_gallery_is_as_if_the_new_model_had_indexed_it(
    gallery: Path, folder: Path, model: Embedder, other_model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    with VectorGallery.open(gallery) as opened:
        sources = [item.source for item in opened.store.items(limit=100)]
        before = calibrate_gallery(opened)
    outcome = told(capsys, "gallery rebuild", gallery, "--model", other_model.folder)
    assert (outcome["embedded"], outcome["missing"], outcome["swapped"]) == (24, [], False)
    assert outcome["models"] == [model.card.identity, other_model.card.identity]
    assert outcome["date"].startswith("20")
    with VectorGallery.open(gallery) as opened:
        assert opened.card == model.card
    outcome = told(capsys, "gallery rebuild", gallery, "--model", other_model.folder, "--swap")
    assert (outcome["embedded"], outcome["swapped"]) == (0, True)
    run("gallery stats", gallery)
    assert "has embeddings by toy-pool as well: zoo gallery rollback" in capsys.readouterr().out
    np.testing.assert_allclose(vectors(gallery), other_model.embed([folder / one for one in sources]), atol=1e-5)
    with VectorGallery.open(gallery) as opened:
        assert (opened.card, opened.model_ref) == (other_model.card, str(other_model.folder))
        after = stored_calibration(opened)
        assert after
        assert after == calibrate_gallery(opened) != before, "fitted to the new model's similarities"
    assert run("gallery rollback", gallery) == 0
    assert "has toy-pool again" in capsys.readouterr().out
    np.testing.assert_allclose(vectors(gallery), model.embed([folder / one for one in sources]), atol=1e-5)
    with VectorGallery.open(gallery) as opened:
        assert stored_calibration(opened) == before


def test_the_command_that_swaps_the_models_is_printed_with_all_options(
    gallery: Path, folder: Path, other_model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "my images").mkdir()
    words = [gallery, "--model", other_model.folder, "--images", folder, "--images", tmp_path / "my images"]
    words += ["--missing", "thumbnail", "--margin", 0.5, "--batch-size", 7]
    assert run("gallery rebuild", *words) == 0
    swap = shlex.split(capsys.readouterr().out.strip().rpartition("zoo gallery rebuild ")[2])
    assert parsed("gallery rebuild", *swap) == {**parsed("gallery rebuild", *words), "swap": True}
    assert run("gallery rebuild", *swap) == 0
    with VectorGallery.open(gallery) as opened:
        assert opened.card == other_model.card


def test_rollback_to_a_model_that_has_moved(
    folder: Path, model: Embedder, other_model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    old, new = Path(shutil.copytree(model.folder, tmp_path / "old")), tmp_path / "new"
    index_folder(model, str(old), folder, tmp_path / "g")
    run("gallery rebuild", tmp_path / "g", "--model", other_model.folder, "--swap")
    old.rename(new)
    with pytest.raises(ModelNotFoundError):
        run("gallery rollback", tmp_path / "g")
    assert run("gallery rollback", tmp_path / "g", "--model", new) == 0
    with VectorGallery.open(tmp_path / "g") as opened:
        assert (opened.card, opened.model_ref) == (model.card, str(new))
    capsys.readouterr()
    picture = next(folder.rglob("*.png"))
    assert run("search", tmp_path / "g", picture, "-k", 1) == 0, "without --model"
    assert picture.name in capsys.readouterr().out


def test_both_models_are_measured_as_the_evaluation_measures(
    gallery: Path, folder: Path, model: Embedder, other_model: Embedder, capsys: Capture
) -> None:
    outcome = told(capsys, "gallery rebuild", gallery, "--model", other_model.folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    labels = [path.parent.name for path in files]
    old, new = (per_query(one.embed(files), labels, (1,)) for one in (model, other_model))
    first, second = outcome["compared"]
    assert (first["step"], second["step"], second["queries"]) == ("toy-pool", "other", 24)
    for name in ("recall_at_1", "map_at_r"):
        assert first["metrics"][name] == pytest.approx(old.means()[name], abs=1e-6)
        assert second["metrics"][name] == pytest.approx(new.means()[name], abs=1e-6)
        lost = {name: old.values[name] - new.values[name]}
        assert second["loss"]["intervals"][name] == pytest.approx(
            intervals_over_classes(lost, old.classes, SIGNED)[name], abs=1e-6
        )
    run("gallery rebuild", gallery, "--model", other_model.folder)
    table = capsys.readouterr().out
    assert f"{first['metrics']['map_at_r']:.4f}" in table
    assert f"{-second['loss']['map_at_r']:+.4f} [" in table


def test_classes_that_a_model_learnt_do_not_search(
    gallery: Path, folder: Path, model: Embedder, other_model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    learner = Path(shutil.copytree(other_model.folder, tmp_path / "learner"))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    labels = [path.parent.name for path in files]
    learnt = min(labels)
    (learner / "recipe.json").write_text(json.dumps({"training_data": {"class_names": [learnt, "elsewhere"]}}))
    outcome = told(capsys, "gallery rebuild", gallery, "--model", learner)
    searching = [label != learnt for label in labels]
    for row, one in zip(outcome["compared"], (model, other_model), strict=True):
        values = per_query(one.embed(files), labels, (1,)).values["map_at_r"]
        assert row["queries"] == sum(searching)
        assert row["metrics"]["map_at_r"] == pytest.approx(values[searching].mean(), abs=1e-6)
    assert outcome["learnt_labels"] == [learnt]
    run("gallery rebuild", gallery, "--model", learner)
    assert learnt in capsys.readouterr().out
    (learner / "recipe.json").write_text(json.dumps({"training_data": {"class_names": sorted(set(labels))}}))
    outcome = told(capsys, "gallery rebuild", gallery, "--model", learner)
    assert (outcome["compared"], outcome["not_worse"]) == (None, False)


MODELS, DATE = ({"name": "a"}, {"name": "b"}), "2026-11-25T00:00:00+00:00"


def compared(losses: list[float], classes: list[int]) -> ModelComparison:
    """Of two models, the second of which loses so much of both scores, query by query."""
    from serving.gallery.evaluate import Step

    rows = np.arange(len(losses))
    before = {name: np.ones(len(losses)) for name in ("recall_at_1", "map_at_r")}
    after = {name: 1 - np.array(losses) for name in before}
    steps = [
        Step(name, "gallery", PerQuery(values, rows, np.array(classes), 0))
        for name, values in (("a", before), ("b", after))
    ]
    return ModelComparison(report(steps, joined=True), None, None, MODELS, DATE)  # type: ignore[arg-type]


def test_what_not_worse_means() -> None:
    classes = list(range(40))
    assert compared([0.0] * 40, classes).not_worse(0)
    assert compared([-0.5] * 40, classes).not_worse()
    assert compared([0.009] * 40, classes).not_worse(0.01)
    assert not compared([0.02] * 40, classes).not_worse(0.01)
    # As good on average, but so uneven that it may well be worse on other classes.
    assert not compared([0.5, -0.5] * 20, classes).not_worse(0.01)
    assert not compared([0.0] * 40, [0] * 40).not_worse(0.01), "one class says nothing of others"
    assert not ModelComparison([], "no labels", None, MODELS, DATE).not_worse()  # type: ignore[arg-type]
    assert compared([0.02] * 40, classes).undecided() is None
    assert compared([0.02, 0.03] * 20, classes).verdict() == "worse in R@1 and MAP@R"
    assert compared([-0.02, -0.03] * 20, classes).verdict() == "better in R@1 and MAP@R"
    assert compared([0.5, -0.5] * 20, classes).verdict() == "not shown to be better or worse"
    assert compared([0.0] * 40, [0] * 40).undecided() is not None


def test_the_verdict_is_adjusted_for_two_metrics() -> None:
    """The fault: the intervals of both metrics decided, each for itself, so that chance decided one time in ten."""
    both = compared([0.034 + 0.1, 0.034 - 0.1] * 20, list(range(40)))
    assert both.rows[1]["loss"]["intervals"]["recall_at_1"][0] > 0
    assert both.rows[1]["loss"]["verdicts"] == {"recall_at_1": "undecided", "map_at_r": "undecided"}
    assert not both.is_worse()
    assert compared([0.05 + 0.1, 0.05 - 0.1] * 20, list(range(40))).is_worse()


def write_blind_model(folder: Path, rows: int) -> Path:
    """A model that sees one corner of the picture: the first `rows` of the 192 means that the toy sees."""
    import onnx
    from onnx import numpy_helper

    from zoo.files import sha256_of
    from zoo.models.card import read_card

    toys.write_model(folder, seed=3, name="bad")
    graph = onnx.load(folder / "onnx" / "model.onnx")
    for tensor in graph.graph.initializer:
        if tensor.name == "projection":
            values = numpy_helper.to_array(tensor).copy()
            values[rows:] = 0
            tensor.CopyFrom(numpy_helper.from_array(values, "projection"))
    onnx.save(graph, folder / "onnx" / "model.onnx")
    card = read_card(folder)
    files = {**card.files, "onnx/model.onnx": sha256_of(folder / "onnx" / "model.onnx")}
    type(card)(**{**vars(card), "files": files}).write(folder)
    return folder


def test_a_clearly_worse_model_is_swapped_in_by_force_alone(model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    rng = np.random.default_rng(5)
    for label in range(12):
        (tmp_path / "grids" / f"grid{label}").mkdir(parents=True)
        grid = rng.uniform(0, 255, (8, 8, 3))
        for number in range(4):
            noisy = np.clip(grid + rng.normal(0, 20, grid.shape), 0, 255).astype(np.uint8)
            Image.fromarray(noisy).resize((32, 32)).save(tmp_path / "grids" / f"grid{label}" / f"{number}.png")
    gallery = tmp_path / "g"
    index_folder(model, str(model.folder), tmp_path / "grids", gallery)
    bad = write_blind_model(tmp_path / "bad", 1)
    outcome = told(capsys, "gallery rebuild", gallery, "--model", bad, "--swap")
    assert outcome["compared"][1]["loss"]["intervals"]["recall_at_1"][0] > 0.2
    assert (outcome["swapped"], run("gallery rebuild", gallery, "--model", bad, "--swap")) == (False, 1)
    again = shlex.split(capsys.readouterr().out.strip().rpartition("zoo gallery rebuild ")[2])
    assert again[-1] == "--force"
    with VectorGallery.open(gallery) as opened:
        assert opened.card == model.card
    with raises(UsageError, "option-without-effect"):
        run("gallery rebuild", gallery, "--model", bad, "--force")
    assert run("gallery rebuild", *again) == 0
    with raises(UsageError, "already-exists"):
        run("gallery rebuild", gallery, "--model", bad)


def test_a_worse_model_is_not_taken(gallery: Path, model: Embedder, tmp_path: Path, capsys: Capture) -> None:
    bad = write_blind_model(tmp_path / "bad", 3)
    assert run("gallery rebuild", gallery, "--model", bad, "--swap-if-not-worse") == 1
    said = capsys.readouterr().out
    assert "The new model is not shown to be better or worse. It is not shown that no score falls" in said
    assert "the gallery keeps its model" in said
    with VectorGallery.open(gallery) as opened:
        assert opened.card == model.card
    same = toys.write_model(tmp_path / "same", seed=0, name="same")
    (same / "card.json").write_text((same / "card.json").read_text().replace('"resize": 32', '"resize": 33'))
    assert run("gallery rebuild", gallery, "--model", same, "--swap-if-not-worse", "--margin", 0.2) == 0
    said = capsys.readouterr().out
    assert "has the new model. To go back: zoo gallery rollback" in said


@pytest.fixture
def without_graph(tmp_path: Path) -> Path:
    """A model that torch alone can load."""
    folder = Path(shutil.copytree(find_model("margin-lite0-cub2010-lda"), tmp_path / "without-graph"))
    assert not (folder / "onnx").exists()
    return folder


@pytest.mark.parametrize("option", ["--swap", "--swap-if-not-worse"])
def test_a_model_that_no_service_can_load_is_not_swapped_in(
    gallery: Path, model: Embedder, without_graph: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)  # torch is not installed
    with raises(VariantNotFoundError):
        run("gallery rebuild", gallery, "--model", without_graph, option)
    with VectorGallery.open(gallery) as opened:
        assert (opened.card, opened.store.slot()) == (model.card, None)


@pytest.mark.slow
def test_a_graph_that_is_missing_is_made_before_services_need_it(gallery: Path, without_graph: Path) -> None:
    with local_client(gallery) as http:
        assert http.get("/readyz").status_code == 200
        assert run("gallery rebuild", gallery, "--model", without_graph, "--swap", "--force") == 0
        assert http.get("/model").json()["name"] == "margin-lite0-cub2010-lda"
        assert http.get("/readyz").status_code == 200


def test_without_labels_only_the_user_decides(
    gallery: Path, other_model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    with VectorGallery.open(gallery) as opened:
        for item in opened.store.items(limit=100):
            opened.store.describe(item.id, None, {})
    assert run("gallery rebuild", gallery, "--model", other_model.folder, "--swap-if-not-worse") == 1
    said = capsys.readouterr().out
    assert "not compared" in said
    assert "nothing could be compared: the gallery keeps its model" in said
    swap = shlex.split(said.strip().rpartition("zoo gallery rebuild ")[2])
    assert swap == [str(gallery), "--model", str(other_model.folder), "--swap"]
    assert run("gallery rebuild", *swap) == 0
    with VectorGallery.open(gallery) as opened:
        assert opened.card == other_model.card


def test_images_that_are_not_found(gallery: Path, folder: Path, other_model: Embedder, capsys: Capture) -> None:
    """A small one is its thumbnail; of the others the file must be there, with the very same content."""
    large = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("large.jpg"))
    shutil.move(folder / large[0], folder.parent / "elsewhere.jpg")
    Image.new("RGB", (300, 300)).save(folder / large[1])  # another image of the same name
    for small in folder.rglob("*.png"):
        small.unlink()
    words = gallery, "--model", other_model.folder, "--swap"
    assert run("gallery rebuild", *words) == 1
    said = capsys.readouterr().out
    assert "22 items embedded" in said
    assert all(one in said for one in large[:2])
    assert "The gallery keeps its model." in said
    (folder.parent / "more" / Path(large[0]).parent).mkdir(parents=True)
    shutil.copy(folder.parent / "elsewhere.jpg", folder.parent / "more" / large[0])
    outcome = told(capsys, "gallery rebuild", *words, "--images", folder.parent / "more")
    assert (outcome["embedded"], [one["source"] for one in outcome["missing"]]) == (1, [large[1]])
    outcome = told(capsys, "gallery rebuild", *words, "--missing", "thumbnail")
    assert (outcome["embedded"], outcome["from_thumbnails"], outcome["swapped"]) == (1, 1, True)
    with VectorGallery.open(gallery) as opened:
        (item,) = (item for item in opened.store.items(limit=100) if item.source == large[1])
        expected = other_model.embed(opened.store.thumbnail(item.id).data)[0]
        np.testing.assert_allclose(opened.store.embedding(item.id), expected, atol=1e-5)
        small = next(item for item in opened.store.items(limit=100) if item.source.endswith("0.png"))
        np.testing.assert_allclose(
            opened.store.embedding(small.id), other_model.embed(opened.store.thumbnail(small.id).data)[0], atol=1e-5
        )


def test_a_calibration_that_fails_leaves_the_comparison(
    gallery: Path, folder: Path, other_model: Embedder, capsys: Capture
) -> None:
    with VectorGallery.open(gallery) as opened:
        calibrate_gallery(opened)
        few = {
            item.id for label in ("green disc", "red stripes") for item in opened.store.items(0, 2, Filter((label,)))
        }
        opened.remove([item.id for item in opened.store.items(limit=100) if item.id not in few])
    outcome = told(capsys, "gallery rebuild", gallery, "--model", other_model.folder, "--swap-if-not-worse")
    assert [row["queries"] for row in outcome["compared"]] == [4, 4]
    assert outcome["not_compared"] is None
    assert "needs" in outcome["not_calibrated"]


def test_items_without_a_picture_can_be_dropped(gallery: Path, folder: Path, other_model: Embedder) -> None:
    lost = next(folder.rglob("large.jpg"))
    lost.unlink()
    assert run("gallery rebuild", gallery, "--model", other_model.folder, "--swap", "--missing", "drop") == 0
    assert len(vectors(gallery)) == 23
    with VectorGallery.open(gallery) as opened:
        assert lost.relative_to(folder).as_posix() not in {place.source for place in opened.store.places()}


def test_only_the_item_s_own_file_is_taken_and_nothing_that_is_no_file(gallery: Path, folder: Path) -> None:
    with VectorGallery.open(gallery) as opened:
        assert indexed_folders(opened) == [folder]
        item = opened.store.item(1)
    originals = Originals([folder])
    data = originals.read(item)
    assert data == (folder / item.source).read_bytes()
    (folder.parent / "outside.png").write_bytes(data)
    (folder / "link.png").symlink_to(folder.parent / "outside.png")
    outside = ("../outside.png", str(folder.parent / "outside.png"), "link.png")
    for source in (*outside, "/dev/zero", "/proc/kmsg", "\0", "x" * 5000, ".", "", "/etc/hostname"):
        changed = type(item)(**{**vars(item), "source": source})
        assert originals.read(changed) is None
    absolute = type(item)(**{**vars(item), "source": str(folder / item.source)})
    assert originals.read(absolute) == data


@pytest.mark.slow
def test_what_makes_no_sense_is_refused(
    gallery: Path, model: Embedder, other_model: Embedder, tmp_path: Path, capsys: Capture
) -> None:
    with raises(UsageError, "already-exists"):
        run("gallery rebuild", gallery, "--model", model.folder)
    with raises(UsageError, "no-other-model"):
        run("gallery rollback", gallery)
    with pytest.raises(UsageError, match="--margin"):
        run("gallery rebuild", gallery, "--model", other_model.folder, "--margin", -1)
    with pytest.raises(GalleryError, match="zoo index"):
        run("gallery rebuild", tmp_path / "none", "--model", other_model.folder)
    with pytest.raises(UsageError, match="there is no such folder"):
        run("gallery rebuild", gallery, "--model", other_model.folder, "--images", tmp_path / "none")
    run("gallery rebuild", gallery, "--model", other_model.folder)
    with raises(UsageError, "no-other-model"):
        run("gallery rollback", gallery)  # a model that was begun is not a previous model
    run("gallery rebuild", gallery, "--model", other_model.folder, "--swap")
    with raises(ModelMismatchError, "other-model", "toy-pool"):
        run("gallery rollback", gallery, "--model", other_model.folder)
    third = toys.write_model(tmp_path / "third", 3, "third")
    with raises(UsageError, "already-exists", model.card.name):
        run("gallery rebuild", gallery, "--model", third)
    run("gallery rollback", gallery)
    run("gallery rollback", gallery)
    run("gallery rollback", gallery, "--discard")
    with raises(UsageError, "no-other-model"):
        run("gallery rollback", gallery)
    with closing(Store(gallery / STORE)) as store:
        assert store.staging.slot() is None
    assert len(vectors(gallery)) == 24
