"""Studies of arms by name or by objects: `zoo.study`, and the plans and folders of `zoo benchmark run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.named import PARTS, RecipeSettings, own_parts, setting_texts
from training.overrides import resolve
from training.own_network import check_objects
from training.recipe import Recipe
from training.studies.own import own_dataset, own_study
from training.studies.plan import Plan, RunSchedule, adapt_to_dataset
from training.studies.render import as_latex, as_markdown, tables_of, to_json, write_report
from training.studies.report import Report, build_report
from training.studies.runner import prepare_contexts, print_progress, run_schedule, run_trials
from training.studies.study import SELECTIONS, Study, slug, study_as_published
from zoo import paths
from zoo.data import check_dataset
from zoo.data.formats import table_of
from zoo.errors import TrainingError, UsageError

Arm = str | Mapping[str, Any]
"""A recipe's name, or its changes: `{"recipe": name, "loss": MyLoss(0.5), "settings": {...}}`, with the parts of
`zoo.train` (loss, miner, sampler, backbone, head)."""


@dataclass(frozen=True, repr=False)
class Studied:
    """The result of a study.

    Attributes:
        folder: Its folder, with the report as pages, tables and figures.
        report: Means, intervals, paired differences and verdicts, as report.json has them.
    """

    folder: Path
    report: Mapping[str, Any]
    _report: Report

    def __repr__(self) -> str:
        return f"Studied({len(self.report['rows'])} rows in {str(self.folder)!r})"

    def __str__(self) -> str:
        return as_markdown(self._report)

    def _repr_html_(self) -> str:
        """Return the tables, for notebooks."""
        return "".join(table.html(heading) for heading, table in tables_of(self._report).items())

    def latex(self) -> str:
        """Return the tables in LaTeX (booktabs)."""
        return as_latex(self._report)


def study(
    arms: Mapping[str, Arm],
    dataset: str | None = None,
    *,
    seeds: int | None = None,
    out: str | Path | None = None,
    select: str | None = None,
    settings: RecipeSettings = (),
    data: Any = None,
    margins: Mapping[str, float] | None = None,
    trial_rates: Sequence[float] = (),
    trials: int = 0,
    device: str | None = None,
    progress: bool = False,
) -> Studied:
    """Train arms of your own with several seeds each, measure and compare them; the first arm is the baseline.

    >>> compared = zoo.study({"margin": "margin-conv4-glyphs", "ms": "ms-conv4-glyphs"}, seeds=3)
    >>> print(compared.latex())

    After an interruption the same call continues, and a call with more arms or seeds adds to the same folder.

    Args:
        arms: Label -> a recipe's name; or a dictionary with the key recipe, and any of loss, miner, sampler, backbone,
            head and settings, as `zoo.train` takes them. Objects are constructed by the constants that they keep.
        dataset: The data set for all arms (default: that of their recipes); "folder" for your own images.
        seeds: The number of seeds of each arm (default: 5).
        out: The folder of the study (default: in ZOO_HOME/studies).
        select: Measure the last epoch ("last"), the best one on held-out training classes ("validation"), or "both".
        settings: Changes to the recipes of all arms.
        data: The folder of the data set, or your own images in two splits.
        margins: By metric, the difference below which two arms are equivalent, stated before the runs.
        trial_rates: Learning rates to try with each arm before.
        trials: The number of trials of each arm, if they are more than these rates.
        device: cpu, cuda or cuda:N (default: cuda if there is one).
        progress: Print a line for each run.

    Raises:
        UsageError: If there are fewer than two arms, a value is out of range, or an object cannot be constructed again
            by its class and constants (code "not-available").
        RecipeError: If a recipe, a setting or a part is wrong.
        DatasetError: If the images are missing or cannot be used.
        TrainingError: If the folder holds another study, or a run fails.
    """
    texts = [_arm_text(label, arm) for label, arm in arms.items()]
    (own,), dataset = typed_study(texts, dataset)
    for arm in own.arms:
        if isinstance(recipe := resolve(arm.recipe, arm.settings), Recipe):
            check_objects(recipe)
    path = table_of(data)
    plan = plan_from_options(
        own,
        dataset,
        seeds,
        select,
        setting_texts(settings),
        None if path is None else str(path),
        margins=[f"{metric}={margin!r}" for metric, margin in (margins or {}).items()],
        rates=trial_rates,
        budget=trials,
    )
    schedule = RunSchedule(adapt_to_dataset(plan), study_folder(own, dataset, None if out is None else Path(out)))
    (context,) = prepare_contexts([schedule], path, device)
    show = print_progress if progress else _silent
    schedule = run_trials(schedule.begin(), context, progress=show)
    tally = run_schedule(schedule, context, progress=show)
    schedule.check_finished()
    report = build_report(schedule.plan, schedule.folder, schedule.runs)
    write_report(report, schedule.folder)
    if tally.failed:
        run, message = tally.failed[0]
        raise TrainingError(
            f"{len(tally.failed)} of the runs failed, first {run.title}: {message} The same call tries them again; the "
            f"others are in {schedule.folder}.",
            code="failed-run",
        )
    return Studied(schedule.folder, to_json(report), report)


def _silent(line: str) -> None:
    """Print nothing."""


def _arm_text(label: str, arm: Arm) -> str:
    """Return an arm as `own_study` takes it; its parts are named by their classes and constants."""
    arm = {"recipe": arm} if isinstance(arm, str) else dict(arm)
    if "=" in label or "," in label or not isinstance(arm.get("recipe"), str):
        raise UsageError(
            f"an arm is a label without '=' and ',' and a recipe's name, or a dictionary with the key recipe; not "
            f"{label!r}: {arm!r}.",
            code="invalid-value",
        )
    parts = {key: arm.pop(key, None) for key in PARTS}
    recipe, settings = arm.pop("recipe"), setting_texts(arm.pop("settings", ()))
    if arm:
        raise UsageError(
            f"the arm {label!r} has no {', '.join(arm)}; it takes recipe, {', '.join(PARTS)} and settings.",
            code="unknown-name",
        )
    with own_parts(**parts) as own:
        return ",".join([f"{label}={recipe}", *settings, *own])


def typed_study(arms: Sequence[str], dataset: str | None, as_published: bool = False) -> tuple[list[Study], str]:
    """Return the study of arms of the user, and its data set."""
    study = own_study(arms)
    if dataset is not None:
        check_dataset(dataset)
    return [study_as_published(study) if as_published else study], own_dataset(study) if dataset is None else dataset


def plan_from_options(
    study: Study,
    dataset: str,
    seeds: int | None = None,
    select: str | None = None,
    settings: Sequence[str] = (),
    data: str | None = None,
    only: Sequence[str] = (),
    weights: Sequence[str] = (),
    rates: Sequence[float] = (),
    margins: Sequence[str] = (),
    budget: int = 0,
) -> Plan:
    """Return the plan of a study from the options of `zoo benchmark run`.

    Args:
        study: The study; its own seeds and selections are the defaults.
        dataset: Name of the data set.
        seeds: Number of seeds of each arm.
        select: "last", "validation" or "both".
        settings: Changes of all recipes, as KEY=VALUE.
        data: Folder of the data set.
        only: Labels of the arms to run; empty for all.
        weights: Weights of backbones of the study, as BACKBONE=DIR.
        rates: Learning rates that trials begin with.
        margins: Margins of equivalence, as METRIC=MARGIN.
        budget: Number of trials of each arm, if they are more than the rates.
    """
    selections = study.selections
    if select is not None:
        selections = SELECTIONS if select == "both" else (select,)
    count = study.seeds if seeds is None else seeds
    return Plan(
        study,
        dataset,
        count,
        selections,
        tuple(settings),
        data,
        tuple(only),
        tuple(weights),
        tuple(rates),
        margins=tuple(margins),
        budget=budget,
    )


def study_folder(study: Study, dataset: str, out: Path | None = None, alone: bool = True) -> Path:
    """Return the folder of a study.

    Args:
        study: The study.
        dataset: Name of the data set.
        out: Folder of --out; None for a folder in the local zoo.
        alone: Whether the command runs this study alone; several studies get one folder each in `out`.
    """
    if out is None:
        name = "-".join(("own", *study.labels)) if study.own_arms else study.name
        return paths.home() / "studies" / f"{slug(name)[:100]}-{dataset}"
    return out if alone else out / slug(study.name)
