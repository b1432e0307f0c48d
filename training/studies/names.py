"""What papers call their tables and figures: the studies that stand for them, or why there is none."""

from __future__ import annotations

from training.studies.missing import MISSING, missing_of
from training.studies.stand_ins import takes
from training.studies.study import Study
from training.studies.table import STUDIES
from zoo.errors import UsageError, nearest

_SHARING = ("sharing/tables-1-to-3", "sharing/losses")
_REALITY = ("reality/tables-3-to-5", "reality/losses")

ALIASES: dict[str, tuple[str, ...]] = {
    "revisiting/table-1": ("revisiting/table-1", "revisiting/table-1-published"),
    "revisiting/figure-1": ("revisiting/table-2",),
    "revisiting/figure-2": tuple(
        f"revisiting/figure-2-{part}" for part in ("weight-decay", "dimension", "backbone", "published")
    ),
    "revisiting/figure-10": ("revisiting/figure-8",),
    "revisiting/appendix-c": ("revisiting/figure-5",),
    "sharing/table-1": _SHARING,
    "sharing/table-2": _SHARING,
    "sharing/table-3": _SHARING,
    "sharing/table-4": _SHARING,
    "sharing/table-6": ("sharing/table-6", "sharing/table-6-published"),
    "reality/table-3": _REALITY,
    "reality/table-4": _REALITY,
    "reality/table-5": _REALITY,
    "reality/over-the-years": ("reality/over-the-years", "claims/over-the-years"),
    "group/table-2": ("group/table-1", "group/ensembles"),
    "group/table-3": ("group/table-3", "group/table-3-small"),
    "group/convergence": ("group/convergence", "group/convergence-published"),
    "group/appendix-f": ("group/appendix-f-g-i",),
    "group/appendix-g": ("group/appendix-f-g-i",),
    "group/appendix-i": ("group/appendix-f-g-i",),
    "diva/backbones": ("diva/backbones", "diva/backbones-small"),
    **{f"{each.paper.lower()}/{name}": each.runs for each in MISSING if each.runs for name in each.names},
}
"""By the paper's name: the studies, of which those that take the data set are run. A study may go by that name itself:
it is the first, and the others are run where it is not. What has no line here either goes by its study's own name or
stands in `training.studies.missing`."""


def check_study(name: str) -> None:
    """Raise `UsageError` for a name that stands for no study: the reason where a paper has it, else the nearest."""
    if name in STUDIES or name in ALIASES:
        return
    paper, _, what = name.partition("/")
    if (each := missing_of(name)) is not None:
        raise UsageError(
            f"there is no study of {each.paper}'s {what.replace('-', ' ')}: {each.why}. What comes nearest: "
            f"{each.instead}. All that is left out: zoo benchmark studies --missing"
        )
    known = dict.fromkeys([*STUDIES, *ALIASES])
    # Another paper's figure of that number is no near thing.
    of_paper = [other for other in known if other.startswith(f"{paper}/")]
    raise UsageError(
        f"there is no study {name!r}.{nearest(name, of_paper or known)} All studies: zoo benchmark studies"
    )


def in_part(name: str) -> str | None:
    """What a user must know of a name whose studies are not all that the paper has there; None for others."""
    each = missing_of(name)
    if each is None or not each.runs:
        return None
    return f"{name}: {each.why}. What is run: {each.instead}."


def studies_for(name: str, dataset: str) -> list[Study]:
    """The studies that a name stands for on a data set, mostly one.

    Raises `UsageError` as `check_study` does, and where none of several takes the data set.
    """
    check_study(name)
    known = [STUDIES[each] for each in ALIASES.get(name, (name,))]
    # What a study by its own name cannot be run on, it says itself.
    found = [study for study in known if len(known) == 1 or takes(study, dataset)]
    if not found:
        each = "; ".join(f"{study.name} ({', '.join(study.datasets)})" for study in known)
        raise UsageError(f"no study of {name} can be run on {dataset}. There are: {each}.")
    return found
