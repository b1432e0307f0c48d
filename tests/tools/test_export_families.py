"""The page of exported architectures: it shows its rows, its failures and the architectures not measured yet."""

from __future__ import annotations

from tools.export_families import RECIPES as MEMBERS
from tools.export_families import page
from training.recipe import EnsembleRecipe
from training.recipes import RECIPES

VARIANT = {"min_cosine": 0.99999951, "mean_cosine": 1.0, "centred_cosine": 0.987, "bytes": 3 * 2**20}
ROW = {"size": 64, "args": {}, "recipe": False, "date": "2030-01-02", "hardware": "a computer"}


def test_the_page() -> None:
    good = {
        **ROW,
        "architecture": "alpha_net",
        "family": "alpha",
        "dim": 320,
        "parameters": 1_260_000,
        "under_noise": 0.98765,
        "in_double": 0.99999987,
        "variants": {"fp32": VARIANT, "int8": {**VARIANT, "quantised": "layers alone"}},
        "failures": {"fp16": "it overflows"},
    }
    bad = {**ROW, "architecture": "beta_net", "variants": {}, "failures": {"torch": "no such size"}}
    table = {
        "command": "python tools/export_families.py",
        "versions": {"torch": "9.9"},
        "rows": [good, bad],
        "pending": ["gamma_net"],
    }
    text = page(table)
    measured = "0.9999999 | 0.9999995 | 3.0 | - | - | 1.0000 | 3.0 | 0.987 | 0.9877"
    assert f"| alpha_net | alpha | 64 | 320 | 1.3 | {measured} |" in text
    assert "| beta_net | - | 64 | - | - | - | - | - | - | - | - | - | - | - |" in text
    assert "members of 1 further families" in text
    assert "on a computer (2); torch 9.9" in text
    assert "- layers alone: alpha_net" in text
    assert "- alpha_net, fp16: it overflows\n- beta_net, torch: no such size" in text
    assert "continues with: gamma_net." in text
    assert "(precision-cost.md)" in text
    header = next(line for line in text.splitlines() if line.startswith("| architecture"))
    assert header.count("|") == 15
    recipes = {**good, "architecture": "alpha_net_large", "recipe": True}
    assert "among them 1 that recipes name and members of 0 further families" in page(
        {**table, "rows": [good, recipes]}
    )


def test_the_architectures_of_recipes_are_those_that_recipes_name() -> None:
    """By timm's name of the architecture, without the tag of its weights."""
    recipes = [
        member
        for make in RECIPES.values()
        for recipe in [make()]
        for member in (recipe.members if isinstance(recipe, EnsembleRecipe) else (recipe,))
    ]
    architectures = {recipe.backbone.architecture.partition(".")[0] for recipe in recipes}
    assert sorted(member.architecture for member in MEMBERS) == sorted(architectures)
