"""The papers' names of tables and figures: every one is a study, or is refused with the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.commandline import parsed, run_here
from tests.raising import raises
from training.studies import papers as names_module
from training.studies.papers import ALIASES, STUDIES, check_name, find_studies, partial_note
from training.studies.study import resolve_recipes, supports
from zoo.errors import UsageError
from zoo.models.published import published_table

PRINTED = {
    "sharing": [*(f"table-{n}" for n in range(1, 10)), "figure-3", "figure-4", "figure-6"],
    "revisiting": [*(f"table-{n}" for n in range(1, 4)), *(f"figure-{n}" for n in range(2, 12)), "appendix-f"],
    "group": [
        *(f"table-{n}" for n in range(1, 4)),
        *(f"figure-{n}" for n in range(4, 10)),
        *(f"appendix-{letter}" for letter in "cdefghij"),
    ],
    "diva": [*(f"table-{n}" for n in range(1, 5)), "figure-1", "figure-4", "figure-5"],
    "reality": [*(f"table-{n}" for n in range(1, 7)), *(f"figure-{n}" for n in range(1, 6))],
}
"""Tables and figures of the papers that are measurements, and some beside them."""


def test_a_name_as_published_stands_for_the_same_studies() -> None:
    for name in ("revisiting/table-2", "diva/table-4", "revisiting/figure-10"):
        studies = find_studies(f"{name}-as-published", "omniglot")
        assert [study.paper_name for study in studies] == [study.name for study in find_studies(name, "omniglot")]
        assert all(study.as_published and study.name.endswith("-as-published") for study in studies)
    with raises(UsageError, "unknown-name"):
        check_name("revisiting/table-99-as-published")


def test_every_table_and_figure_runs_or_names_its_command_or_its_reason() -> None:
    printed = {f"{paper}/{part}" for paper, parts in PRINTED.items() for part in parts}
    for name in printed | set(ALIASES) | set(STUDIES) | set(names_module.COMMANDS) | names_module.NOT_RUN:
        if name in names_module.COMMANDS or name in names_module.NOT_RUN:
            with pytest.raises(UsageError) as caught:
                check_name(name)
            assert caught.value.code == ("not-available")
            assert name in str(caught.value)
            assert "docs/papers.md" in str(caught.value)
            continue
        check_name(name)
        known = [STUDIES[study] for study in ALIASES.get(name, (name,))]
        supported = [
            data for data in ("glyphs", "omniglot", "cub", "cub2010") if any(supports(study, data) for study in known)
        ]
        assert supported, name
        for dataset in supported:
            studies = find_studies(name, dataset)
            assert studies, name
            assert all(supports(study, dataset) for study in studies), name


def test_other_commands_exist() -> None:
    for command in names_module.COMMANDS.values():
        words = command.split()
        if words[0] == "python":
            assert (Path(__file__).parents[4] / words[1]).is_file()
        else:
            assert parsed(" ".join(words[1:3]), *words[3:])


def test_the_command_refuses_such_names() -> None:
    for words in (["sharing/figure-3"], ["sharing/figure-3", "--dataset", "omniglot"]):
        with raises(UsageError, "not-available"):
            run_here("benchmark run", *words)
    with raises(UsageError, "missing-value"):
        run_here("benchmark run", "revisiting/figure-7")


def test_the_page_of_reasons_lists_every_such_name() -> None:
    text = (Path(__file__).parents[4] / "docs" / "papers.md").read_text()
    table = text.partition("## Not run, and why")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line][2:]
    named = [name for _, _, cell, _, _ in rows for name in re.findall(r"`([a-z]+/[a-z0-9-]+)`", cell)]
    assert sorted(named) == sorted(names_module.NOT_RUN | names_module.PARTIAL | set(names_module.COMMANDS))
    for _, _, cell, reason, nearest in rows:
        assert reason
        other = [
            names_module.COMMANDS[name]
            for name in re.findall(r"`([a-z]+/[a-z0-9-]+)`", cell)
            if name in names_module.COMMANDS
        ]
        assert all(f"`{command}`" in nearest for command in other)
        studies = set(re.findall(r"`([a-z]+/[a-z0-9-]+)`", nearest))
        assert studies <= set(STUDIES) | set(ALIASES)
        for name in re.findall(r"`([a-z]+/[a-z0-9-]+)`", cell):
            refused = name in names_module.NOT_RUN or name in names_module.COMMANDS
            assert refused or set(ALIASES.get(name, (name,))) <= studies | {name}


IN_PART = {
    "revisiting/table-3": ("revisiting/table-2", "recall_at_1"),
    "group/figure-8": ("group/figure-7", "recall_at_1"),
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


def test_whole_studies_are_run_without_a_note() -> None:
    whole = ("sharing/generalisation-gap", "sharing/table-5", "diva/figure-4", "group/figure-4", "reality/table-1")
    assert [partial_note(name) for name in whole] == [None] * len(whole)


@pytest.mark.parametrize("name", ["group/table-1", "group/ensembles"])
def test_the_tables_of_group_have_all_its_recalls(name: str) -> None:
    measures = {measure.metric for measure in STUDIES[name].measures}
    assert {f"recall_at_{k}" for k in (1, 2, 4, 8)} | {"nmi"} <= measures


def test_tables_7_and_8_of_sharing_are_their_two_parts() -> None:
    parts = {name: [study.name for study in find_studies(f"sharing/{name}", "cub")] for name in ("table-7", "table-8")}
    assert parts == {
        "table-7": ["sharing/ablation", "sharing/table-7b"],
        "table-8": ["sharing/table-8a", "sharing/table-8b"],
    }


def test_the_grid_of_group_is_the_papers() -> None:
    """Anchors from 0 to 4 and samples from 5 to 10 (section 4.5), beside 2 anchors and 9 samples."""
    (study,) = find_studies("group/figure-9", "cub")
    recipes = [resolve_recipes(study, arm, "cub", 0)[0] for arm in study.arms]
    grid = {(recipe.objective.loss_args["anchors"], recipe.batch.per_class) for recipe in recipes}
    assert grid == {(anchors, samples) for anchors in range(5) for samples in range(5, 11)}
    assert study.reference == "anchors 2, samples 9"


@pytest.mark.parametrize(("table", "dims"), [("table-4", (128, 256)), ("table-9", (512, 1024))])
def test_the_baselines_of_sharing_have_the_numbers_of_its_tables(table: str, dims: tuple[int, int]) -> None:
    """Equal steps and images: the baselines take the batches of both tasks."""
    (study,) = find_studies(f"sharing/{table}", "cars")
    by_loss = {arm.label.split(",")[0] for arm in study.arms}
    assert by_loss == {"margin", "triplet-s", "npair", "proxynca"}
    for loss in by_loss:
        half, whole, both = (
            resolve_recipes(study, arm, "cars", 0)[0] for arm in study.arms if arm.label.startswith(f"{loss},")
        )
        assert (half.dim, whole.dim, both.dim) == (*dims, dims[1])
        assert [head.dim for head in both.heads] == [dims[0]] * 2
        assert half.objective == whole.objective
        assert half.schedule == whole.schedule == both.schedule


def test_table_6_of_sharing_has_one_head_of_128_numbers_and_equal_epochs_of_one_task() -> None:
    """A recipe of the plain method has one step where Sharing has two: twice the epochs have as many steps."""
    (study,) = find_studies("sharing/table-6", "cars")
    recipes = {arm.label: resolve_recipes(study, arm, "cars", 0)[0] for arm in study.arms}
    assert {recipe.dim for recipe in recipes.values()} == {128}
    assert all(len(recipe.heads) == 1 for recipe in recipes.values())
    epochs = {label: recipe.schedule.epochs for label, recipe in recipes.items()}
    assert epochs == {"margin": 150, "both": 150, **dict.fromkeys(set(epochs) - {"margin", "both"}, 300)}
    (small,) = find_studies("sharing/table-6", "omniglot")
    budgets = {resolve_recipes(small, arm, "omniglot", 0)[0].schedule for arm in small.arms}
    assert len(budgets) == 1  # small recipes have a number of steps for all tasks together


def test_realitys_backbones_are_not_trained() -> None:
    for name, pretrained in (("reality/table-1", True), ("reality/table-2", False)):
        (study,) = find_studies(name, "sop")
        recipes = [resolve_recipes(study, arm, "sop", 0)[0] for arm in study.arms]
        assert [r.backbone.architecture for r in recipes] == ["googlenet", "bn_inception", "resnet50.tv_in1k"]
        assert all(r.backbone.pretrained is pretrained and r.schedule.epochs == 0 for r in recipes)
        assert {(r.preprocessing.resize, r.preprocessing.crop) for r in recipes} == {(256, 227)}


def test_figure_10_of_revisiting_has_spectra_of_classes() -> None:
    for name in ("revisiting/figure-10", "revisiting/appendix-c"):
        assert any(study.spectrum for study in find_studies(name, "cub"))
        assert partial_note(name) is None
    (decay,) = (study for study in find_studies("revisiting/appendix-c", "cub") if not study.spectrum)
    assert "spectral_decay_by_class" in {measure.metric for measure in decay.measures}


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
    axes = {name: {study.x for study in find_studies(f"group/{name}", "omniglot")} for name in ("anchors", "figure-5")}
    assert axes == {"anchors": {"anchors"}, "figure-5": {"classes a batch"}}


def test_the_nearest_name_is_of_the_same_paper() -> None:
    with raises(UsageError, "unknown-name") as caught:
        check_name("group/figure-2")
    assert "'group/" in str(caught.value).partition("'group/figure-2'")[2]
    assert "revisiting/" not in str(caught.value)
    with raises(UsageError, "unknown-name") as caught:
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
    with raises(UsageError, "not-available") as caught:
        find_studies("sharing/table-1", "nothing")
    assert "sharing/tables-1-to-3 (cub, cars, sop)" in str(caught.value)


TWO = {
    "revisiting/table-1": ("revisiting/table-1", "revisiting/table-1-published"),
    "sharing/table-4": ("sharing/losses", "sharing/table-4"),
    "reality/table-2": ("reality/table-2-small", "reality/table-2"),
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
    refused = names_module.NOT_RUN | set(names_module.COMMANDS)
    assert not names_module.NOT_RUN & set(names_module.COMMANDS)
    assert all(ALIASES[name][0] == name for name in set(ALIASES) & set(STUDIES))
    assert not refused & (set(STUDIES) | set(ALIASES))
    assert set(ALIASES) | set(STUDIES) > names_module.PARTIAL
    assert {study for studies in ALIASES.values() for study in studies} <= set(STUDIES)
    with raises(UsageError, "unknown-name") as caught:
        check_name("revisiting/figur-7")
    assert "'revisiting/figure-7'" in str(caught.value)
