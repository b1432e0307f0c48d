"""`zoo benchmark run`, `zoo benchmark resume` and `zoo benchmark studies`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command
from zoo.errors import UsageError

if TYPE_CHECKING:
    from training.studies.plan import Plan
    from training.studies.runner import Tally

COLUMNS = ("study", "title", "source", "arms", "claims", "data sets")


def _configure_run(parser: ArgumentParser) -> None:
    parser.add_argument("study", help="its name (all: zoo benchmark studies)")
    parser.add_argument("--dataset", required=True, metavar="D", help="the data set that every arm is trained on")
    parser.add_argument("--seeds", type=int, metavar="N", help="of every arm: 0 to N - 1 (default: the study's own)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the study's folder (default: ZOO_HOME/studies/...)")
    parser.add_argument(
        "--select",
        choices=("last", "validation", "both"),
        default="last",
        help="measure the last epoch of runs on all training classes (default), the best one on held-out training "
        "classes, or both, in separate runs",
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
    parser.add_argument("folder", type=Path, help="the folder of a study that was begun")
    parser.add_argument(
        "--report", action="store_true", help="train nothing: write and print the report of what is finished"
    )
    _configure_both(parser)


def _configure_both(parser: ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the folder that holds the data set")
    parser.add_argument(
        "--only", action="append", default=[], metavar="ARM", help="run this arm alone; may be given again"
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
    from training.studies.table import study_of
    from zoo import paths
    from zoo.datasets import check

    study = study_of(args.study)
    check(args.dataset, "test", args.data)
    from training.studies.arms import SELECTIONS  # torch, not before the arguments were looked at
    from training.studies.plan import Plan, write_plan
    from training.studies.study import slug

    selections = SELECTIONS if args.select == "both" else (args.select,)
    seeds = study.seeds if args.seeds is None else args.seeds
    plan = Plan(study, args.dataset, seeds, selections, tuple(args.settings), args.data)
    folder = args.out or paths.home() / "studies" / f"{slug(study.name)}-{args.dataset}"
    return _go(write_plan(plan, folder), folder, args)


def _resume(args: Namespace) -> int:
    from training.studies.plan import read_plan
    from training.studies.runner import Tally
    from training.studies.search import PLAN, read_search
    from training.studies.search_command import go

    if (args.folder / PLAN).exists():
        if args.only:
            raise UsageError("a search has no arms; leave --only out.")
        return go(read_search(args.folder), args.folder, args, perform=not args.report)
    if args.report:
        return _tell(read_plan(args.folder), args.folder, Tally(), args)
    return _go(read_plan(args.folder), args.folder, args)


def _go(plan: Plan, folder: Path, args: Namespace) -> int:
    """Perform what is left to do, write the report and print it; 1 where a run failed."""
    from training.memory_allocation import keep_freed_memory
    from training.studies.plan import chosen
    from training.studies.reuse import adopt
    from training.studies.runner import run_all, tell
    from training.studies.single import workplace
    from zoo.torch_runtime import choose_device

    def silent(line: str) -> None:
        pass

    keep_freed_memory()
    runs = chosen(plan.runs(folder), args.only, plan.study)
    say = silent if args.quiet else tell
    for other in args.others:
        say(f"{adopt(plan, runs, other)} finished runs taken over from {other}.")
    work = workplace(choose_device(args.device), args.data or plan.data)
    return _tell(plan, folder, run_all(plan, runs, work, say), args)


def _tell(plan: Plan, folder: Path, tally: Tally, args: Namespace) -> int:
    """Write the report of what is finished and print it; 1 where a run failed."""
    from training.studies.formats import as_markdown, to_json, write_report
    from training.studies.report import report_of
    from zoo.cli.output import print_json

    report = report_of(plan, folder)
    write_report(report, folder)
    if args.json:
        print_json({"folder": str(folder), **tally.to_json(), "report": to_json(report)})
    else:
        print(as_markdown(report))
    if not args.quiet:
        print(f"Written to {folder} (report.html, report.md, report.csv, report.json).", file=sys.stderr)
        if report.missing:
            print(f"{len(report.missing)} runs are left: zoo benchmark resume {folder}", file=sys.stderr)
    return 1 if tally.failed else 0


def _configure_studies(parser: ArgumentParser) -> None:
    parser.add_argument("--paper", help="only studies whose name begins so, as revisiting or claims")
    parser.add_argument("--missing", action="store_true", help="what of the papers no study stands for, and why")
    parser.add_argument("--json", action="store_true", help="print the studies, with all that they say, as JSON")


def _studies(args: Namespace) -> None:
    from dataclasses import asdict

    from training.studies.table import STUDIES
    from zoo.cli.output import print_json, print_table

    if args.missing:
        _missing(args)
        return
    found = [study for name, study in STUDIES.items() if args.paper in (None, name.partition("/")[0])]
    if args.json:
        print_json([asdict(study) for study in found])
        return
    rows = [
        [s.name, s.title, s.source, str(len(s.arms)), str(len(s.claims)), ", ".join(s.datasets) or "any"] for s in found
    ]
    print_table(COLUMNS, rows, numbers=("arms", "claims"))


def _missing(args: Namespace) -> None:
    from dataclasses import asdict

    from training.studies.missing import MISSING
    from zoo.cli.output import print_json, print_table

    found = [each for each in MISSING if args.paper in (None, each.paper.lower())]
    if args.json:
        print_json([asdict(each) for each in found])
    else:
        print_table(("paper", "what", "why", "instead"), [[e.paper, e.what, e.why, e.instead] for e in found])


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
  zoo benchmark run claims/rho --dataset glyphs --out mine --set data.dataset=folder --data DIR     your own images

A study is a folder: plan.json, a folder a run, and the report. Give the same command again, or zoo benchmark resume,
after a kill: finished runs stay, an unfinished one goes on from its checkpoint. The same command in several terminals,
or on several machines that share the folder, shares out the runs.""",
)

RESUME = Command(
    summary="go on with a study, and report on it",
    configure=_configure_resume,
    run=_resume,
    examples="""\
  zoo benchmark resume ~/.dml-zoo/studies/claims-rho-glyphs
  zoo benchmark resume ~/.dml-zoo/studies/claims-rho-glyphs --report     nothing is trained, only reported""",
)

STUDIES = Command(
    summary="list the studies that can be run",
    configure=_configure_studies,
    run=_studies,
    examples="""\
  zoo benchmark studies --paper revisiting
  zoo benchmark studies --missing""",
)
