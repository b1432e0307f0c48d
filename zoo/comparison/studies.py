"""The finished runs of studies, as runs of the recipes that they trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo.comparison.runs import Run
from zoo.errors import UsageError
from zoo.files import complete_lines, read_object
from zoo.published.scores import WHOLE
from zoo.report.history import recalls_of

RESULTS = "results.jsonl"

Record = dict[str, Any]


def study_runs(folder: Path) -> list[Run]:
    """Every finished run of the study in `folder`, or of the studies in its subfolders, in the order of their names.

    A result that cannot be read hides no other. Raises `UsageError` where there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; name that of a study, or the one that studies lie in.")
    studies = [folder] if (folder / RESULTS).is_file() else sorted(folder.iterdir())
    return [run for study in studies for run in _runs(study)]


def _runs(study: Path) -> Iterator[Run]:
    plan = read_object(study / "plan.json")
    for name, result in sorted(_results(study), key=lambda pair: pair[0].split("/")):
        try:
            run = _run(study, name, {**_planned(plan, result), **result}, plan.get("study"))
        except (KeyError, TypeError, IndexError):
            continue
        if run is not None:
            yield run


def _results(study: Path) -> Iterator[tuple[str, Record]]:
    """Yield the run's name and the result of each line that can be read."""
    for line in complete_lines(study / RESULTS):
        try:
            result = json.loads(line)
            yield str(result["run"]), result
        except (ValueError, KeyError, TypeError):
            continue


def _run(study: Path, name: str, result: Record, planned: str | None) -> Run | None:
    """None where what was trained is not known. planned: the study's name."""
    if "resolved" not in result:
        return None
    measured = [{**each, "runtime": "torch", "precision": "fp32"} for each in result["evaluations"]]
    known = [each for each in measured if each["view"] == WHOLE]
    members = [{k: v for k, v in each.items() if k not in ("name", "seed", "sources")} for each in result["resolved"]]
    return Run(
        name=f"{study.name}/{name}",
        dim=int(known[0]["dim"]),
        seed=int(result["seed"]),
        selection=_selection(study, result),
        settings=members[0] if len(members) == 1 else {"members": members},
        results=known,
        recipe=None if result["changed"] else str(result["recipe"]),
        changes=len(result["settings"]) + (result["selection"] != "last"),
        curves=recalls_of(result["training"][0]["log"]),
        study=planned,
        arm=result.get("arm"),
        parts=[each for each in measured if each["view"] != WHOLE],
    )


def _selection(study: Path, result: Record) -> str:
    trained, models = result["training"][0], len(result["training"])
    how = f"last of {trained['epochs']} epochs" if trained["epochs"] else "not trained"
    if result["selection"] != "last":
        how = f"best epoch on held-out training classes ({trained['measured_epoch']} of {trained['epochs']})"
    joined = f"{models} models joined, " if models > 1 else ""
    return f"{joined}{how}, study {study.name}" + (
        f" with {', '.join(result['settings'])}" if result["settings"] else ""
    )


def _planned(plan: Record, result: Record) -> Record:
    """What results of earlier versions lack, from their study's plan, which has the recipes of the last epoch."""
    recipes = plan.get("recipes", {}).get(result.get("arm"))
    if not recipes or result.get("selection") != "last":
        return {}
    first = recipes["0"]
    # Arms whose settings differ from their recipe's were called by another name than the recipe.
    changed = not str(first["name"]).startswith(f"{result['arm']}-")
    facts = {"recipe": first["name"], "changed": changed, "settings": plan.get("settings", [])}
    return {**facts, "resolved": list(recipes.values())}
