"""`zoo verify`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zoo.cli.command import Command

if TYPE_CHECKING:
    from zoo.verify import Check

MARKS = {True: "ok", False: "FAILED", None: "not checked"}
UNSUITED = "unsuited"
"""How a check is marked that says something of the network and is no failure of its folder."""


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument("--data", metavar="DIR", help="where the data sets lie (default: ZOO_DATA, else downloaded)")
    parser.add_argument("--quick", action="store_true", help="files and golden images only, no scores")
    parser.add_argument("--device", help="of torch's scores: cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def _run(args: Namespace) -> int:
    from zoo.console import one_line, print_json

    checks = []
    for check in _checks(args):
        checks.append(check)
        if not args.json:
            print(f"{_mark(check):<12}{one_line(check.name):<40}{one_line(check.detail)}", flush=True)
    if args.json:
        print_json([check.to_json() for check in checks])
    return 1 if any(check.fails for check in checks) else 0


def _mark(check: Check) -> str:
    return UNSUITED if check.ok is False and not check.fails else MARKS[check.ok]


def _checks(args: Namespace) -> Iterator[Check]:
    from zoo.datasets import check_data
    from zoo.records import verify_records
    from zoo.registry import find
    from zoo.remeasure import remeasure
    from zoo.remeasure_cost import remeasure_costs
    from zoo.verify import verify, verify_files

    if args.data is not None:
        check_data(args.data, "folder")  # whose scores are of a table, where it is one
    folder = find(args.model)
    yield from verify(folder)
    yield from verify_files(folder)
    yield from verify_records(folder)
    if not args.quick:
        yield from remeasure(folder, args.data, sys.stderr.isatty(), args.device)
        yield from remeasure_costs(folder, args.data, sys.stderr.isatty())


COMMAND = Command(
    summary="check a model: its files, golden embeddings on every runtime, scores and costs measured again",
    configure=_configure,
    run=_run,
    examples="""\
  zoo verify margin-conv4-glyphs        one line a check; the exit status is 1 when any fails
  zoo verify diva-r50-cub --data DIR    its scores on CUB200-2011 are measured again
  zoo verify ./my-model --quick --json

A check that cannot be made here (torch or the data are not at hand) is shown as such and does not fail. Neither does a
network that torch's half precision (fp16, bf16) does not suit, which is marked "unsuited": use it in fp32.""",
)
