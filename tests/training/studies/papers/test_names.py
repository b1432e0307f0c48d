"""The papers' names of tables and figures: every one is a study, or is refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commandline import run_here
from tests.raising import raises
from training.studies import papers as names_module
from training.studies.papers import ALIASES, STUDIES, check_name, find_studies, partial_note
from training.studies.study import resolve_recipes, supports
from zoo.errors import UsageError
from zoo.models.published import published_table

RUNS = {
    "revisiting": "table-1 table-2 table-3 figure-2 figure-3 figure-4 figure-5 figure-7 figure-8 figure-9 figure-10 "
    "appendix-f",
    "sharing": "table-1 table-2 table-3 table-4 table-5 table-6 table-7 table-7b table-8 table-9 generalisation-gap",
    "reality": "table-1 table-3 table-4 table-5 figure-3 figure-4 over-the-years",
    "group": "table-1 table-2 table-3 figure-4 figure-5 figure-6 figure-9 anchors samples classes convergence "
    "appendix-a appendix-c appendix-d appendix-f appendix-g",
    "diva": "table-2 table-3 table-4 figure-1 figure-4 figure-5",
}
REFUSED = {
    "revisiting": "figure-6 figure-11",
    "sharing": "figure-3 figure-4 figure-6",
    "reality": "table-2 figure-1 figure-2 figure-5",
    "group": "figure-3 figure-7 figure-8 appendix-e",
}
"""Every measurement of the five papers that the project must run, or refuse."""


def names(table: dict[str, str]) -> list[str]:
    return [f"{paper}/{name}" for paper, tables in table.items() for name in tables.split()]


def test_a_name_as_published_stands_for_the_same_studies() -> None:
    for name in ("revisiting/table-2", "diva/table-4", "revisiting/figure-10"):
        studies = find_studies(f"{name}-as-published", "omniglot")
        assert [study.paper_name for study in studies] == [study.name for study in find_studies(name, "omniglot")]
        assert all(study.as_published and study.name.endswith("-as-published") for study in studies)
    with raises(UsageError, "unknown-study"):
        check_name("revisiting/table-99-as-published")


@pytest.mark.parametrize("name", names(RUNS))
def test_a_table_or_figure_is_a_study(name: str) -> None:
    check_name(name)
    for dataset in ("omniglot", "cub"):
        known = [STUDIES[each] for each in ALIASES.get(name, (name,))]
        if any(supports(study, dataset) for study in known):
            studies = find_studies(name, dataset)
            assert studies
            assert all(supports(study, dataset) for study in studies)
    assert any(supports(study, dataset) for study in known for dataset in ("omniglot", "cub"))


@pytest.mark.parametrize("name", names(REFUSED))
def test_other_tables_and_figures_are_refused_with_the_page_of_reasons(name: str) -> None:
    with raises(UsageError, "not-run") as caught:
        check_name(name)
    assert name in str(caught.value)
    assert "docs/papers.md" in str(caught.value)


def test_the_command_refuses_such_names() -> None:
    for words in (["sharing/figure-6"], ["sharing/figure-6", "--dataset", "omniglot"]):
        with raises(UsageError, "not-run"):
            run_here("benchmark run", *words)
    with raises(UsageError, "no-dataset"):
        run_here("benchmark run", "revisiting/figure-7")


def test_the_page_of_reasons_lists_every_such_name() -> None:
    text = (Path(__file__).parents[4] / "docs" / "papers.md").read_text()
    table = text.partition("## Not run, and why")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line][2:]
    named = [name for _, _, cell, _, _ in rows for name in re.findall(r"`([a-z]+/[a-z0-9-]+)`", cell)]
    assert sorted(named) == sorted(names_module.NOT_RUN | names_module.PARTIAL)
    for _, _, cell, reason, nearest in rows:
        assert reason
        studies = set(re.findall(r"`([a-z]+/[a-z0-9-]+)`", nearest))
        assert studies <= set(STUDIES) | set(ALIASES)
        for name in re.findall(r"`([a-z]+/[a-z0-9-]+)`", cell):
            assert name in names_module.NOT_RUN or set(ALIASES[name]) <= studies


IN_PART = {
    "revisiting/table-3": ("revisiting/table-2", "recall_at_1"),
    "revisiting/appendix-c": ("revisiting/figure-5", "spectral_decay_by_class"),
    "sharing/table-5": ("sharing/generalisation-gap", "recall_at_1"),
    "group/figure-4": ("group/anchors", "recall_at_1"),
    "diva/figure-5": ("diva/heads", "spectral_decay"),
}
"""A study that is run by name, and a metric that the paper shows there."""


@pytest.mark.parametrize("name", IN_PART)
def test_partial_studies_are_run_with_a_note(name: str) -> None:
    study, metric = IN_PART[name]
    for dataset in ("omniglot", "cub"):
        assert study in [known.name for known in find_studies(name, dataset)]
    assert metric in {measure.metric for measure in STUDIES[study].measures}
    note = partial_note(name)
    assert note is not None
    assert name in note
    assert study in note
    assert partial_note(study) is None


def test_figure_3_of_reality_is_map_at_r_of_its_losses() -> None:
    for dataset, study in {"cub": "reality/tables-3-to-5", "glyphs": "reality/losses"}.items():
        assert [known.name for known in find_studies("reality/figure-3", dataset)] == [study]
        assert "map_at_r" in {measure.metric for measure in STUDIES[study].measures}
    assert partial_note("reality/figure-3") is not None


def test_figure_4_of_reality_is_p1_by_the_year_of_the_loss() -> None:
    (papers,), (small,) = (find_studies("reality/figure-4", dataset) for dataset in ("cub", "omniglot"))
    assert (papers.name, papers.x, small.name, small.x) == (
        "reality/over-the-years",
        "year",
        "claims/over-the-years",
        "year",
    )
    assert "precision_at_1" in {measure.metric for measure in papers.measures}


def test_the_years_are_those_of_realitys_table_6() -> None:
    table_6 = {
        **dict.fromkeys(("contrastive", "triplet"), 2006),
        **dict.fromkeys(("proxynca", "margin", "softmax"), 2017),
        "cosface": 2018,
        **dict.fromkeys(("arcface", "fastap", "snr", "ms", "ms-miner", "softtriple"), 2019),
    }
    years = {arm.label: arm.x for arm in STUDIES["reality/over-the-years"].arms}
    assert {name: years[name] for name in table_6} == table_6


def test_the_claim_of_reality_is_what_its_tables_print() -> None:
    """Every loss of tables 3 to 5 lies within the claimed difference of contrastive; within half of it some do not."""
    (within,) = {claim.within for claim in STUDIES["reality/tables-3-to-5"].claims}
    differences = []
    for table in ("reality-3", "reality-4", "reality-5"):
        scores = {s.row: s.value for s in published_table(table).scores if s.metric == "precision_at_1"}
        for row, value in scores.items():
            name, kind = row.split(", ")
            if name not in ("Pretrained", "Contrastive"):
                differences.append(value - scores[f"Contrastive, {kind}"])
    assert len(differences) == 3 * 2 * 11
    assert max(map(abs, differences)) <= within
    assert max(map(abs, differences)) > within / 2


def test_the_robustness_figures_of_group_are_its_sweeps() -> None:
    axes = {name: {study.x for study in find_studies(f"group/{name}", "omniglot")} for name in ("figure-4", "figure-5")}
    assert axes == {"figure-4": {"anchors", "samples a class"}, "figure-5": {"classes a batch"}}


def test_the_nearest_name_is_of_the_same_paper() -> None:
    with raises(UsageError, "unknown-study") as caught:
        check_name("group/figure-2")
    assert "'group/" in str(caught.value).partition("'group/figure-2'")[2]
    assert "revisiting/" not in str(caught.value)
    with raises(UsageError, "unknown-study") as caught:
        check_name("claim/rho")
    assert "'claims/rho'" in str(caught.value)


def test_studies_that_support_the_data_set_are_found() -> None:
    parts = ["revisiting/figure-2-weight-decay", "revisiting/figure-2-dimension"]
    assert [study.name for study in find_studies("revisiting/figure-2", "glyphs")] == [
        *parts,
        "revisiting/figure-2-backbone",
    ]
    assert [study.name for study in find_studies("revisiting/figure-2", "cub")] == [
        *parts,
        "revisiting/figure-2-published",
    ]
    assert [study.name for study in find_studies("sharing/table-3", "sop")] == ["sharing/tables-1-to-3"]
    assert [study.name for study in find_studies("sharing/table-3", "folder")] == ["sharing/losses"]
    with raises(UsageError, "not-on-this-data-set") as caught:
        find_studies("sharing/table-1", "nothing")
    assert "sharing/tables-1-to-3 (cub, cars, sop)" in str(caught.value)


TWO = {
    "revisiting/table-1": ("revisiting/table-1", "revisiting/table-1-published"),
    "sharing/table-6": ("sharing/table-6", "sharing/table-6-published"),
    "group/convergence": ("group/convergence", "group/convergence-published"),
    "group/table-3": ("group/table-3-small", "group/table-3"),
    "diva/backbones": ("diva/backbones-small", "diva/backbones"),
    "reality/over-the-years": ("claims/over-the-years", "reality/over-the-years"),
}
"""By name the study on small data sets, and the study on those of the papers."""


@pytest.mark.parametrize("name", TWO)
def test_a_pair_of_studies_supports_every_data_set(name: str) -> None:
    small, papers = TWO[name]
    for dataset in ("glyphs", "omniglot", "cifar100", "folder"):
        assert [study.name for study in find_studies(name, dataset)] == [small]
    for dataset in ("cub", "cars", "sop", "inshop"):
        assert [study.name for study in find_studies(name, dataset)] == [papers]


def test_table_1_on_the_papers_data_sets_has_the_papers_backbones() -> None:
    """ImageNet's weights, nothing trained, layers of the dimensions that section 3.3 calls typical."""
    (study,) = find_studies("revisiting/table-1", "cub")
    recipes = [resolve_recipes(study, arm, "cub", 0)[0] for arm in study.arms]
    assert [recipe.backbone.architecture for recipe in recipes] == ["googlenet", "bn_inception", "resnet50.tv_in1k"]
    assert all(recipe.backbone.pretrained is True and recipe.schedule.epochs == 0 for recipe in recipes)
    assert [recipe.dim for recipe in recipes] == [512, 512, 128]


def test_names_are_unambiguous() -> None:
    refused = names_module.NOT_RUN
    assert all(ALIASES[name][0] == name for name in set(ALIASES) & set(STUDIES))
    assert not refused & (set(STUDIES) | set(ALIASES))
    assert set(ALIASES) > names_module.PARTIAL
    assert {study for studies in ALIASES.values() for study in studies} <= set(STUDIES)
    with raises(UsageError, "unknown-study") as caught:
        check_name("revisiting/figur-7")
    assert "'revisiting/figure-7'" in str(caught.value)
