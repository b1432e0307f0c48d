"""Data sets that have no recipes of their own: whose recipes, and so whose studies, serve them."""

from __future__ import annotations

from training.studies.study import Study

STAND_INS = {"folder": "cifar100", "inshop": "sop"}
"""By data set. In-Shop is products of many classes with few images each, as SOP is; a folder may be anything, so it has
the recipes of small photographs, which take the least."""


def with_recipes(dataset: str) -> str:
    """The data set whose recipes are used."""
    return STAND_INS.get(dataset, dataset)


def takes(study: Study, dataset: str) -> bool:
    """Whether the study can be run on the data set."""
    return not study.datasets or bool({dataset, with_recipes(dataset)} & set(study.datasets))
