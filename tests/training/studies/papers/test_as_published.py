"""Studies as published: every arm is switched that has published code, and compared arms keep equal budgets."""

from __future__ import annotations

from functools import cache

from training.recipe import Recipe
from training.studies.papers import STUDIES, find_study
from training.studies.study import Study, resolve_recipes, supports

ON_CUB = [name for name, study in STUDIES.items() if supports(study, "cub")]

NO_CODE = ("shared-",)
"""Beginnings of the names of recipes whose authors published no code: those of Sharing."""

OTHER_BUDGET = {"diva/table-2": {"diva-deepcluster"}}
"""Arms whose published command has a budget of its own: --bs 104 --n_epochs 200, where others have 112 and 350."""


@cache
def recipes(name: str) -> dict[str, tuple[Recipe, ...]]:
    """The recipes on CUB by the label of the arm."""
    study: Study = find_study(name)
    return {arm.label: resolve_recipes(study, arm, "cub", 0) for arm in study.arms}


def budget(recipe: Recipe) -> tuple[object, ...]:
    schedule, optimizer = recipe.schedule, recipe.optimizer
    return (recipe.batch.size, schedule.epochs, schedule.steps, schedule.milestones, optimizer.name, optimizer.lr)


def test_every_arm_with_published_code_is_switched() -> None:
    for name in ON_CUB:
        for label, members in recipes(f"{name}-as-published").items():
            for recipe in members:
                assert recipe.as_published != recipe.name.startswith(NO_CODE), (name, label)


def test_arms_of_equal_budgets_have_equal_ones_as_published() -> None:
    for name in ON_CUB:
        paper, code = recipes(name), recipes(f"{name}-as-published")
        new: dict[tuple[object, ...], tuple[object, ...]] = {}
        for label in set(paper) - OTHER_BUDGET.get(name, set()):
            if not code[label][0].name.startswith(NO_CODE):
                published = budget(code[label][0])
                assert new.setdefault(budget(paper[label][0]), published) == published, (name, label)
