"""Every study by name."""

from __future__ import annotations

from training.studies import claims, diva, group, reality, revisiting, sharing, years
from training.studies.study import Study
from zoo.errors import UsageError, nearest

STUDIES: dict[str, Study] = {
    study.name: study for paper in (claims, revisiting, sharing, reality, group, diva, years) for study in paper.STUDIES
}


def study_of(name: str) -> Study:
    """The study of that name. Raises `UsageError` with the nearest names."""
    if name not in STUDIES:
        raise UsageError(f"there is no study {name!r}.{nearest(name, STUDIES)} All studies: zoo benchmark studies")
    return STUDIES[name]
