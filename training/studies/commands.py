"""`zoo benchmark run`, `zoo benchmark resume` and `zoo benchmark studies`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from training.studies.carrying_out import close, folder_of, perform_all, tell
from zoo.cli.command import Command, always
from zoo.errors import UsageError

COLUMNS = ("study", "title", "source", "arms", "claims", "data sets")


def _configure_run(parser: ArgumentParser) -> None:
    parser.add_argument("study", help="its name, or a paper's table or figure (all: zoo benchmark studies)")
    parser.add_argument("--dataset", metavar="D", help="the data set that every arm is trained on (needed)")
    parser.add_argument("--seeds", type=int, metavar="N", help="of every arm: 0 to N - 1 (default: the study's own)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the study's folder (default: ZOO_HOME/studies/...)")
    parser.add_argument(
        "--select",
        choices=("last", "validation", "both"),
        help="measure the last epoch of runs on all training classes (what most studies do by themselves), the best "
        "one on held-out training classes, or both, in separate runs",
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change the recipes of all arms",
    )
    _configure_both(parser)


def _configure_resume(parser: ArgumentParser) -> None:
    parser.add_argument("study", help="the folder of a study that was begun, or with --dataset its name")
    parser.add_argument("--dataset", metavar="D", help="of a study by its name: the data set it was begun on")
    parser.add_argument(
        "--report", action="store_true", help="train nothing: write and print the report of what is finished"
    )
    _configure_both(parser)


def _configure_both(parser: ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the folder that holds the data set")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ARM",
        help="run this arm alone; may be given again. A study that was begun so is of these arms, and may get more",
    )
    parser.add_argument(
        "--from",
        dest="others",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="take over finished runs of the same recipes from this study's folder; may be given again",
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no line a run")


def _run(args: Namespace) -> int:
    from training.studies.names import check_study, in_part, studies_for
    from zoo.datasets import check

    check_study(args.study)
    if args.dataset is None:
        raise UsageError(f"{args.study} needs a data set: name it with --dataset D, a folder of your own with folder.")
    check(args.dataset, "test", args.data)
    studies = studies_for(args.study, args.dataset)
    if (told := in_part(args.study)) is not None and not args.quiet:
        print(told, file=sys.stderr)
    from training.studies.asked import plan_of  # torch, not before the arguments were looked at
    from training.studies.on_data import on_data
    from training.studies.runner import ready
    from training.studies.same_images import Schedule

    folders = [folder_of(study, args.dataset, args.out, alone=len(studies) == 1) for study in studies]
    plans = [on_data(plan_of(study, args)) for study in studies]
    schedules = [Schedule(plan, folder) for plan, folder in zip(plans, folders, strict=True)]
    works = ready(schedules, args.data, args.device, args.only, args.others)
    return perform_all([schedule.begin() for schedule in schedules], works, args)


def _resume(args: Namespace) -> int:
    from training.studies.asked import wanted
    from training.studies.on_data import on_data
    from training.studies.runner import Tally, ready
    from training.studies.same_images import Schedule
    from training.studies.search import PLAN, read_search
    from training.studies.search_command import go, work_for

    folders = _begun(args.study, args.dataset)
    if (folders[0] / PLAN).exists():
        if args.only:
            raise UsageError("a search has no arms; leave --only out.")
        search = read_search(folders[0])
        return go(search, folders[0], args, None if args.report else work_for(search, args))
    more = [] if args.report else args.only
    schedules = [Schedule(on_data(wanted(folder, more)), folder) for folder in folders]
    if args.report:
        return close([tell(schedule, Tally(), args) for schedule in schedules], args)
    works = ready(schedules, args.data, args.device, args.only, args.others)
    return perform_all([schedule.begin() if more else schedule for schedule in schedules], works, args)


def _begun(study: str, dataset: str | None) -> list[Path]:
    """The folder that is named, or those of the studies by that name that were begun on the data set."""
    from training.studies.names import check_study, studies_for
    from training.studies.plan import PLAN
    from training.studies.study import NAME

    if dataset is None:
        if NAME.fullmatch(study) and not Path(study).exists():
            check_study(study)
            raise UsageError(f"there is no folder {study}; of a study by its name give --dataset too.")
        return [Path(study)]
    places = [folder_of(each, dataset) for each in studies_for(study, dataset)]
    if not (found := [place for place in places if (place / PLAN).exists()]):
        raise UsageError(
            f"{study} was not begun on {dataset} in {' or '.join(map(str, places))}. Name its folder, or begin it: "
            f"zoo benchmark run {study} --dataset {dataset}"
        )
    return found


def _configure_studies(parser: ArgumentParser) -> None:
    parser.add_argument("--paper", help="only studies whose name begins so, as revisiting or claims")
    parser.add_argument("--json", action="store_true", help="print the studies, with all that they say, as JSON")


def _studies(args: Namespace) -> None:
    from dataclasses import asdict

    from training.studies.table import STUDIES
    from zoo.console import print_json, print_table

    found = [study for name, study in STUDIES.items() if args.paper in (None, name.partition("/")[0])]
    if args.json:
        print_json([asdict(study) for study in found])
        return
    rows = [
        [s.name, s.title, s.source, str(len(s.arms)), str(len(s.claims)), ", ".join(s.datasets) or "any"] for s in found
    ]
    print_table(COLUMNS, rows, numbers=("arms", "claims"))


RUN = Command(
    summary="train and measure every arm of a study with several seeds, and compare them",
    configure=_configure_run,
    run=_run,
    examples="""\
  zoo benchmark run revisiting/figure-7 --dataset omniglot
  zoo benchmark run claims/rho --dataset glyphs --seeds 3 --out rho
  zoo benchmark run claims/rho --dataset glyphs --seeds 5 --out rho         two seeds more in the same folder
  zoo benchmark run claims/rho --dataset glyphs --out quick --set schedule.epochs=3
  zoo benchmark run revisiting/figure-4 --dataset glyphs --from ~/.dml-zoo/studies/revisiting-table-2-glyphs
  zoo benchmark run claims/over-the-years --dataset omniglot                R@1 by the year of each loss's paper
  zoo benchmark run revisiting/figure-2 --dataset glyphs                    every study of the figure, one by one
  zoo benchmark run claims/rho --dataset folder --data DIR                  your own images, recipes of CIFAR-100
  zoo benchmark run claims/rho --dataset cub --out mine --set data.dataset=folder --data DIR        recipes of CUB

A study is a folder: plan.json, results.jsonl (one line per run) and the report. Give the same command again, or zoo
benchmark resume, after a kill: finished runs stay, an unfinished one goes on from its checkpoint. The same command in
several terminals, or on several machines that share the folder, shares out the runs.""",
    resumes=always,
)

RESUME = Command(
    summary="go on with a study, and report on it",
    configure=_configure_resume,
    run=_resume,
    examples="""\
  zoo benchmark resume ~/.dml-zoo/studies/claims-rho-glyphs
  zoo benchmark resume claims/rho --dataset glyphs                       the same
  zoo benchmark resume ~/.dml-zoo/studies/claims-rho-glyphs --report     nothing is trained, only reported""",
    resumes=always,
)

STUDIES = Command(
    summary="list the studies that can be run",
    configure=_configure_studies,
    run=_studies,
    examples="  zoo benchmark studies --paper revisiting",
)
