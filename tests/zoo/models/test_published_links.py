"""Recipes of published scores: backbone, dimension and data set agree; tests of studies are in test_report."""

from __future__ import annotations

import json

from zoo.models.published import published_tables
from zoo.models.registry import RECIPES_FILE

SCORES = [(table.name, score) for table in published_tables() for score in table.scores]


def test_a_recipe_has_the_backbone_the_dimension_and_the_data_set_of_its_scores() -> None:
    recipes = json.loads(RECIPES_FILE.read_text())
    linked = [(table, score) for table, score in SCORES if score.recipe is not None]
    assert len(linked) > 300
    for table, score in linked:
        facts = recipes[score.recipe]
        expected = (score.backbone, score.dim, score.dataset)
        assert (facts["backbone"], facts["dim"], facts["dataset"]) == expected, (table, score.row)


def test_quoted_rows_and_rows_of_no_stated_dimension_have_neither() -> None:
    for table, score in SCORES:
        if score.quoted_from or score.dim is None or score.backbone is None:
            assert (score.recipe, score.study) == (None, None), (table, score.row)


def test_the_epochs_that_were_selected_on_test_images_are_marked() -> None:
    marked = {table for table, score in SCORES if score.best_on_test}
    assert marked == {"revisiting-2", "revisiting-3"}
    assert all(score.best_on_test for table, score in SCORES if table == "revisiting-2")
