"""`zoo evaluate`: output, metrics, saved scores and mistakes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scipy import stats

import zoo
from tests.raising import raises
from tests.serving import toys
from zoo.cli import main as cli
from zoo.cli.main import main
from zoo.errors import EvaluationError, UsageError
from zoo.evaluation import per_query
from zoo.models.results import read_results

EVALUATE = ["evaluate", "toy-pool", "--runtime", "onnx", "--dataset", "folder"]


def test_evaluate_prints_json_and_nothing_else(capfd, toy, pictures):
    assert main([*EVALUATE, "--data", str(pictures), "--json", "-k", "1,5"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["model"] == "toy-pool"
    assert result["seconds"] > 0
    assert result["queries"] == len(toys.CLASSES) * toys.PER_CLASS
    assert result["metrics"].keys() == {"recall_at_1", "recall_at_5", "precision_at_1", "r_precision", "map_at_r"}
    low, high = result["intervals"]["map_at_r"]
    assert low <= result["metrics"]["map_at_r"] <= high


def test_evaluate_prints_a_table_writes_a_file_and_saves(capsys, toy, pictures, tmp_path):
    out = tmp_path / "new" / "result.json"
    assert main([*EVALUATE, "--data", str(pictures), "--out", str(out), "--save"]) == 0
    result = json.loads(out.read_text())
    assert read_results(toy) == [result]
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "map_at_r" in line)
    assert f"{result['metrics']['map_at_r']:.4f}" in row
    low, high = result["intervals"]["map_at_r"]
    assert f"{low:.4f} to {high:.4f}" in row
    assert main(["info", "toy-pool"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"measured on {pictures.name} ({result['data']['sha256'][:8]}), all of it, with onnx in fp32" in lines
    for name, value in result["metrics"].items():
        low, high = result["intervals"][name]
        assert any(line.split() == [name, f"{value:.4f}", f"{low:.4f}", "to", f"{high:.4f}"] for line in lines)
    assert main(["info", "toy-pool", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == [result]


def test_few_images_are_measured_at_the_depths_that_they_have(capsys, toy, pictures, tmp_path):
    for source in [file for folder in sorted(pictures.iterdir())[:2] for file in sorted(folder.iterdir())[:3]]:
        copy = tmp_path / "few" / source.parent.name / source.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(source.read_bytes())
    command = [*EVALUATE, "--data", str(tmp_path / "few"), "--json"]
    assert main(command) == 0
    names = json.loads(capsys.readouterr().out)["metrics"].keys()
    assert {"recall_at_1", "recall_at_2", "recall_at_4"} < names
    assert "recall_at_8" not in names
    assert main([*command, "-k", "8"]) == 2


def test_queries_are_measured_at_the_depths_of_their_gallery(capsys, tmp_path):
    """Twelve rows of which seven search: each query has five neighbours."""
    rows = tmp_path / "rows.npy"
    np.save(rows, np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32))
    labels = tmp_path / "labels.csv"
    labels.write_text("label\n" + "".join(f"{row % 2}\n" for row in range(12)))
    queries = tmp_path / "queries.csv"
    queries.write_text("query\n" + "".join(f"{int(row < 7)}\n" for row in range(12)))
    assert main(["score", str(rows), "--labels", str(labels), "--queries", str(queries), "--json"]) == 0
    names = json.loads(capsys.readouterr().out)["metrics"].keys()
    assert "recall_at_4" in names
    assert "recall_at_8" not in names


def test_a_reranked_score_names_its_order_and_is_not_saved(capsys, toy, pictures):
    assert main([*EVALUATE, "--data", str(pictures), "--rerank", "reciprocal", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["protocol"].endswith("re-ranked by reciprocal")
    with raises(UsageError, "conflicting-options"):
        cli.run([*EVALUATE, "--data", str(pictures), "--rerank", "reciprocal", "--save"])
    with raises(UsageError, "conflicting-options"):
        cli.run([*EVALUATE, "--data", str(pictures), "--rerank", "reciprocal", "--metrics", "ranking"])
    assert main([*EVALUATE, "--data", str(pictures), "--rerank", "nothing"]) == 2


def test_scores_are_not_saved_in_a_shipped_model():
    for words in (["margin-conv4-glyphs"], [str(zoo.info("margin-conv4-glyphs").folder)]):
        with raises(UsageError, "not-available") as caught:
            cli.run(["evaluate", *words, "--save"])
        assert "margin-conv4-glyphs" in str(caught.value)


def test_a_model_trained_on_a_folder_gets_a_warning_on_folders(capsys, toy, pictures):
    assert main([*EVALUATE, "--data", str(pictures)]) == 0
    out, err = capsys.readouterr()
    assert re.search(rf"on {pictures.name} \([0-9a-f]{{8}}\), all of it\n", out)
    assert "has seen" not in err
    card = json.loads((toy / "card.json").read_text())
    (toy / "card.json").write_text(json.dumps({**card, "dataset": "folder"}))
    assert main([*EVALUATE, "--data", str(pictures), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["split"] == "all"
    assert "toy-pool was trained on a folder of images. If it was this one, it has seen these classes" in err


@pytest.mark.usefixtures("toy")
def test_evaluate_adds_groups_of_metrics(capsys, pictures):
    assert main([*EVALUATE, "--data", str(pictures), "-k", "1", "--metrics", "ranking,structure"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[0]: row[-1] for row in rows if row}
    assert {"recall_at_1", "map", "spectral_decay"} <= shown.keys()
    assert not {"nmi", "eer"} & shown.keys()
    assert shown["spectral_decay"] == "-"  # one number of all embeddings has no interval over queries
    assert shown["map"] != "-"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["evaluate", "toy-pol", "--runtime", "onnx"], 2, "'toy-pool'"),
        ([*EVALUATE[:3], "onxx", *EVALUATE[4:], "--data", "DIR"], 2, "'onnx'"),
        ([*EVALUATE, "--data", "DIR", "--precision", "fp12"], 2, "fp12"),
        ([*EVALUATE, "--data", "nowhere"], 2, "nowhere"),
        ([*EVALUATE[:-1], "foldr"], 2, "'folder'"),
        ([*EVALUATE, "--data", "DIR", "--split", "tset"], 2, "'test'"),
        ([*EVALUATE, "--data", "DIR", "-k", "1,99"], 2, "recall_at_99"),
        ([*EVALUATE, "--data", "DIR", "--metrics", "structur"], 2, "'structure'"),
        ([*EVALUATE, "--data", "DIR", "--batch-size", "0"], 2, "batch_size"),
        ([*EVALUATE, "--data", "DIR", "--out", "/proc/none/x.json"], 2, "/proc/none/x.json"),
    ],
)
@pytest.mark.usefixtures("toy")
def test_mistakes_end_with_one_message(capsys, pictures, arguments, status, says):
    assert main([str(pictures) if argument == "DIR" else argument for argument in arguments]) == status
    err = capsys.readouterr().err
    assert err.startswith("zoo: error: ")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("toy")
def test_lists_are_repeated_or_have_commas(capsys, pictures):
    words = [*EVALUATE, "--data", str(pictures), "--json"]
    assert main([*words, "-k", "1,3", "--metrics", "structure,verification"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert main([*words, "-k", "1", "-k", "3", "--metrics", "structure", "--metrics", "verification"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == result["metrics"]
    assert {"recall_at_1", "recall_at_3", "eer", "spectral_decay"} <= result["metrics"].keys()
    assert main([*words, "-k", "1,x"]) == 2
    assert "'1,x'" in capsys.readouterr().err


@pytest.fixture
def two_files(tmp_path, monkeypatch):
    """Write a.npy, b.npy of 24 classes of six images, labels y.npy: b is a with noise; both miss a few neighbours."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 6)
    rows = rng.normal(size=(24, 16))[labels] + rng.normal(size=(144, 16))
    np.save("a.npy", rows.astype(np.float32))
    np.save("b.npy", (rows + rng.normal(size=rows.shape)).astype(np.float32))
    np.save("y.npy", labels)
    return tmp_path


def test_two_files_of_embeddings_are_compared(two_files, capsys):
    assert main(["score", "a.npy", "b.npy", "--labels", "y.npy", "--margin", "map_at_r=.9", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    labels = np.load("y.npy")
    values = [per_query(np.load(name), labels, k=(1,)).values for name in ("a.npy", "b.npy")]
    for metric in ("recall_at_1", "map_at_r"):
        by_class = [np.array([value[metric][labels == c].mean() for c in range(24)]) for value in values]
        expected, found = stats.ttest_rel(*by_class), facts["differences"][metric]
        assert found["mean"] == pytest.approx(expected.statistic * stats.sem(by_class[0] - by_class[1]))
        assert found["interval"] == pytest.approx(tuple(expected.confidence_interval()))
        assert (found["over"], found["n"], found["family"]) == ("classes", 1, 2)
        assert "not over seeds" in found["note"]
    assert (facts["differences"]["recall_at_1"]["word"], facts["differences"]["map_at_r"]["word"]) == (
        "better",
        "equivalent",
    )
    assert facts["differences"]["map_at_r"]["margin"] == 0.9
    assert main(["score", "b.npy", "a.npy", "--labels", "y.npy", "--out", "out.json"]) == 0
    text = capsys.readouterr().out
    assert "worse" in text
    assert "not over seeds" in text
    assert json.loads((two_files / "out.json").read_text())["differences"]["map_at_r"]["word"] == "worse"
    assert main(["score", "a.npy", "--labels", "y.npy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == facts["results"][0]["metrics"]


def test_a_difference_that_is_the_same_in_all_classes_is_undecided(tmp_path, monkeypatch, capsys):
    """In both classes one of ten queries is another's neighbour in B: R@1 is .1 lower in each."""
    monkeypatch.chdir(tmp_path)
    angles = np.repeat([0, 20, 90, 110], 5) + np.tile(np.arange(5) / 5, 4)  # degrees
    other = angles.copy()
    other[[0, 19]] = [110.95, -0.15]
    for name, values in (("a", angles), ("b", other)):
        np.save(f"{name}.npy", np.stack([np.cos(np.radians(values)), np.sin(np.radians(values))], axis=1))
    np.save("y.npy", np.repeat([0, 1], 10))
    for second, mean in (("b.npy", 0.1), ("a.npy", 0.0)):
        score = ["score", "a.npy", second, "--labels", "y.npy", "--margin", "recall_at_1=.3"]
        assert main([*score, "--json"]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["differences"]["recall_at_1"]
        assert (found["mean"], found["word"]) == (pytest.approx(mean), "undecided")
        assert {found[name] for name in ("interval", "p", "p_equivalence", "detectable")} == {None}
        for form in ([], ["--latex"]):
            assert main([*score, *form]) == 0
            row = next(line for line in capsys.readouterr().out.splitlines() if f"{mean:+.4f}" in line)
            assert re.fullmatch(r"[\s&]*undecided[\s\\]*", row.partition(f"{mean:+.4f}")[2])


@pytest.mark.parametrize(
    ("factor", "row", "code", "says"),
    [
        (1e200, slice(None), "not-finite", "float32"),
        (np.nan, 3, "not-finite", "NaN"),
        (0, 3, "invalid-embedding", "zero"),
        (1e-200, 3, "invalid-embedding", "float32"),
    ],
)
@pytest.mark.parametrize("limit", [[], ["--memory", "1024GiB"]])
def test_rows_that_cannot_be_measured_are_those_of_the_file_that_is_named(
    two_files, capsys, factor, row, code, says, limit
):
    rows = np.load("b.npy").astype(np.float64)
    rows[row] *= factor
    np.save("bad.npy", rows)
    assert main(["score", "a.npy", "bad.npy", "--labels", "y.npy", *limit]) == 2
    message = capsys.readouterr().err
    assert "bad.npy" in message
    assert says in message
    assert ("NaN" in message) == np.isnan(factor)
    with raises(EvaluationError, code) as caught:
        zoo.compare(np.load("a.npy"), rows, np.load("y.npy"))
    assert "second" in str(caught.value)


def test_files_of_other_labels_and_margins_without_a_pair_are_refused(two_files, capsys):
    np.savez("c.npz", embeddings=np.load("a.npy"), labels=np.load("y.npy"))
    np.savez("d.npz", embeddings=np.load("b.npy"), labels=np.load("y.npy")[::-1])
    assert main(["score", "c.npz", "d.npz"]) == 2
    assert "not of the same labels" in capsys.readouterr().err
    assert main(["score", "a.npy", "--labels", "y.npy", "--margin", "map_at_r=.1"]) == 2
    assert main(["score", "a.npy", "b.npy", "--labels", "y.npy", "--margin", "mrr=.1"]) == 2
