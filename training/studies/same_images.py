"""Runs of a study are averaged: all of them must come from the same images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from training.data import image_key
from training.studies.plan import Run
from zoo.errors import TrainingError

Images = dict[tuple[Any, ...], str]
"""By what is read of a data set: the digest of the images and labels that were found."""

Known = dict[tuple[Any, ...], tuple[str, str]]
"""Likewise, with the title of a run that found them."""


def images_of(run: Run, result: Mapping[str, Any]) -> Images:
    """What a run trained on and what it was measured on, as its result has it; older results have less."""
    trained = zip(run.recipes, result.get("data", ()), strict=False)
    measured = result.get("measured", {}).items()
    first = run.recipes[0]
    return {
        **{image_key(recipe): digest for recipe, digest in trained},
        **{(first.data.dataset, split, first.preprocessing): digest for split, digest in measured},
    }


def known_images(runs: Iterable[Run]) -> Known:
    """The images of all finished runs. Raises `TrainingError` where two of them come from different ones."""
    known: Known = {}
    for run in runs:
        if run.finished:
            learn(run, images_of(run, run.result()), known)
    return known


def learn(run: Run, found: Images, known: Known) -> None:
    """Add a run's images to those known. Raises `TrainingError` where they are others than a finished run's."""
    for key, digest in found.items():
        other, title = known.setdefault(key, (digest, run.title))
        if other != digest:
            raise TrainingError(
                f"{run.title} comes from other images than {title} in {run.folder.parents[1]}: their digests are "
                f"{digest} and {other}. A mean over both would be of nothing: name the data that the study was begun "
                "with (--data), or begin anew in another folder (--out)."
            )
