"""`zoo benchmark models`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command

if TYPE_CHECKING:
    from zoo.comparison.own import Measured

COLUMNS = ("data set", "metric", "model", "dim", "mean", "95 %", "seeds")
NUMBERS = ("dim", "mean", "seeds")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="MODEL", help="only these, each with its seeds (default: all)")
    parser.add_argument("--dataset", help="only scores on this data set")
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help="default: recall_at_1 and map_at_r; repeatable"
    )
    parser.add_argument("--against", metavar="MODEL", help="show each one's difference to this model, paired by seed")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to this file, too")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, in fractions")


def _run(args: Namespace) -> int:
    from zoo import markdown
    from zoo.comparison.own import METRICS, measured
    from zoo.comparison.runs import find_runs
    from zoo.console import print_json, print_table, write_text
    from zoo.datasets import check_name

    if args.dataset is not None:
        check_name(args.dataset)
    rows = measured(find_runs(), args.names, args.dataset, args.metric or METRICS, args.against)
    columns = (*COLUMNS, *((f"less {args.against}", "95 %, paired") if args.against else ()), "how")
    numbers = [name for name in columns if name in NUMBERS or name.startswith("less ")]
    cells = [_cells(row, bool(args.against)) for row in rows]
    if args.markdown is not None:
        lines = markdown.table(columns, cells, [columns.index(name) for name in numbers])
        write_text(args.markdown, "\n".join([*lines, ""]))
    if args.json:
        print_json([asdict(row) | {"ours": _facts(row)} for row in rows])
    elif rows:
        print_table(columns, cells, numbers)
    else:
        print("zoo: nothing is measured yet of that; measure a model with: zoo evaluate MODEL --save", file=sys.stderr)
    return 0


def _facts(row: Measured) -> dict[str, Any]:
    """What is known of the mean, without the runs themselves."""
    return {key: value for key, value in asdict(row.ours).items() if key != "found"}


def _cells(row: Measured, paired: bool) -> list[str]:
    from zoo.comparison.cells import interval_text, number_text

    ours, split = row.ours, "" if row.split == "test" else f", {row.split}"
    head = [f"{row.dataset}{split}", row.metric, row.name, str(row.dim), number_text(row.metric, ours.value, ours.sd)]
    cells = [*head, interval_text(row.metric, ours.interval, ours.over), str(len(ours.runs))]
    if paired:
        less = row.difference
        cells.append("" if less is None else number_text(row.metric, less.value, sign="+"))
        cells.append("" if less is None else interval_text(row.metric, less.interval, f"{len(less.seeds)} seeds"))
    return [*cells, ours.protocol]


COMMAND = Command(
    summary="the models that were measured here beside one another, several seeds of a recipe as one",
    configure=_configure,
    run=_run,
    examples="""\
  for s in 0 1 2; do zoo train margin-conv4-omniglot --seed $s --as margin-conv4-omniglot-seed$s; done
  for s in 0 1 2; do zoo evaluate margin-conv4-omniglot-seed$s --save; done
  zoo benchmark models --dataset omniglot
  zoo benchmark models --dataset omniglot --against margin-conv4-omniglot --metric recall_at_1
  zoo benchmark models margin-conv4-glyphs r-margin-conv4-glyphs --markdown table.md

The scores are those that zoo evaluate --save kept, the newest of each model, by torch in fp32 where there is one.
Models whose recipes differ in name and seed alone are one row: mean, standard deviation and the 95 % interval of the
mean (Student's t). A single one has its interval over classes. Differences are taken seed by seed, of measurements
alike.""",
)
