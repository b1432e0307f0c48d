"""Published numbers name recipes; these are what the numbers were measured with."""

from __future__ import annotations

import pytest

from training.recipes import RECIPES, embedding_dim
from zoo.models.published import published_tables

NAMED = [(table, score) for table in published_tables() for score in table.scores if score.recipe]


@pytest.mark.parametrize("name", sorted({score.recipe for _, score in NAMED}))
def test_every_recipe_that_a_published_score_names_exists_and_fits_it(name):
    recipe = RECIPES[name]()
    for table, score in NAMED:
        if score.recipe == name:
            assert (recipe.data.dataset, recipe.backbone.name, embedding_dim(recipe)) == (
                score.dataset,
                score.backbone,
                score.dim,
            )
            source = recipe.sources[0] if hasattr(recipe, "sources") else recipe.members[0].sources[0]
            assert source.split(",")[0] == table.paper.citation.split(",")[0]
