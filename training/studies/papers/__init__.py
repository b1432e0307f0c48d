"""STUDIES and their aliases.

Every study by name.

The papers' names of their tables and figures, and the studies that stand for them.
"""

from __future__ import annotations

from training.studies.papers import claims, diva, group, reality, revisiting, sharing, years
from training.studies.study import Study, supports
from zoo.errors import UsageError, nearest

STUDIES: dict[str, Study] = {
    study.name: study for paper in (claims, revisiting, sharing, reality, group, diva, years) for study in paper.STUDIES
}


def find_study(name: str) -> Study:
    """The study of that name. Raises `UsageError` with the nearest names."""
    if name not in STUDIES:
        raise UsageError(f"there is no study {name!r}.{nearest(name, STUDIES)} All studies: zoo benchmark studies")
    return STUDIES[name]


_SHARING = ("sharing/tables-1-to-3", "sharing/losses")
_SWEEPS = ("group/anchors", "group/samples", "group/classes")
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
    "revisiting/table-3": ("revisiting/table-2",),
    "revisiting/figure-9": ("revisiting/figure-5",),
    "sharing/table-5": ("sharing/ablation",),
    "sharing/table-9": _SHARING,
    "sharing/figure-4": ("sharing/generalisation-gap",),
    "group/figure-3": _SWEEPS,
    "group/figure-5": _SWEEPS,
    "diva/table-4": ("diva/table-2",),
    "diva/figure-1": ("diva/heads",),
    "diva/figure-4": ("diva/heads",),
    "diva/figure-5": ("diva/heads",),
    "reality/figure-3": _REALITY,
    "reality/figure-4": _REALITY,
}
"""By the paper's name: the studies, of which those that take the data set are run. A study may go by that name itself:
it is the first, and the others are run where it is not. What has no line here goes by its study's own name, or is in
`NOT_RUN`."""

PARTIAL = frozenset(
    {
        *("revisiting/table-3", "revisiting/figure-9", "sharing/table-5", "sharing/table-9", "sharing/figure-4"),
        *("group/figure-3", "group/figure-5", "diva/table-4", "diva/figure-1", "diva/figure-4", "diva/figure-5"),
        *("reality/figure-3", "reality/figure-4"),
    }
)
"""Names whose studies are not known to be all that the paper shows there; docs/papers.md says why."""

NOT_RUN = frozenset(
    {
        *("revisiting/figure-6", "revisiting/figure-11", "sharing/figure-3", "sharing/figure-6"),
        *("group/figure-4", "group/figure-7", "group/figure-8"),
        *("group/appendix-c", "group/appendix-d", "group/appendix-e"),
        *("reality/table-1", "reality/table-2", "reality/figure-1", "reality/figure-2", "reality/figure-5"),
    }
)
"""Names that no study stands for; docs/papers.md says why."""

REASONS = "docs/papers.md, section 'Not run, and why'"


def check_name(name: str) -> None:
    """Raise `UsageError` for a name that no study stands for, with the place that says why, or the nearest name."""
    if name in STUDIES or name in ALIASES:
        return
    if name in NOT_RUN:
        raise UsageError(
            f"there is no study of {name}: {REASONS}, gives the reason and what is nearest.", code="not-run"
        )
    paper = name.partition("/")[0]
    known = dict.fromkeys([*STUDIES, *ALIASES])
    # Another paper's figure of that number is not near.
    of_paper = [other for other in known if other.startswith(f"{paper}/")]
    raise UsageError(
        f"there is no study {name!r}.{nearest(name, of_paper or known)} All studies: zoo benchmark studies",
        code="unknown-study",
    )


def partial_note(name: str) -> str | None:
    """Return the note that a name's studies are not all that the paper shows; None for other names."""
    if name not in PARTIAL:
        return None
    return f"{name}: run in part, by {' and '.join(ALIASES[name])}. {REASONS}, says what is not known."


def find_studies(name: str, dataset: str) -> list[Study]:
    """The studies that a name stands for on a data set, mostly one.

    Raises `UsageError` as `check_study` does, and where none of several takes the data set.
    """
    check_name(name)
    known = [STUDIES[each] for each in ALIASES.get(name, (name,))]
    # What a study by its own name cannot be run on, it says itself.
    found = [study for study in known if len(known) == 1 or supports(study, dataset)]
    if not found:
        each = "; ".join(f"{study.name} ({', '.join(study.datasets)})" for study in known)
        raise UsageError(f"no study of {name} can be run on {dataset}. There are: {each}.", code="not-on-this-data-set")
    return found
