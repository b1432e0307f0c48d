"""Every study by name, and the papers' names of tables and figures with the studies that stand for them."""

from __future__ import annotations

from collections.abc import Iterable

from training.recipes.published_code import SUFFIX
from training.studies.papers import claims, diva, group, reality, reality_2026, revisiting, sharing, years
from training.studies.study import Study, study_as_published, supports
from zoo.errors import UsageError, nearest

STUDIES: dict[str, Study] = {
    study.name: study
    for paper in (claims, revisiting, sharing, reality, group, diva, years, reality_2026)
    for study in paper.STUDIES
}

_SHARING = ("sharing/tables-1-to-3", "sharing/losses")
_CONVERGENCE = ("group/convergence", "group/convergence-published")
_TASKS = ("diva/table-2", "diva/tasks")
_REALITY = ("reality/tables-3-to-5", "reality/pretrained", "reality/losses")

ALIASES: dict[str, tuple[str, ...]] = {
    "revisiting/table-1": ("revisiting/table-1", "revisiting/table-1-published"),
    "revisiting/figure-1": ("revisiting/table-2",),
    "revisiting/figure-2": tuple(
        f"revisiting/figure-2-{part}" for part in ("weight-decay", "dimension", "backbone", "published")
    ),
    "revisiting/figure-10": ("revisiting/figure-8",),
    "revisiting/appendix-b": ("revisiting/figure-5",),
    "revisiting/appendix-c": ("revisiting/figure-8", "revisiting/figure-5"),
    "sharing/table-1": _SHARING,
    "sharing/table-2": _SHARING,
    "sharing/table-3": _SHARING,
    "sharing/table-4": ("sharing/table-4", "sharing/losses"),
    "sharing/table-5": ("sharing/generalisation-gap",),
    "sharing/table-7": ("sharing/ablation", "sharing/table-7b"),
    "sharing/table-7a": ("sharing/ablation",),
    "sharing/table-8": ("sharing/table-8a", "sharing/table-8b"),
    "sharing/table-9": ("sharing/table-9", "sharing/losses"),
    "reality/table-2": ("reality/table-2", "reality/table-2-small"),
    "reality/table-3": _REALITY,
    "reality/table-4": _REALITY,
    "reality/table-5": _REALITY,
    "reality/over-the-years": ("reality/over-the-years", "claims/over-the-years"),
    "group/table-2": ("group/table-1", "group/ensembles"),
    "group/table-3": ("group/table-3", "group/table-3-small"),
    "group/convergence": _CONVERGENCE,
    "group/appendix-a": ("group/figure-4",),
    "group/appendix-c": ("group/temperature",),
    "group/appendix-f": ("group/appendix-f-g-i",),
    "group/appendix-g": ("group/appendix-f-g-i",),
    "group/appendix-i": ("group/appendix-f-g-i",),
    "diva/backbones": ("diva/backbones", "diva/backbones-small"),
    "revisiting/table-3": ("revisiting/table-2",),
    "revisiting/appendix-d": ("revisiting/table-2",),
    "revisiting/figure-9": ("revisiting/figure-5",),
    "group/figure-5": ("group/classes",),
    "group/figure-6": _CONVERGENCE,
    "group/figure-8": ("group/figure-7",),
    "group/figure-9": ("group/figure-4",),
    "diva/table-2": _TASKS,
    "diva/table-4": _TASKS,
    "diva/figure-1": _TASKS,
    "diva/figure-4": _TASKS,
    "diva/table-3": ("diva/table-3", "diva/backbones"),
    "diva/figure-5": ("diva/figure-5", "diva/heads"),
    "reality/figure-4": ("reality/over-the-years", "claims/over-the-years"),
    "reality/table-6": ("reality/over-the-years", "claims/over-the-years"),
}
"""Studies by the paper's name; those that support the data set are run. An alias may also be the name of a study: that
study is first, and the others are run where it is not supported. Tables and figures without an alias have the name of
their study, or are in `NOT_RUN`."""

PARTIAL = frozenset(
    {
        *("revisiting/table-3", "revisiting/appendix-d", "revisiting/figure-2", "sharing/figure-6"),
        *("sharing/table-1", "sharing/table-2", "sharing/table-3", "group/table-1", "group/table-2"),
        *("group/figure-6", "group/figure-7", "group/figure-8", "group/appendix-e", "diva/table-3"),
        *("reality/table-3", "reality/table-4", "reality/table-5"),
    }
)
"""Names whose studies are not everything that the paper shows there; docs/papers.md says what is missing."""

NOT_RUN = frozenset(
    {
        *("revisiting/figure-6", "revisiting/figure-11", "revisiting/appendix-e", "sharing/figure-3"),
        *(f"revisiting/table-{table}" for table in range(4, 10)),
        *("group/appendix-h", "diva/table-1", "reality/figure-5"),
    }
)
"""Names that no study stands for; docs/papers.md says why."""

_SEARCH = "zoo benchmark search {} --dataset {} --data DIR"

COMMANDS = {
    "reality/figure-1": "python examples/metrics_demo.py",
    "reality/figure-2": "python examples/metrics_demo.py --random",
    "reality/figure-3": f"{_SEARCH.format('contrastive triplet margin', 'cub')} --trials 0",
    **{f"sharing/figure-{n}": "zoo benchmark report MODEL --split train --map tsne --out map.html" for n in (2, 7, 8)},
    "group/figure-3": "zoo benchmark report MODEL --out report.html",
    "group/figure-10": "zoo benchmark report MODEL --map tsne --out map.html",
    "group/appendix-b": _SEARCH.format("group", "cars"),
    "group/appendix-d": _SEARCH.format("group", "cars"),
    "group/appendix-j": "zoo benchmark report MODEL --map tsne --out map.html",
}
"""Names that another command stands for; docs/papers.md says what it shows."""

REASONS = "docs/papers.md, section 'Not run, and why'"


def find_study(name: str) -> Study:
    """Return the study of that name; with `SUFFIX` at its end, the study as published.

    Raises:
        UsageError: If there is no such study; with the nearest name.
    """
    if name.endswith(SUFFIX):
        return study_as_published(find_study(name.removesuffix(SUFFIX)))
    if name not in STUDIES:
        raise _unknown_study(name, STUDIES)
    return STUDIES[name]


def find_studies(name: str, dataset: str) -> list[Study]:
    """Return the studies that a name stands for on a data set, mostly one; with `SUFFIX` at its end, as published.

    Raises:
        UsageError: If no study has the name, or none of several supports the data set.
    """
    if name.endswith(SUFFIX):
        return [study_as_published(study) for study in find_studies(name.removesuffix(SUFFIX), dataset)]
    check_name(name)
    studies = [STUDIES[study] for study in ALIASES.get(name, (name,))]
    # A single study reports itself which data sets it supports.
    supporting = [study for study in studies if len(studies) == 1 or supports(study, dataset)]
    if not supporting:
        listed = "; ".join(f"{study.name} ({', '.join(study.datasets)})" for study in studies)
        raise UsageError(f"no study of {name} can be run on {dataset}. There are: {listed}.", code="not-available")
    return supporting


def name_as_published(name: str) -> str:
    """Return the name of a study as published; a name that has the mark is returned unchanged."""
    return name if name.endswith(SUFFIX) else f"{name}{SUFFIX}"


def check_name(name: str) -> None:
    """Check that a study stands for a name.

    Raises:
        UsageError: If no study does; with the command that does, the place that gives the reason, or the nearest name.
    """
    name = name.removesuffix(SUFFIX)
    if name in STUDIES or name in ALIASES:
        return
    if name in COMMANDS:
        raise UsageError(
            f"{name} is not a comparison of recipes, but: {COMMANDS[name]} ({REASONS}).", code="not-available"
        )
    if name in NOT_RUN:
        raise UsageError(
            f"there is no study of {name}: see {REASONS}, for the reason and the nearest one.", code="not-available"
        )
    names = dict.fromkeys([*STUDIES, *ALIASES])
    # The figure of the same number in another paper would be misleading.
    of_paper = [other for other in names if other.startswith(f"{name.partition('/')[0]}/")]
    raise _unknown_study(name, of_paper or names)


def partial_note(name: str) -> str | None:
    """Return the note that a name's studies are not everything that the paper shows; None for other names."""
    name = name.removesuffix(SUFFIX)
    if name not in PARTIAL:
        return None
    return f"{name}: run in part, by {' and '.join(ALIASES.get(name, (name,)))}. {REASONS}, says what is missing."


def _unknown_study(name: str, names: Iterable[str]) -> UsageError:
    return UsageError(
        f"there is no study {name!r}.{nearest(name, names)} All studies: zoo benchmark list", code="unknown-name"
    )
