"""The runs of a study and the images they come from: a mean over runs is of one set of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from training.data import image_key
from training.studies.plan import Plan, Run, chosen, write_plan
from training.studies.results_file import Results
from zoo.errors import TrainingError

Images = dict[tuple[Any, ...], str]
"""From what is read of a data set to the digest of the images and labels in it."""


class RunSchedule:
    """The runs of a plan in a study's folder, and the images that the finished ones come from.

    A schedule is made once per study and passed on: each recipe is resolved once, and each result is read once.
    """

    def __init__(self, plan: Plan, folder: Path, results: Results | None = None) -> None:
        self.plan, self.folder = plan, folder
        self.results = Results(folder) if results is None else results
        self.runs = plan.runs(folder, self.results)
        self._images: dict[tuple[Any, ...], tuple[str, str]] = {}  # with the title of a run that comes from them
        self._known: set[str] = set()

    def begin(self) -> RunSchedule:
        """Write plan.json, and return the schedule of all that was ever asked for in this folder.

        Raises:
            TrainingError: if the folder holds another study, or one whose recipes have changed since.
            UsageError: if the images are a folder that is not named.
        """
        plan = write_plan(self.plan, self.folder)
        return self if plan == self.plan else RunSchedule(plan, self.folder, self.results)

    def chosen(self, only: Iterable[str]) -> list[Run]:
        """Return the runs of the arms with these labels, or all; `UsageError` for an unknown label."""
        return chosen(self.runs, only, self.plan.study)

    def check_finished(self) -> None:
        """Read the results that are new, and raise `TrainingError` if two finished runs come from other images."""
        finished = set(self.results)
        for run in self.runs:
            if run.name in finished and run.name not in self._known:
                images = images_of(run, run.result())
                self._compare(run, images)
                self._images |= {key: (digest, run.title) for key, digest in images.items() if key not in self._images}
                self._known.add(run.name)

    def check_images(self, run: Run, images: Images) -> None:
        """Raise `TrainingError` if a finished run of the study comes from other images than these of `run`."""
        self.check_finished()
        self._compare(run, images)

    def _compare(self, run: Run, images: Images) -> None:
        for key, digest in images.items():
            other, title = self._images.get(key, (digest, run.title))
            if other != digest:
                raise TrainingError(
                    f"{run.title} comes from other images than {title} in {self.folder}: their digests are {digest} "
                    f"and {other}. A mean over both is meaningless: name the data that the study was begun with "
                    "(--data), or begin again in another folder (--out).",
                    code="other-images",
                )


def images_of(run: Run, result: Mapping[str, Any]) -> Images:
    """Return the images that a run trained on and was measured on, by its result; older results have fewer."""
    trained = zip(run.recipes, result.get("data", ()), strict=False)
    measured = result.get("measured", {}).items()
    first = run.recipes[0]
    return {
        **{image_key(recipe): digest for recipe, digest in trained},
        **{(first.data.dataset, split, first.preprocessing): digest for split, digest in measured},
    }
