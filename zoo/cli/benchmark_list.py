"""`zoo benchmark list`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command
from zoo.console import print_json, print_table

if TYPE_CHECKING:
    from zoo.published import Absent, Table

COLUMNS = ("table", "paper", "title", "data sets", "metrics", "scores", "published as")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("--paper", help="only tables of this paper, by its short name")
    parser.add_argument("--dataset", help="only tables with scores on this data set")
    parser.add_argument("--absent", action="store_true", help="what of the papers is not at hand, and why")
    parser.add_argument("--json", action="store_true", help="print the tables with all their scores as JSON")


def _run(args: Namespace) -> int:
    from zoo.published import absent, select

    if args.absent:
        return _absent([each for each in absent() if args.paper in (None, each.paper.short)], args.json)
    tables = select(args.paper, args.dataset)
    if args.json:
        print_json([_facts(table) for table in tables])
    elif tables:
        print_table(COLUMNS, [_cells(table) for table in tables], numbers=("scores",))
    else:
        print("zoo: no published table matches; without filters all are listed: zoo benchmark list", file=sys.stderr)
    return 0


def _absent(found: Sequence[Absent], as_json: bool) -> int:
    from dataclasses import asdict

    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table(("paper", "what", "why"), [[each.paper.short, each.what, each.why] for each in found])
    return 0


def _cells(table: Table) -> list[str]:
    listed = [", ".join(table.datasets), ", ".join(table.metrics), str(len(table.scores))]
    return [table.name, table.paper.short, table.title, *listed, table.protocol]


def _facts(table: Table) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(table)


COMMAND = Command(
    summary="list the published tables whose numbers are at hand",
    configure=_configure,
    run=_run,
    examples="""\
  zoo benchmark list
  zoo benchmark list --paper Revisiting
  zoo benchmark list --dataset cub --json
  zoo benchmark list --absent""",
)
