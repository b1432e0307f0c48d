"""Printed tables of the papers: small texts in their layouts, marks, refusals, and the papers' own texts if given."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.raising import raises
from tools.published import diva, group, reality, revisiting, sharing
from tools.published_scores import main, write_papers
from zoo.errors import ZooError
from zoo.models.published import FOLDER, PublishedScore, PublishedTable, read_paper

TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "paper_texts").glob("*.txt")}
"""Small texts in the layouts of the papers' texts, with a few rows of each table."""

COUNTS = {
    reality: {"reality-1": 6, "reality-2": 3, "reality-3": 12, "reality-4": 6, "reality-5": 6},
    group: {"group-1": 26, "group-2": 27, "group-3": 12, "group-text": 6},
    diva: {"diva-2": 18, "diva-3": 22, "diva-4": 4},
    sharing: {
        "sharing-1": 24,
        "sharing-2": 3,
        "sharing-3": 4,
        "sharing-4": 17,
        "sharing-5": 8,
        "sharing-6": 3,
        "sharing-7a": 5,
        "sharing-7b": 2,
        "sharing-8a": 6,
        "sharing-8b": 3,
        "sharing-9": 6,
    },
    revisiting: {"revisiting-1": 6, "revisiting-3": 9},
}
"""The scores of the small texts, counted by hand."""

PAPER_TEXTS = os.environ.get("PAPER_TEXTS")
"""Folder of the papers' texts, which are not part of the project."""


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of the small texts, whose counts are known to the readers."""
    for module, counts in COUNTS.items():
        monkeypatch.setattr(module, "COUNTS", counts)
    monkeypatch.setattr(sharing, "MIC_COUNTS", {"mic-main": 4})
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def tables(texts: Path) -> dict[str, PublishedTable]:
    write_papers(texts, texts / "out")
    return {table.name: table for path in (texts / "out").glob("*.toml") for table in read_paper(path)[0]}


def score(table: PublishedTable, row: str, metric: str, dataset: str = "cars", split: str = "test") -> PublishedScore:
    key = (row, metric, dataset, split)
    (found,) = [each for each in table.scores if (each.row, each.metric, each.dataset, each.split) == key]
    return found


def test_every_file_holds_the_hash_of_its_text(texts: Path) -> None:
    written = write_papers(texts, texts / "out")
    assert {path.stem: count for path, count in written.items()} == {
        **{module.__name__.rpartition(".")[2]: sum(counts.values()) for module, counts in COUNTS.items()},
        "mic": 4,
    }
    for name, source in {**dict(zip(TEXTS, TEXTS, strict=True)), "mic": "sharing"}.items():
        (table, *_), _ = read_paper(texts / "out" / f"{name}.toml")
        assert table.paper.text_sha256 == hashlib.sha256(TEXTS[source].encode()).hexdigest()


def test_intervals_stay_intervals(tables: dict[str, PublishedTable]) -> None:
    """Half widths of .50 and .25 about 67.00 and 37.00; rows without one were run once."""
    cosface = "CosFace, concatenated"
    first, second = (score(tables["reality-3"], cosface, name, "cub") for name in ("precision_at_1", "r_precision"))
    assert (first.value, first.sd, first.ci95, first.interval) == (0.67, None, 0.005, (0.665, 0.675))
    assert (second.interval, second.dim, second.backbone) == ((0.3675, 0.3725), 512, "ibn")
    assert score(tables["reality-3"], "CosFace, separated", "map_at_r", "cub").dim == 128
    once = score(tables["reality-5"], "MS+Miner, separated", "r_precision", "sop")
    assert (once.value, once.interval) == (0.44, None)
    deviation = score(tables["sharing-4"], "Margin, phi*", "recall_at_1")
    assert (deviation.value, deviation.sd, deviation.interval) == (0.862, 0.002, None)


def test_quoted_rows_name_the_work(tables: dict[str, PublishedTable]) -> None:
    quoted = {
        ("group-1", "Triplet", "cub"): "Anchor et al. 2015, Triplets: a toy",
        ("group-3", "SoftTriple", "cub"): "Centre, Several centres",
        ("diva-3", "HORDE+Contr.", "cub"): "Horde & Second 2019, A horde",
        ("sharing-1", "Rank (lv2), 1536", "cars"): "Sampler & Third 2017, Sampling of nothing in general",
        ("revisiting-3", "HTL", "sop"): "Alone 2018, Hierarchy of one",
        ("revisiting-3", "Rank", "sop"): "First et al. 2019, Ranks",
        ("group-1", "Group loss", "cub"): None,
        ("diva-2", "DiVA (IBN, D & S)", "cub"): None,
        ("mic-main", "MIC", "cars"): None,
    }
    for (table, row, dataset), work in quoted.items():
        assert score(tables[table], row, "recall_at_1", dataset).quoted_from == work
    assert all(each.recipe is None for table in tables.values() for each in table.scores if each.quoted_from)


def test_own_rows_of_papers_whose_code_selects_on_test_classes_are_marked(tables: dict[str, PublishedTable]) -> None:
    marked = {
        ("diva-2", "Margin (orig, R50)", "cub"): False,
        ("diva-2", "DiVA (IBN, D & S)", "cub"): True,
        ("diva-3", "Ours (DiVA-R50-512)", "cars"): True,
        ("diva-3", "HORDE+Contr.", "cub"): False,
        ("diva-4", "Separated models", "cub"): True,
        ("group-1", "Triplet", "cub"): False,
        ("group-1", "Group loss", "cub"): True,
        ("group-2", "Group loss, 2 models", "cub"): True,
        ("group-3", "GL Densenet121", "cub"): True,
        ("group-text", "Group loss, similarities shifted", "cub"): True,
        ("group-text", "SoftTriple, one centre", "cars"): False,
        ("mic-main", "MIC", "cars"): True,
        ("sharing-1", "Ours (T*)", "cars"): False,
        ("revisiting-1", "GN, ImageNet weights", "sop"): False,
        ("revisiting-3", "HTL", "sop"): False,
    }
    for (table, row, dataset), expected in marked.items():
        assert score(tables[table], row, "recall_at_1", dataset).best_on_test == expected, (table, row)


def test_contradictions_are_kept_and_marked(tables: dict[str, PublishedTable]) -> None:
    """Numbers that exclude one another: in a table, in a paper, and in two papers that quote the same work."""
    marked = {
        ("group-2", "Sampler 8", "cub", "recall_at_8"): (0.617, "76.9"),
        ("group-1", "Group loss", "cub", "recall_at_1"): (0.655, "64.3"),
        ("group-text", "Group loss, similarities clamped", "cub", "recall_at_1"): (0.643, "65.5"),
        ("group-2", "Group loss, 2 models", "cars", "nmi"): (0.726, "91.1"),
        ("diva-2", "Margin (orig, R50)", "sop", "nmi"): (0.907, "DiVA prints 90.8 (table 3)"),
        ("diva-3", "Margin", "sop", "nmi"): (0.908, "DiVA prints 90.7 (table 2)"),
        ("diva-3", "Ours (DiVA-R50-512)", "sop", "recall_at_10"): (0.912, "R@2"),
        ("sharing-9", "N-pairs, phi + phi*", "cars", "recall_at_1"): (0.67, "67.8"),
    }
    for (table, row, dataset, metric), (value, text) in marked.items():
        found = score(tables[table], row, metric, dataset)
        assert found.value == value
        assert text in (found.contradicts or "")
    assert score(tables["sharing-4"], "Margin, phi", "nmi").contradicts is None
    assert score(tables["sharing-5"], "Margin, phi(N)", "recall_at_1").contradicts is None


def test_a_score_has_the_recipe_or_the_study_of_its_method_only(tables: dict[str, PublishedTable]) -> None:
    recipes = {
        ("sharing-1", "Ours (T*)"): "shared-r50-cars",
        ("sharing-1", "Ours (T^G)"): None,
        ("sharing-1", "Margin(ReImp)"): "shared-disc-r50-cars",
        ("sharing-4", "Margin, baseline of 256"): "shared-disc-r50-cars",
        ("sharing-4", "Margin, baseline of 128"): None,
        ("sharing-9", "N-pairs, phi + phi*"): "shared-npair-gn-cars",
        ("sharing-7a", "both"): None,
        ("group-1", "Group loss"): "group-ibn-cars",
        ("group-3", "GL Densenet121"): "group-d121-cars",
        ("diva-3", "Ours (DiVA-R50-512)"): "diva-r50-cars",
        ("diva-2", "DiVA (IBN, D & S)"): "diva-ds-ibn-cars",
        ("mic-main", "MIC"): "mic-r50-cars",
    }
    for (table, row), recipe in recipes.items():
        assert score(tables[table], row, "recall_at_1").recipe == recipe
    head = score(tables["sharing-5"], "Ours, phi*", "recall_at_1", split="train")
    assert (head.value, head.study, head.view) == (0.848, "sharing/generalisation-gap", "shared")
    studies = {
        ("sharing-7a", "both", "cars"): ("sharing/table-6", "both"),
        ("group-text", "Group loss, similarities clamped", "cub"): ("group/appendix-f-g-i", "clamp"),
        ("group-text", "SoftTriple, one centre", "cars"): (None, None),
        ("reality-2", "ResNet50", "sop"): (None, None),
    }
    for (table, row, dataset), named in studies.items():
        found = score(tables[table], row, "nmi" if table == "reality-2" else "recall_at_1", dataset)
        assert (found.study, found.arm) == named
    untrained = score(tables["revisiting-1"], "GN, ImageNet weights", "recall_at_1", "sop")
    assert (untrained.value, untrained.dim, untrained.arm) == (0.4428, 512, "gn")


@pytest.mark.parametrize(
    ("paper", "old", "new"),
    [
        ("reality", "| MS+Miner | 75.00 |", "| MS+Miner |"),  # a cell less
        ("reality", "| ResNet50 | 21.1 | 22.2 | 83.3 |\n", ""),  # a row less
        ("reality", "Table 4. ", "Table 40. "),
        ("group", "Ours 65.5 77.0", "Ours 65.5 77,0"),
        ("group", "64.364.364.3", "64.364.3"),
        ("group", "[2] Anchor", "[4] Anchor"),
        ("diva", "No De-correlation", "Decorrelated"),
        ("sharing", "-10.8", "-10.9"),
        ("sharing", "Baseline1024", "Baseline512"),
        ("revisiting", "ResNet50 128", "ResNet101 128"),
        ("revisiting", "HTL(Alone, 2018)", "HTL(Alone, 2017)"),
    ],
)
def test_a_text_of_another_form_is_refused_and_nothing_is_written(texts: Path, paper: str, old: str, new: str) -> None:
    text = TEXTS[paper].replace(old, new)
    assert text != TEXTS[paper]
    (texts / f"{paper}.txt").write_text(text, encoding="utf-8")
    with raises(ZooError, "unexpected-text"):
        write_papers(texts, texts / "out")
    assert not (texts / "out").exists()


def test_the_command_reports_failures(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = texts / "out"
    assert main([str(texts), "--out", str(out)]) == 0
    assert f"{out / 'mic.toml'}: 4 scores" in capsys.readouterr().out
    (texts / "diva.txt").unlink()
    assert main([str(texts), "--out", str(out)]) == 1
    assert "diva.txt" in capsys.readouterr().err


@pytest.mark.skipif(PAPER_TEXTS is None, reason="PAPER_TEXTS names no folder of the papers' texts")
def test_the_committed_files_are_those_of_the_papers_texts(tmp_path: Path) -> None:
    for path in write_papers(Path(PAPER_TEXTS or ""), tmp_path):
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()
