"""What running a study and going on with one share: the folder, the runs, the report, the exit status."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.studies.runner import Tally
    from training.studies.same_images import Schedule
    from training.studies.single import Workplace
    from training.studies.study import Study


def folder_of(study: Study, dataset: str, out: Path | None = None, alone: bool = True) -> Path:
    """Where a study is to lie; of several that go by one name, each in a folder of its own in `out`."""
    from training.studies.study import slug
    from zoo import paths

    if out is None:
        return paths.home() / "studies" / f"{slug(study.name)}-{dataset}"
    return out if alone else out / slug(study.name)


def perform_all(schedules: Sequence[Schedule], works: Sequence[Workplace], args: Namespace) -> int:
    """Perform the runs that are left in each study, write and print the reports; return the exit status."""
    from training.studies.runner import carry_out
    from training.studies.runner import tell as say_so

    def silent(line: str) -> None:
        pass

    say = silent if args.quiet else say_so
    pairs = zip(schedules, works, strict=True)
    return close(
        [tell(schedule, carry_out(schedule, work, args.only, args.others, say), args) for schedule, work in pairs], args
    )


def tell(schedule: Schedule, tally: Tally, args: Namespace) -> dict[str, Any]:
    """Write the report of what is finished, and print it unless all is to be JSON; what there is to tell."""
    from training.studies.render import as_markdown, to_json, write_report
    from training.studies.report import report_of

    folder = schedule.folder
    schedule.check_finished()
    report = report_of(schedule.plan, folder, schedule.runs)
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
