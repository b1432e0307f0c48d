"""What running a study and going on with one share: the folder, the runs, the report, the exit status."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.studies.plan import Plan
    from training.studies.runner import Tally
    from training.studies.single import Workplace
    from training.studies.study import Study


def folder_of(study: Study, dataset: str, out: Path | None = None, alone: bool = True) -> Path:
    """Where a study is to lie; of several that go by one name, each in a folder of its own in `out`."""
    from training.studies.study import slug
    from zoo import paths

    if out is None:
        return paths.home() / "studies" / f"{slug(study.name)}-{dataset}"
    return out if alone else out / slug(study.name)


def ready(plans: Sequence[tuple[Plan, Path]], args: Namespace) -> list[Workplace]:
    """A workplace for each of the plans with their folders; one serves all that read the same data.

    Raises `DatasetError` or `UsageError` where runs are left to do and their images cannot be had: before a folder is
    made, and not once a run.
    """
    from training.memory_allocation import keep_freed_memory
    from training.studies.plan import check_images, chosen
    from training.studies.reuse import offered
    from training.studies.single import workplace
    from zoo.torch_runtime import choose_device

    keep_freed_memory()
    device = choose_device(args.device)
    works: dict[Any, Workplace] = {}
    for plan, folder in plans:
        root, there = args.data or plan.data, offered(plan.study, args.others)
        if root not in works:
            works[root] = workplace(device, root)
        runs = chosen(plan.runs(folder), args.only, plan.study)
        left = [run for run in runs if not run.finished and tuple(run.digests) not in there]
        if left:
            check_images(left[0].recipes[0], root)
        works[root].check(recipe for run in left for recipe in run.recipes)
    return [works[args.data or plan.data] for plan, _ in plans]


def carry_out(plan: Plan, folder: Path, args: Namespace, work: Workplace) -> dict[str, Any]:
    """Perform what is left to do, write the report and print it; what there is to tell."""
    from training.studies.plan import chosen
    from training.studies.reuse import adopt
    from training.studies.runner import run_all
    from training.studies.runner import tell as say_so

    def silent(line: str) -> None:
        pass

    runs = chosen(plan.runs(folder), args.only, plan.study)
    say = silent if args.quiet else say_so
    for other in args.others:
        say(f"{adopt(plan, runs, other)} finished runs taken over from {other}.")
    return tell(plan, folder, run_all(plan, runs, work, say), args)


def tell(plan: Plan, folder: Path, tally: Tally, args: Namespace) -> dict[str, Any]:
    """Write the report of what is finished, and print it unless all is to be JSON; what there is to tell."""
    from training.studies.formats import as_markdown, to_json, write_report
    from training.studies.report import report_of
    from training.studies.same_images import known_images

    known_images(plan.runs(folder))  # what is averaged must be of one kind
    report = report_of(plan, folder)
    write_report(report, folder)
    if not args.json:
        print(as_markdown(report))
    if not args.quiet:
        print(f"Written to {folder} (report.html, report.md, report.csv, report.json).", file=sys.stderr)
        if report.missing:
            print(f"{len(report.missing)} runs are left: zoo benchmark resume {folder}", file=sys.stderr)
    return {"folder": str(folder), **tally.to_json(), "report": to_json(report)}


def close(told: list[dict[str, Any]], args: Namespace) -> int:
    """Print what there is to tell of one study, or of several as a list; 1 where a run failed."""
    from zoo.console import print_json

    if args.json:
        print_json(told[0] if len(told) == 1 else told)
    return 1 if any(each["failed"] for each in told) else 0
