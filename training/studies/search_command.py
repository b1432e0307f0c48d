"""`zoo benchmark search`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command, always

if TYPE_CHECKING:
    from training.studies.search import Search
    from training.studies.single import Workplace


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("losses", nargs="+", metavar="loss", help="contrastive, triplet, margin, arcface, ...")
    parser.add_argument("--dataset", required=True, metavar="D", help="the data set")
    parser.add_argument("--data", metavar="DIR", help="the folder that holds the data set")
    parser.add_argument("--trials", type=int, default=50, metavar="N", help="of each loss (default: 50)")
    parser.add_argument("--reruns", type=int, default=10, metavar="N", help="of each loss's best (default: 10)")
    parser.add_argument("--folds", type=int, default=4, metavar="N", help="of the training classes (default: 4)")
    parser.add_argument("--patience", type=int, default=9, metavar="N", help="epochs without a better one (default: 9)")
    parser.add_argument("--seed", type=int, default=0, help="of the search and its runs")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the search's folder (default: ZOO_HOME/studies/...)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--quiet", action="store_true", help="no line a trial")


def _run(args: Namespace) -> int:
    from training.studies.spaces import space_of
    from zoo import paths
    from zoo.datasets import check

    check(args.dataset, "test", args.data)
    for loss in args.losses:
        space_of(loss)
    from training.studies.plan import check_images
    from training.studies.search import PLAN, Search, begin  # torch, not before the arguments were looked at

    counts = {name: getattr(args, name) for name in ("trials", "reruns", "folds", "patience", "seed")}
    search = Search(tuple(args.losses), args.dataset, **counts, settings=tuple(args.settings), data=args.data)
    folder = args.out or paths.home() / "studies" / f"search-{args.dataset}"
    work = work_for(search, args)
    if not (folder / PLAN).exists():  # images that cannot be had leave no folder behind
        check_images(search.first, search.data)
        work.check([search.first])
    return go(begin(search, folder), folder, args, work)


def work_for(search: Search, args: Namespace) -> Workplace:
    from training.memory_allocation import keep_freed_memory
    from training.studies.single import workplace
    from zoo.torch_runtime import choose_device

    keep_freed_memory()
    return workplace(choose_device(args.device), args.data or search.data)


def go(search: Search, folder: Path, args: Namespace, work: Workplace | None) -> int:
    """Perform what is left, if there is a workplace, write the report and print it; 1 where a rerun failed."""
    from training.studies.render_search import as_markdown, report_of, to_json, write_report
    from training.studies.runner import tell
    from training.studies.search import is_left, run
    from zoo.console import print_json

    failed = 0
    if work is not None:
        if is_left(search, folder):
            work.check([search.first])
        failed = run(search, folder, work, (lambda line: None) if args.quiet else tell)
    report = report_of(search, folder)
    write_report(search, report, folder)
    if args.json:
        print_json({"folder": str(folder), "failed": failed, **to_json(search, report)})
    else:
        print(as_markdown(search, report, folder))
        print(f"Written to {folder} (report.html, report.md, report.json).", file=sys.stderr)
    if failed:
        print(f"{failed} of the reruns failed, or had no values to test.", file=sys.stderr)
    return 1 if failed else 0


COMMAND = Command(
    summary="tune losses by Bayesian search and cross validation, then test the best",
    configure=_configure,
    run=_run,
    examples="""\
  zoo benchmark search contrastive triplet margin --dataset omniglot --trials 8 --reruns 3 --set schedule.epochs=10
  zoo benchmark resume ~/.dml-zoo/studies/search-omniglot

Each trial trains a model a fold, each stopped by its own quarter of the training classes; test classes are touched by
the reruns alone. Optuna keeps the trials in the folder: processes that share it share the work.""",
    resumes=always,
)
