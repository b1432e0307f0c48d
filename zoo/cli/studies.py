"""`zoo benchmark run`, `resume` and `search`: many training runs, compared."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from zoo.cli.options import AsPublished, Data, Device, Json, Latex, Margins, Quiet, Seed, Settings, TrustCode
from zoo.console import count, print_json
from zoo.errors import UsageError, command

if TYPE_CHECKING:
    from training.studies.plan import Plan, RunSchedule
    from training.studies.runner import StudyContext, Tally
    from training.studies.search import SearchPlan
    from training.studies.study import Study


app = typer.Typer()

Arms = Annotated[
    list[str] | None,
    Option(
        "--only",
        metavar="ARM",
        help="run only this arm; repeatable. A study that was begun so consists of these arms, and more can be added",
    ),
]
OtherStudies = Annotated[
    list[Path] | None,
    Option(
        "--reuse",
        metavar="DIR",
        help="take finished runs and trials of the same recipes from this study's folder; repeatable",
    ),
]


Weights = Annotated[
    list[str] | None,
    Option(
        "--weights",
        metavar="BACKBONE=DIR",
        help="start the arms with this backbone (its short name, as ibn) from these weights, such as a folder of zoo "
        "convert; repeatable",
    ),
]

TrialRates = Annotated[
    list[float] | None,
    Option(
        "--trial-rates",
        metavar="RATE",
        help="learning rates (optimizer.lr) to try with each arm on the first seed; MAP@R on held-out training classes "
        "chooses the rate of all its runs; give at least two (default: the recipe's rate, without trials)",
    ),
]

Trials = Annotated[
    int,
    Option(
        "--trials",
        metavar="N",
        help="trials of each arm: those beyond --trial-rates vary the rate and the main constant of its loss around "
        "the best so far, until the best is not at the edge (default: the rates alone)",
    ),
]


@dataclasses.dataclass(frozen=True)
class Output:
    """Form of a command's output: JSON, LaTeX or for people, with progress or without."""

    as_json: bool = False
    quiet: bool = False
    latex: bool = False

    @property
    def progress(self) -> Callable[[str], None]:
        """The function that prints a line of progress."""
        from training.studies.runner import print_progress

        return _silent if self.quiet else print_progress


def _silent(line: str) -> None:
    """Print nothing."""


# zoo benchmark run


@app.command(
    "run",
    epilog="""\
  zoo benchmark run revisiting/figure-7 --dataset omniglot
  zoo benchmark run claims/rho --dataset glyphs --seeds 3 --out rho
  zoo benchmark run claims/rho --dataset glyphs --seeds 5 --out rho         two more seeds in the same folder
  zoo benchmark run claims/rho --dataset glyphs --out quick --set schedule.epochs=3
  zoo benchmark run revisiting/table-2 --dataset cub --data DIR --as-published    by the authors' code
  zoo benchmark run revisiting/figure-4 --dataset glyphs --reuse ~/.dml-zoo/studies/revisiting-table-2-glyphs
  zoo benchmark run claims/over-the-years --dataset omniglot                R@1 by the year of each loss's paper
  zoo benchmark run revisiting/figure-2 --dataset glyphs                    every study of the figure, one by one
  zoo benchmark run group/table-3 --dataset cub --data DIR --weights ibn=DIR        converted weights for one backbone
  zoo benchmark run claims/rho --dataset cub2010 --data DIR --trial-rates 1e-4 --trial-rates 3e-4    the better per arm
  zoo benchmark run claims/rho --dataset glyphs --margin map_at_r=.005 --margin recall_at_1=.01    what is equivalent
  zoo benchmark run --arm margin-conv4-glyphs --arm mine=margin-conv4-glyphs,objective.loss=mypkg:MyLoss --seeds 3
  zoo benchmark run claims/rho --dataset folder --data DIR                  your own images, recipes of CIFAR-100
  zoo benchmark run claims/rho --dataset cub --out mine --set data.dataset=folder --data DIR        recipes of CUB

A study is a folder: plan.json, results.jsonl (one line per run) and the report. Give the same command again, or zoo
benchmark resume, after a kill: finished runs stay, an unfinished one continues from its checkpoint. The same command in
several terminals, or on several machines that share the folder, shares out the runs.""",
)
def run(
    study: Annotated[
        str | None, Argument(metavar="STUDY", help="its name, or a paper's table or figure (all: zoo benchmark list)")
    ] = None,
    arms: Annotated[
        list[str] | None,
        Option(
            "--arm",
            metavar="[LABEL=]RECIPE[,KEY=VALUE...]",
            help="instead of STUDY an arm of your own: a recipe with settings as of zoo train --set; repeatable, the "
            "first is the baseline",
        ),
    ] = None,
    dataset: Annotated[
        str | None, Option(metavar="D", help="data set for all arms (default: that of --arm; a study has none)")
    ] = None,
    seeds: Annotated[
        int | None, Option(metavar="N", help="seeds of each arm, 0 to N - 1 (default: the study's own)")
    ] = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="folder of the study (default: ZOO_HOME/studies/...)")
    ] = None,
    select: Annotated[
        Literal["last", "validation", "both"] | None,
        Option(
            help="measure the last epoch of runs on all training classes (the default of most studies), the best one "
            "on held-out training classes, or both, in separate runs"
        ),
    ] = None,
    settings: Settings = None,
    weights: Weights = None,
    trial_rates: TrialRates = None,
    trials: Trials = 0,
    margins: Margins = None,
    as_published: AsPublished = False,
    data: Data = None,
    only: Arms = None,
    other_studies: OtherStudies = None,
    device: Device = None,
    latex: Latex = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """train, measure and compare the arms of a study

    Every arm is trained with several seeds. --set changes the recipes of all arms, --weights those with one backbone.
    --as-published makes a study with a name of its own, STUDY-as-published.
    """
    from zoo.data import check_dataset_path
    from zoo.data.dataset import FOLDER

    if data is not None:
        check_dataset_path(data, FOLDER)  # --set may name another data set, which is checked once torch is loaded
    if (study is None) == (not arms):
        raise UsageError("name a study, or arms of your own with --arm; one of the two.", code="conflicting-options")
    if study is None:
        from training.studies.named import typed_study

        studies, dataset = typed_study(arms or (), dataset, as_published)
    else:
        studies, dataset = _named_studies(study, dataset, as_published, quiet)
    from training.studies.named import plan_from_options, study_folder
    from training.studies.plan import RunSchedule, adapt_to_dataset, weights_by_study
    from training.studies.runner import prepare_contexts

    schedules = []
    own_weights = weights_by_study(weights or (), studies, dataset, settings or ())
    for part in studies:
        plan = plan_from_options(
            part,
            dataset,
            seeds,
            select,
            settings or (),
            data,
            only or (),
            own_weights[part.name],
            trial_rates or (),
            margins or (),
            trials,
        )
        folder = study_folder(part, dataset, out, alone=len(studies) == 1)
        schedules.append(RunSchedule(adapt_to_dataset(plan), folder))
    if all(part.as_published for part in studies):
        _check_published_code(schedules)
    contexts = prepare_contexts(schedules, data, device, only or [], other_studies or [])
    begun = [schedule.begin() for schedule in schedules]
    return _perform(begun, contexts, only or [], other_studies or [], Output(as_json, quiet, latex))


def _named_studies(study: str, dataset: str | None, as_published: bool, quiet: bool) -> tuple[list[Study], str]:
    """Return the studies of a name on a data set, and that data set."""
    from training.studies.papers import check_name, find_studies, name_as_published, partial_note
    from zoo.data import check_dataset

    check_name(study)
    if dataset is None:
        raise UsageError(
            f"{study} needs a data set: name it with --dataset D, a folder of your own with folder.",
            code="missing-value",
        )
    check_dataset(dataset)
    if as_published:
        study = name_as_published(study)
    if (text := partial_note(study)) is not None and not quiet:
        print(text, file=sys.stderr)
    return find_studies(study, dataset), dataset


def _check_published_code(schedules: Sequence[RunSchedule]) -> None:
    """Refuse studies as published of which no arm differs: they would repeat the studies of the papers' recipes."""
    runs = [run for schedule in schedules for run in schedule.runs]
    if not any(recipe.as_published for run in runs for recipe in run.recipes):
        name = schedules[0].plan.study.paper_name
        raise UsageError(
            f"--as-published changes no arm of {name}: no published code departs from these recipes, or none exists. "
            "Leave the option out.",
            code="option-without-effect",
        )


def _perform(
    schedules: Sequence[RunSchedule],
    contexts: Sequence[StudyContext],
    only: list[str],
    other_studies: list[Path],
    output: Output,
) -> int:
    """Perform the remaining runs of each study, write and print the reports, and return the exit status."""
    from training.studies.runner import run_schedule, run_trials

    outcomes = []
    for begun, context in zip(schedules, contexts, strict=True):
        schedule = run_trials(begun, context, only, other_studies, output.progress)
        tally = run_schedule(schedule, context, only, other_studies, output.progress)
        outcomes.append(_report(schedule, tally, output))
    return _finish(outcomes, output)


def _report(schedule: RunSchedule, tally: Tally, output: Output) -> dict[str, Any]:
    """Write the report of the finished runs, print it, and return the outcome for `--json`."""
    from training.studies.own import classes_of_arms
    from training.studies.render import as_latex, as_markdown, to_json, write_report
    from training.studies.report import build_report
    from zoo.models.places import is_trusted

    folder = schedule.folder
    schedule.check_finished()
    report = build_report(schedule.plan, folder, schedule.runs)
    write_report(report, folder)
    if not output.as_json:
        print(as_latex(report) if output.latex else as_markdown(report))
    if not output.quiet:
        print(f"Written to {folder} (report.html, report.md, report.json, tables, figures).", file=sys.stderr)
        if report.missing:
            classes = classes_of_arms(schedule.plan.study.own_arms, schedule.plan.settings)
            trust = ["--trust-code"] if classes and not is_trusted(folder) else []
            print(
                f"{count(len(report.missing), 'run')} left: {command('benchmark', 'resume', folder, *trust)}",
                file=sys.stderr,
            )
    return {"folder": str(folder), **tally.to_json(), "report": to_json(report)}


def _finish(outcomes: list[dict[str, Any]], output: Output) -> int:
    """Print the outcome of one study, or a list of several, as JSON if wanted; return 1 if a run failed."""
    if output.as_json:
        print_json(outcomes[0] if len(outcomes) == 1 else outcomes)
    return 1 if any(outcome["failed"] for outcome in outcomes) else 0


# zoo benchmark resume


@app.command(
    "resume",
    epilog="""\
  zoo benchmark resume ~/.dml-zoo/studies/claims-rho-glyphs
  zoo benchmark resume claims/rho --dataset glyphs                       the same
  zoo benchmark resume ~/.dml-zoo/studies/claims-rho-glyphs --report     nothing is trained, only reported
  zoo benchmark resume claims/rho --dataset glyphs --report --latex      its tables for a paper (booktabs)

The folder also has each table as .csv and .tex, and each figure as .pdf and .png.""",
)
def resume(
    study: Annotated[
        str, Argument(metavar="STUDY", help="the folder of a study that was begun, or with --dataset its name")
    ],
    dataset: Annotated[str | None, Option(metavar="D", help="data set of the study, if STUDY is a name")] = None,
    only_report: Annotated[
        bool, Option("--report", help="train nothing: write and print the report of the finished runs")
    ] = False,
    data: Data = None,
    only: Arms = None,
    other_studies: OtherStudies = None,
    trust_code: TrustCode = False,
    device: Device = None,
    latex: Latex = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """continue a study, and report on it"""
    from training.studies.plan import RunSchedule, adapt_to_dataset, check_unchanged
    from training.studies.runner import Tally, prepare_contexts
    from training.studies.search import SEARCH_FILE, read_search

    folders, output = _begun_folders(study, dataset), Output(as_json, quiet, latex)
    if (folders[0] / SEARCH_FILE).exists():
        if only:
            raise UsageError("a search has no arms; leave --only out.", code="option-without-effect")
        search = read_search(folders[0], trust_code)
        context = None if only_report else create_search_context(search, data, device)
        return perform_search(search, folders[0], context, output)
    more = [] if only_report else only or []
    plans = [plan_in_folder(folder, more, trust_code) for folder in folders]
    schedules = [RunSchedule(adapt_to_dataset(plan), folder) for plan, folder in zip(plans, folders, strict=True)]
    if only_report:
        return _finish([_report(schedule, Tally(), output) for schedule in schedules], output)
    for schedule in schedules:
        check_unchanged(schedule.plan, schedule.folder)
    contexts = prepare_contexts(schedules, data, device, only or [], other_studies or [])
    begun = [schedule.begin() if more else schedule for schedule in schedules]
    return _perform(begun, contexts, only or [], other_studies or [], output)


def plan_in_folder(folder: Path, only: Sequence[str], trust_code: bool = False) -> Plan:
    """Return the plan in a study's folder, for the arms `only` (they may be new) or, if empty, for the plan's own."""
    from training.studies.plan import read_plan

    plan = read_plan(folder, trust_code)
    return dataclasses.replace(plan, only=tuple(only)) if only else plan


def _begun_folders(study: str, dataset: str | None) -> list[Path]:
    """Return a study's folder or, with a data set, the folders of the studies of this name that were begun on it."""
    from training.studies.named import study_folder
    from training.studies.papers import check_name, find_studies
    from training.studies.plan import PLAN_FILE
    from training.studies.study import STUDY_NAME

    if dataset is None:
        if STUDY_NAME.fullmatch(study) and not Path(study).exists():
            check_name(study)
            raise UsageError(
                f"there is no folder {study}; of a study by its name give --dataset too.", code="missing-value"
            )
        return [Path(study)]
    folders = [study_folder(part, dataset) for part in find_studies(study, dataset)]
    begun = [folder for folder in folders if (folder / PLAN_FILE).exists()]
    if not begun:
        raise UsageError(
            f"{study} was not begun on {dataset} in {' or '.join(map(str, folders))}. Name its folder, or begin it: "
            f"zoo benchmark run {study} --dataset {dataset}",
            code="no-results",
        )
    return begun


# zoo benchmark search


@app.command(
    "search",
    epilog="""\
  zoo benchmark search contrastive triplet margin --dataset omniglot --trials 8 --reruns 3 --set schedule.epochs=10
  zoo benchmark search contrastive --dataset cub --data DIR --trials 0      the published values, no search
  zoo benchmark resume ~/.dml-zoo/studies/search-omniglot

Each trial trains one model per fold, each stopped by its own quarter of the training classes; only the reruns touch
test classes. Optuna keeps the trials in the folder: processes that share it share the work.""",
)
def search(
    losses: Annotated[
        list[str], Argument(metavar="LOSS", help="losses to tune: contrastive, triplet, margin, arcface and others")
    ],
    dataset: Annotated[str, Option(metavar="D", help="the data set")],
    data: Data = None,
    trials: Annotated[
        int, Option(metavar="N", help="number of trials of each loss; 0 reruns the recipes' own values")
    ] = 50,
    reruns: Annotated[int, Option(metavar="N", help="number of reruns of each loss's best trial")] = 10,
    folds: Annotated[int, Option(metavar="N", help="number of folds of the training classes")] = 4,
    patience: Annotated[
        int | None, Option(metavar="N", help="stop after N epochs without a better one (default: the recipe's, or 9)")
    ] = None,
    seed: Seed = 0,
    settings: Settings = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="folder of the search (default: ZOO_HOME/studies/...)")
    ] = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """tune losses by Bayesian search and folds

    The best trial of each loss is then trained again and tested. --set changes the recipes of all runs.
    """
    from training.studies.search_spaces import find_space
    from zoo import paths
    from zoo.data import check_dataset, check_dataset_path
    from zoo.data.dataset import FOLDER

    check_dataset(dataset)
    if data is not None:
        check_dataset_path(data, FOLDER)  # --set may name another data set, which is checked once torch is loaded
    for loss in losses:
        find_space(loss)
    from training.studies.plan import check_images

    # torch, after the checks
    from training.studies.search import SEARCH_FILE, SearchPlan, check_search, usual_patience, write_search

    plan = SearchPlan(
        tuple(losses),
        dataset,
        trials=trials,
        reruns=reruns,
        folds=folds,
        patience=usual_patience(losses[0], dataset) if patience is None else patience,
        seed=seed,
        settings=tuple(settings or ()),
        data=data,
    )
    folder = out or paths.home() / "studies" / f"search-{dataset}"
    context = create_search_context(plan, data, device)
    if not (folder / SEARCH_FILE).exists():  # missing images leave no folder behind
        check_images(plan.first.data.dataset, plan.data)
        check_search(plan, context)
    return perform_search(write_search(plan, folder), folder, context, Output(as_json, quiet))


def create_search_context(search: SearchPlan, data: str | None, device: str | None) -> StudyContext:
    """Return where a search trains: its device and its images."""
    from training.distributed import keep_freed_memory
    from training.studies.runner import create_study_context
    from zoo.models.torch_runtime import choose_device

    keep_freed_memory()
    return create_study_context(choose_device(device), data or search.data)


def perform_search(search: SearchPlan, folder: Path, context: StudyContext | None, output: Output) -> int:
    """Perform the remaining trials and reruns, write the report and print it.

    Args:
        search: The search.
        folder: Its folder.
        context: Where to train; None only reports.
        output: How to print.

    Returns:
        The exit status: 1 if a rerun failed.
    """
    from training.studies.render_search import as_markdown, build_report, to_json, write_report
    from training.studies.search import check_search, has_remaining_work, run_search

    failed = 0
    if context is not None:
        if has_remaining_work(search, folder):
            check_search(search, context)
        failed = run_search(search, folder, context, output.progress)
    report = build_report(search, folder)
    write_report(search, report, folder)
    if output.as_json:
        print_json({"folder": str(folder), "failed": failed, **to_json(search, report)})
    else:
        print(as_markdown(search, report, folder))
        print(f"Written to {folder} (report.html, report.md, report.json).", file=sys.stderr)
    if failed:
        print(f"{failed} of the reruns failed, or had no values to test.", file=sys.stderr)
    return 1 if failed else 0
