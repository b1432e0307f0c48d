"""Studies of the user: arms as `zoo benchmark run --arm` takes them, of recipes with any settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from training.overrides import named_classes, resolve
from training.studies.study import Arm, Study
from zoo.errors import UsageError
from zoo.models.places import check_trusted

NAME = "own/arms"

NEXT_SETTING = re.compile(r",(?=[a-z_][a-z0-9_.]*=)")
"""A comma before a setting; others belong to values, as in heads=[{"name":"embedding","dim":64}]."""

EXAMPLE = "--arm wide=margin-conv4-glyphs,objective.loss_args.margin=0.3 --arm margin-conv4-glyphs"


def own_study(texts: Sequence[str]) -> Study:
    """Return the study of arms, the first of which is its baseline.

    Args:
        texts: LABEL=RECIPE,KEY=VALUE,... each, with settings as `zoo train --set` takes them; without LABEL= the text
            is the label.

    Raises:
        UsageError: If there are fewer than two arms.
        RecipeError: If two have one label.
    """
    arms = tuple(_arm(text) for text in dict.fromkeys(texts))
    if len(arms) < 2:
        raise UsageError(f"a study compares at least two different arms: {EXAMPLE}", code="missing-value")
    return Study(NAME, "Arms of your own", "zoo benchmark run --arm", arms, own_arms=tuple(dict.fromkeys(texts)))


def check_own_arms(
    texts: Iterable[str], settings: Iterable[str], folder: Path, typed: Study | None = None, trust_code: bool = False
) -> None:
    """Refuse classes that a study's folder names in its arms and settings, before any of them is imported.

    Args:
        texts: The arms, as `own_study` takes them.
        settings: The settings of all arms.
        folder: The folder.
        typed: The study that the user has typed: its classes are trusted.
        trust_code: Whether the user trusts the folder.

    Raises:
        RecipeError: `unsafe-file`.
    """
    own = classes_of_arms(typed.own_arms) if typed else set()
    check_trusted(classes_of_arms(texts, settings) - own, folder, trust_code)


def classes_of_arms(texts: Iterable[str], settings: Iterable[str] = ()) -> set[str]:
    """Return the places of the classes that arms, and the settings of all of them, name; nothing is imported."""
    return set(named_classes([*settings, *(setting for text in texts for setting in _arm(text).settings)]))


def own_dataset(study: Study) -> str:
    """Return the data set of the arms' recipes.

    Raises:
        UsageError: `conflicting-settings` if they have several.
        RecipeError: If there is no such recipe, or it does not take the settings.
    """
    datasets = {arm.label: resolve(arm.recipe, arm.settings).data.dataset for arm in study.arms}
    if len(set(datasets.values())) > 1:
        listed = ", ".join(f"{label}: {dataset}" for label, dataset in datasets.items())
        raise UsageError(
            f"the arms are of different data sets ({listed}); choose one for all of them with --dataset.",
            code="conflicting-settings",
        )
    return next(iter(datasets.values()))


def _arm(text: str) -> Arm:
    first, *settings = NEXT_SETTING.split(text)
    label, equals, recipe = first.partition("=")
    if not (label and (recipe or not equals)):
        raise UsageError(f"an arm is [LABEL=]RECIPE[,KEY=VALUE...], not {text!r}: {EXAMPLE}", code="invalid-value")
    return Arm(label if equals else text, recipe or label, tuple(settings), own=True)
