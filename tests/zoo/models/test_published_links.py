"""Recipes and marks of published scores agree with recipes and published code; tests of studies are in test_report."""

from __future__ import annotations

import pytest

from training.recipe import Recipe
from training.recipes import CATALOGUE, RECIPES
from training.recipes.published_code import published_switch
from training.studies.search_spaces import SPACES
from zoo.models.published import published_tables

SCORES = [(table.name, score) for table in published_tables() for score in table.scores]


def test_a_recipe_has_the_backbone_the_dimension_and_the_data_set_of_its_scores() -> None:
    linked = [(table, score) for table, score in SCORES if score.recipe is not None]
    assert len(linked) > 300
    for table, score in linked:
        facts = CATALOGUE[score.recipe]
        expected = (score.backbone, score.dim, score.dataset)
        assert (facts["backbone"], facts["dim"], facts["dataset"]) == expected, (table, score.row)


def test_quoted_rows_and_rows_of_no_stated_dimension_have_neither() -> None:
    for table, score in SCORES:
        if score.quoted_from or score.dim is None or score.backbone is None:
            assert (score.recipe, score.study) == (None, None), (table, score.row)


def test_own_scores_of_papers_whose_code_selects_on_test_classes_are_marked() -> None:
    """Quoted scores, untrained networks and SoftTriple by its authors' code are not."""
    selecting = {"Revisiting", "MIC", "DiVA", "Group"}
    untrained = "revisiting-1"
    for table in published_tables():
        for score in table.scores:
            own = score.quoted_from is None and score.row != "SoftTriple, one centre"
            expected = own and table.paper.short in selecting and table.name != untrained
            assert score.best_on_test == expected, (table.name, score.row)


def test_the_protocol_of_a_marked_table_says_that_the_code_selects() -> None:
    for table in published_tables():
        if any(score.best_on_test for score in table.scores) and table.name != "revisiting-2":
            assert "code" in table.protocol
            assert "keeps the best epoch on the test classes" in table.protocol, table.name


@pytest.mark.slow
def test_marks_are_those_of_the_published_code_that_recipes_name() -> None:
    for table, score in SCORES:
        recipe = RECIPES[score.recipe]() if score.recipe else None
        if isinstance(recipe, Recipe):
            departures = published_switch(score.recipe).unswitched
            selects = any(departure.subject == "measured epoch" for departure in departures)
            assert score.best_on_test == selects, (table, score.row)


def test_rows_that_nothing_here_measures_are_known() -> None:
    """Their dimension is not printed, or nothing here measures them in a study."""
    linked = [score for _, score in SCORES if score.quoted_from or score.recipe or score.study or score.search]
    assert {(table, score.row) for table, score in SCORES if score not in linked} == {
        *(("reality-2", row) for row in ("GoogleNet", "BN-Inception", "ResNet50")),
        ("group-text", "GL Densenet161, its own hyperparameters"),
        ("group-text", "SoftTriple, one centre"),
        ("revisiting-3", "Margin (ours)"),
        ("sharing-7a", "shared only"),
    }


def test_a_search_measures_joined_models_of_a_space_of_its_loss() -> None:
    searched = [score for _, score in SCORES if score.search]
    assert len(searched) == 3 * 12 * 2 * 3  # tables, losses, kinds, metrics
    for score in searched:
        loss, kind = score.search.split("/")
        assert loss in SPACES
        assert score.row.endswith(f", {kind}")
        assert score.dim == {"separated": 128, "concatenated": 512}[kind]
