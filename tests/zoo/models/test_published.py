"""Published numbers: single values of the papers, reading of files, and refused files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.raising import raises
from zoo.errors import UsageError, ZooError
from zoo.models.published import FOLDER, PublishedScore, absent_tables, published_table, published_tables, read_paper

PAPER = '[paper]\nshort = "Toy"\ncitation = "Nobody 2020"\nsource = "arXiv:2001.00001"\n'
TABLE = '[[tables]]\nname = "toy-1"\nplace = "table 1"\ntitle = "t"\nprotocol = "p"\nbackbone = "r50"\ndim = 8\n'
SCORE = '{ row = "a", dataset = "cub", metric = "recall_at_1", value = 62.5, sd = 0.25 }'


def write(folder: Path, text: str) -> Path:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complete(scores: str = SCORE, header: str = TABLE, paper: str = PAPER) -> str:
    return f"{paper}{header}scores = [{scores}]\n"


def value(name: str, row: str, dataset: str, metric: str = "recall_at_1") -> float:
    scores = [s for s in published_table(name).scores if (s.row, s.dataset, s.metric) == (row, dataset, metric)]
    (score,) = scores
    return score.value


def test_every_file_is_read_and_names_its_source():
    assert {t.paper.short for t in published_tables()} == {"Revisiting", "Sharing", "MIC", "Group", "DiVA", "Reality"}
    assert len(list(FOLDER.glob("*.toml"))) == 7
    assert all(t.protocol and t.paper.source.startswith("arXiv:") for t in published_tables())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("revisiting-1", "IBN, ImageNet weights", "sop"), 0.4905),
        (("revisiting-2", "Margin (D, 1.2)", "cub"), 0.6309),
        (("revisiting-2", "R-Margin (D, 0.6)", "cars"), 0.8237),
        (("revisiting-2", "Triplet (R)", "sop", "spectral_decay_drop_1"), 0.461),
        (("mic-main", "MIC", "cub"), 0.661),
    ],
)
def test_single_numbers_of_the_papers(where, expected):
    assert value(*where) == expected


def test_the_swapped_nmi_of_groups_table_is_corrected():
    """NMI grows with the number of classes: for 98 (CARS) it is far below that for 11 316 (SOP)."""
    assert value("group-2", "Group loss, 2 models", "sop", "nmi") == 0.911
    assert value("group-2", "Group loss, 2 models", "cars", "nmi") == 0.726


def test_the_recall_depth_of_divas_table_is_corrected(tmp_path):
    """DiVA's table 3 calls a column of SOP R@2; recall is reported there at 1, 10, 100 and 1000, so it is R@10."""
    assert value("diva-3", "Ours (DiVA-R50-512)", "sop", "recall_at_10") == 0.912
    column = '{ row = "a", dataset = "sop", metric = "recall_at_2", value = 91.2 }'
    with raises(ZooError, "damaged-file") as caught:
        read_paper(write(tmp_path, complete(column)))
    assert "1, 10, 100, 1000" in str(caught.value)
    for correct in (column.replace("recall_at_2", "recall_at_10"), column.replace("sop", "cub")):
        ((read,), _) = read_paper(write(tmp_path, complete(correct)))
        assert read.scores[0].value == 0.912
    assert not [s for t in published_tables() for s in t.scores if (s.dataset, s.metric) == ("sop", "recall_at_2")]


def test_table_2_is_complete():
    """23 rows on three data sets, two of them not on SOP, recall and spectral decay of each."""
    scores = published_table("revisiting-2").scores
    assert len(scores) == 2 * (23 * 3 - 2)
    assert {s.row for s in scores} - {s.row for s in scores if s.dataset == "sop"} == {"ProxyNCA", "SoftTriple"}
    assert all((s.sd is not None) == (s.metric == "recall_at_1") for s in scores)
    assert all((s.split == "train") == (s.metric == "spectral_decay_drop_1") for s in scores)
    assert published_table("revisiting-2").runs == 5
    assert "best epoch on the test set" in published_table("revisiting-2").protocol


def test_every_paper_lists_its_missing_tables(tmp_path):
    papers = {"Revisiting", "Sharing", "MIC", "Group", "DiVA", "Reality"}
    assert {entry.paper.short for entry in absent_tables()} == papers
    assert all(entry.why for entry in absent_tables())
    alone = PAPER + '[[absent]]\nwhat = "table 9"\nwhy = "lost"\n'
    tables, (missing,) = read_paper(write(tmp_path, alone))
    assert (tables, missing.what, missing.paper.short) == ((), "table 9", "Toy")
    with raises(ZooError, "damaged-file"):
        read_paper(write(tmp_path, alone.replace('why = "lost"', "")))


def test_an_unknown_table_is_named_with_its_nearest():
    with raises(UsageError, "unknown-name") as caught:
        published_table("revisting-2")
    assert "'revisiting-2'" in str(caught.value)


def test_percent_become_fractions_and_a_score_takes_its_tables_facts(tmp_path):
    other = '{ row = "a", dataset = "cub", metric = "spectral_decay", value = 0.2, backbone = "gn", split = "train" }'
    (read,), _ = read_paper(write(tmp_path, complete(f"{SCORE}, {other}")))
    assert read.scores == (
        PublishedScore("a", "cub", "recall_at_1", 0.625, "r50", 8, sd=0.0025),
        PublishedScore("a", "cub", "spectral_decay", 0.2, "gn", 8, split="train"),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (complete(SCORE.replace("value", "vlaue")), "'vlaue'. Did you mean 'value'"),
        (complete(SCORE.replace("cub", "cup")), "'cub'"),
        (complete(SCORE.replace("recall_at_1", "recal_at_1")), "'recal_at_1'. Did you mean 'recall_at_1'"),
        (complete(SCORE.replace("recall_at_1", "recall_at_0")), "'recall_at_0'"),
        (complete(SCORE.replace("62.5", "100.5")), "recall_at_1"),
        (complete(SCORE.replace("62.5", "-1")), "recall_at_1"),
        (complete(SCORE.replace("62.5", "nan")), "recall_at_1"),
        (complete(SCORE.replace("62.5", "true")), "value is True"),
        (complete(SCORE.replace("62.5", '"62.5"')), "value is '62.5'"),
        (complete(SCORE.replace("0.25", "51")), "sd is 0.51"),
        (complete(SCORE.replace("0.25", '0.25, study = "a/b"')), "arm"),
        (complete(SCORE.replace("0.25", '0.25, view = "shared"')), "'shared'"),
        (complete(SCORE.replace("62.5", '62.5, split = "validation"')), "'validation'"),
        (complete(f"{SCORE}, {SCORE}"), "('a', 'cub', 'recall_at_1', 'test')"),
        (complete(""), "toy-1"),
        (complete("3"), "int"),
        (complete(SCORE.replace("0.25", '0.25, recipe = "a"'), TABLE.replace("dim = 8\n", "")), "its dim"),
        (
            complete(SCORE.replace("0.25", '0.25, recipe = "a"'), TABLE.replace('backbone = "r50"\n', "")),
            "its backbone",
        ),
        (complete(SCORE.replace("0.25", "0.25, ci95 = 0.5")), "ci95"),
        (complete(SCORE.replace("sd = 0.25", "ci95 = 51")), "ci95 is 0.51"),
        (complete(SCORE.replace("0.25", "0.25, best_on_test = 1")), "best_on_test is 1"),
        (complete(header=TABLE.replace('place = "table 1"', 'place = ""')), "place"),
        (complete(paper=PAPER + 'text_sha256 = "abc"\n'), "text_sha256"),
        (complete(header=TABLE.replace("dim = 8", "dim = 0")), "dim is 0"),
        (complete(header=TABLE.replace('protocol = "p"', 'protocol = ""')), "protocol"),
        (complete(header=TABLE.replace('protocol = "p"\n', "")), "protocol"),
        (complete(header=TABLE.replace("toy-1", "Toy 1")), "'Toy 1'"),
        (complete(header=TABLE + "runs = 0\n"), "runs is 0"),
        (complete(header=TABLE + 'paper = "x"\n'), "'paper'"),
        (complete(paper=PAPER.replace("2001.00001", "200100001")), "'arXiv:200100001'"),
        (complete(paper=PAPER + "year = 2020\n"), "'year'"),
        (complete() + "[more]\n", "[[tables]]"),
        (PAPER, "[[tables]]"),
        ("[paper", "toy.toml"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path, text, value):
    with raises(ZooError, "damaged-file") as caught:
        read_paper(write(tmp_path, text))
    assert value in str(caught.value)
    assert "toy.toml" in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_missing_or_binary_file_is_refused(tmp_path, content):
    if content:
        (tmp_path / "a.toml").write_bytes(content)
    with raises(ZooError, "damaged-file") as caught:
        read_paper(tmp_path / "a.toml")
    assert "a.toml" in str(caught.value)


@given(st.integers(0, 10_000), st.integers(0, 5_000))
def test_two_printed_decimals_survive(tmp_path_factory, hundredths, sd):
    printed = f"{hundredths // 100}.{hundredths % 100:02d}", f"{sd // 100}.{sd % 100:02d}"
    text = complete(SCORE.replace("0.25", printed[1]).replace("62.5", printed[0]))
    (score,) = read_paper(write(tmp_path_factory.getbasetemp(), text))[0][0].scores
    assert math.isclose(score.value, hundredths / 10_000, rel_tol=1e-12)
    assert (f"{100 * score.value:.2f}", f"{100 * (score.sd or 0):.2f}") == printed


KEYS = st.sampled_from(["row", "dataset", "metric", "value", "sd", "dim", "x"])


@given(st.dictionaries(KEYS, st.integers() | st.text('ab_1\u00e9"\\\n\t', max_size=6)))
def test_any_wrong_score_is_read_or_refused_with_a_zoo_error(tmp_path_factory, facts):
    """A row of numbers or text under any keys never raises another exception."""
    pairs = ", ".join(f"{key} = {_toml(value)}" for key, value in facts.items())
    path = write(tmp_path_factory.getbasetemp(), complete(f"{{ {pairs} }}"))
    try:
        (read,), _ = read_paper(path)
        assert all(score.value >= 0 for score in read.scores)
    except ZooError as error:
        assert str(path) in str(error)  # noqa: PT017


def _toml(value: int | str) -> str:
    return str(value) if isinstance(value, int) else '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
