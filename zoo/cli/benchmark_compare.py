"""`zoo benchmark compare`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli.command import Command

FORMATS = ("table", "markdown", "csv", "json", "html")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("table", nargs="?", help="a published table's name (default: all; zoo benchmark list)")
    parser.add_argument("--dataset", help="only scores on this data set")
    parser.add_argument("--paper", help="only tables of this paper, by its short name")
    parser.add_argument("--format", choices=FORMATS, default="table", help="of the output (default: table)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of the screen")


def _run(args: Namespace) -> int:
    from zoo.cli.output import write_text
    from zoo.comparison import FORMATS, compare
    from zoo.errors import UsageError
    from zoo.published import select, table

    tables = select(args.paper, args.dataset)
    if args.table is not None:
        wanted = table(args.table)
        tables = [each for each in tables if each is wanted]
    if not tables:
        raise UsageError("no published table matches all of that. What there is: zoo benchmark list [--absent]")
    text = FORMATS[args.format](compare(tables, args.dataset))
    if args.out is None:
        print(text, end="")
    else:
        write_text(args.out, text)
    return 0


COMMAND = Command(
    summary="published numbers beside those of the models here, each with its protocol",
    configure=_configure,
    run=_run,
    examples="""\
  zoo benchmark compare revisiting-2 --dataset cub
  zoo benchmark compare --paper DiVA --format markdown
  zoo benchmark compare --dataset cars --format html --out cars.html

Ours are the scores in results.json of the models in the local zoo and of the shipped ones (zoo evaluate MODEL --save).
A recipe's seeds are the model of its name and all models whose recipe.json differs from that in name and seed alone:
  zoo train margin-r50-cub; zoo train margin-r50-cub --seed 1 --as margin-r50-cub-seed1; ...
With several seeds: mean, standard deviation and 95 % interval of the mean; with one: its interval over classes.""",
)
