from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.errors import UsageError, ZooError
from zoo.models.published import FOLDER, PublishedScore, absent_tables, published_table, published_tables, read_paper

PAPER = '[paper]\nshort = "Toy"\ncitation = "Nobody 2020"\nsource = "arXiv:2001.00001"\n'
TABLE = '[[tables]]\nname = "toy-1"\ntitle = "t"\nprotocol = "p"\nbackbone = "r50"\ndim = 8\n'
SCORE = '{ row = "a", dataset = "cub", metric = "recall_at_1", value = 62.5, sd = 0.25 }'


def write(folder: Path, text: str) -> Path:
    path = folder / "toy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complete(scores: str = SCORE, header: str = TABLE, paper: str = PAPER) -> str:
    return f"{paper}{header}scores = [{scores}]\n"


def value(name: str, row: str, dataset: str, metric: str = "recall_at_1") -> float:
    found = [s for s in published_table(name).scores if (s.row, s.dataset, s.metric) == (row, dataset, metric)]
    assert len(found) == 1
    return found[0].value


def test_every_file_is_read_and_says_its_source():
    assert {t.paper.short for t in published_tables()} == {"Revisiting", "Sharing", "MIC", "Group", "DiVA"}
    assert len(list(FOLDER.glob("*.toml"))) == 6
    assert all(t.protocol and t.paper.source.startswith("arXiv:") for t in published_tables())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("revisiting-1", "IBN, ImageNet weights", "sop"), 0.4905),
        (("revisiting-2", "Margin (D, 1.2)", "cub"), 0.6309),
        (("revisiting-2", "R-Margin (D, 0.6)", "cars"), 0.8237),
        (("revisiting-2", "Triplet (R)", "sop", "spectral_decay"), 0.461),
        (("sharing-margin", "Margin with shared features", "cars"), 0.870),
        (("sharing-margin", "Margin, baseline of 256", "cub"), 0.652),
        (("mic-main", "MIC", "cub"), 0.661),
        (("diva-main", "DiVA, IBN", "sop"), 0.781),
        (("group-single", "Group loss", "cars"), 0.856),
    ],
)
def test_single_numbers_of_the_papers(where, expected):
    assert value(*where) == expected


def test_the_slip_in_groups_table_is_put_right():
    """NMI grows with the number of classes: of 98 (CARS) it is far below that of 11 316 (SOP)."""
    assert value("group-ensembles", "Group loss, 2 models", "sop", "nmi") == 0.911
    assert value("group-ensembles", "Group loss, 2 models", "cars", "nmi") == 0.726


def test_the_slip_in_divas_table_is_put_right(tmp_path):
    """DiVA's table 3 heads a column of SOP R@2: recall is reported there at 1, 10, 100 and 1000, and it is R@10."""
    assert value("diva-main", "DiVA, R50", "sop") == 0.796
    (lost,) = [each for each in absent_tables() if each.paper.short == "DiVA" and each.what.startswith("table 3")]
    assert "R@2 for SOP is R@10" in lost.what
    column = '{ row = "a", dataset = "sop", metric = "recall_at_2", value = 91.2 }'
    with pytest.raises(ZooError, match="recall_at_2: on sop recall is reported at 1, 10, 100, 1000"):
        read_paper(write(tmp_path, complete(column)))
    for right in (column.replace("recall_at_2", "recall_at_10"), column.replace("sop", "cub")):
        ((read,), _) = read_paper(write(tmp_path, complete(right)))
        assert read.scores[0].value == 0.912
    assert not [s for t in published_tables() for s in t.scores if (s.dataset, s.metric) == ("sop", "recall_at_2")]


def test_table_2_is_whole():
    """23 rows on three data sets, two of them not on SOP, recall and spectral decay of each."""
    scores = published_table("revisiting-2").scores
    assert len(scores) == 2 * (23 * 3 - 2)
    assert {s.row for s in scores} - {s.row for s in scores if s.dataset == "sop"} == {"ProxyNCA", "SoftTriple"}
    assert all((s.sd is not None) == (s.metric == "recall_at_1") for s in scores)
    assert all((s.split == "train") == (s.metric == "spectral_decay") for s in scores)
    assert published_table("revisiting-2").runs == 5
    assert "best epoch on the test set" in published_table("revisiting-2").protocol


def test_what_is_not_at_hand_is_said_of_every_paper(tmp_path):
    assert {each.paper.short for each in absent_tables()} == {
        "Revisiting",
        "Sharing",
        "MIC",
        "Group",
        "DiVA",
        "Reality",
    }
    assert all(each.why for each in absent_tables())
    alone = PAPER + '[[absent]]\nwhat = "table 9"\nwhy = "lost"\n'
    found, (lost,) = read_paper(write(tmp_path, alone))
    assert (found, lost.what, lost.paper.short) == ((), "table 9", "Toy")
    with pytest.raises(ZooError, match="why missing"):
        read_paper(write(tmp_path, alone.replace('why = "lost"', "")))


def test_an_unknown_table_is_named_with_its_nearest():
    with pytest.raises(UsageError, match=r"'revisting-2'. Did you mean 'revisiting-2'"):
        published_table("revisting-2")


def test_percent_become_fractions_and_a_score_takes_its_tables_facts(tmp_path):
    other = '{ row = "a", dataset = "cub", metric = "spectral_decay", value = 0.2, backbone = "gn", split = "train" }'
    (read,), _ = read_paper(write(tmp_path, complete(f"{SCORE}, {other}")))
    assert read.scores == (
        PublishedScore("a", "cub", "recall_at_1", 0.625, "r50", 8, sd=0.0025),
        PublishedScore("a", "cub", "spectral_decay", 0.2, "gn", 8, split="train"),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (complete(SCORE.replace("value", "vlaue")), "unknown key 'vlaue'. Did you mean 'value'"),
        (complete(SCORE.replace("cub", "cup")), "Did you mean 'cub'"),
        (complete(SCORE.replace("recall_at_1", "recal_at_1")), "no metric 'recal_at_1'. Did you mean 'recall_at_1'"),
        (complete(SCORE.replace("recall_at_1", "recall_at_0")), "no metric"),
        (complete(SCORE.replace("62.5", "100.5")), "outside its range"),
        (complete(SCORE.replace("62.5", "-1")), "outside its range"),
        (complete(SCORE.replace("62.5", "nan")), "outside its range"),
        (complete(SCORE.replace("62.5", "true")), "expected int or float"),
        (complete(SCORE.replace("62.5", '"62.5"')), "expected int or float"),
        (complete(SCORE.replace("0.25", "51")), "sd is 0.51"),
        (complete(SCORE.replace("0.25", '0.25, study = "a/b"')), "named together with its arm"),
        (complete(SCORE.replace("0.25", '0.25, view = "shared"')), "the view 'shared' needs the study"),
        (complete(SCORE.replace("62.5", '62.5, split = "validation"')), "expected train or test"),
        (complete(f"{SCORE}, {SCORE}"), "twice"),
        (complete(""), "no scores"),
        (complete("3"), "must be a table"),
        (complete(header=TABLE.replace("dim = 8\n", "")), "dim missing"),
        (complete(header=TABLE.replace("dim = 8", "dim = 0")), "dim is 0"),
        (complete(header=TABLE.replace('protocol = "p"', 'protocol = ""')), "needs a protocol"),
        (complete(header=TABLE.replace('protocol = "p"\n', "")), "protocol missing"),
        (complete(header=TABLE.replace("toy-1", "Toy 1")), "table name"),
        (complete(header=TABLE + "runs = 0\n"), "runs is 0"),
        (complete(header=TABLE + 'paper = "x"\n'), "unknown key 'paper'"),
        (complete(paper=PAPER.replace("2001.00001", "200100001")), "expected arXiv"),
        (complete(paper=PAPER + "year = 2020\n"), "unknown key 'year'"),
        (complete() + "[more]\n", "nothing else"),
        (PAPER, "nothing else"),
        ("[paper", "toy.toml"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_file_named(tmp_path, text, says):
    with pytest.raises(ZooError) as error:
        read_paper(write(tmp_path, text))
    assert says in str(error.value)
    assert "toy.toml" in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(ZooError, match=r"none\.toml"):
        read_paper(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ZooError, match=r"bytes\.toml"):
        read_paper(tmp_path / "bytes.toml")


@given(st.integers(0, 10_000), st.integers(0, 5_000))
def test_two_printed_decimals_survive(tmp_path_factory, hundredths, sd):
    printed = f"{hundredths // 100}.{hundredths % 100:02d}", f"{sd // 100}.{sd % 100:02d}"
    text = complete(SCORE.replace("0.25", printed[1]).replace("62.5", printed[0]))
    (score,) = read_paper(write(tmp_path_factory.getbasetemp(), text))[0][0].scores
    assert math.isclose(score.value, hundredths / 10_000, rel_tol=1e-12)
    assert (f"{100 * score.value:.2f}", f"{100 * (score.sd or 0):.2f}") == printed


KEYS = st.sampled_from(["row", "dataset", "metric", "value", "sd", "dim", "x"])


@given(st.dictionaries(KEYS, st.integers() | st.text('ab_1\u00e9"\\\n\t', max_size=6)))
def test_any_wrong_score_is_refused_with_our_own_error(tmp_path_factory, facts):
    """A row of numbers or text under any keys: read whole or refused, never another exception."""
    pairs = ", ".join(f"{key} = {_toml(value)}" for key, value in facts.items())
    path = write(tmp_path_factory.getbasetemp(), complete(f"{{ {pairs} }}"))
    try:
        (read,), _ = read_paper(path)
        assert all(score.value >= 0 for score in read.scores)
    except ZooError as error:
        assert str(path) in str(error)  # noqa: PT017


def _toml(value: int | str) -> str:
    return str(value) if isinstance(value, int) else '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
