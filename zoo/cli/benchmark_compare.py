"""`zoo benchmark compare`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command
from zoo.cli.measured_on import images_for, leaving_out

if TYPE_CHECKING:
    from zoo.report.page import Section

FORMATS = ("table", "markdown", "csv", "json", "html")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("table", nargs="?", help="a published table's name (default: all; zoo benchmark list)")
    parser.add_argument("--dataset", help="only scores on this data set")
    parser.add_argument("--paper", help="only tables of this paper, by its short name")
    parser.add_argument("--format", choices=FORMATS, default="table", help="of the output (default: table)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to a file instead of the screen")
    parser.add_argument(
        "--studies",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="look at this study too, or at all in this folder, beside those in ZOO_HOME; may be given again",
    )
    parser.add_argument(
        "--show",
        dest="models",
        action="append",
        default=[],
        metavar="MODEL",
        help="with --format html: what this model finds, its map and its spectrum too; may be given again",
    )
    parser.add_argument("--show-dataset", metavar="D", help="of --show (default: what the model was trained for)")
    parser.add_argument(
        "--data", metavar="DIR", help="where the data set of --show lies, or the folder or table (default: ZOO_DATA)"
    )
    parser.add_argument("--map", dest="mapping", default="pca", help="of --show: pca or tsne (default: pca)")
    parser.add_argument("--runtime", default="torch", help="of --show: torch or onnx (default: torch)")


def _shown(args: Namespace) -> list[Section]:
    """What reports of the models named by --show hold, under their names."""
    if not args.models:
        return []
    from dataclasses import replace

    from zoo.loading import load
    from zoo.report.report import sections

    found = []
    for name in args.models:
        model = load(name, args.runtime)
        dataset = images_for(model, args.show_dataset, "test", args.data)
        with leaving_out() as unreadable:
            parts = sections(model, dataset, args.mapping, unreadable=unreadable)
        found += [replace(part, heading=f"{model.card.name} on {dataset.name}: {part.heading}") for part in parts]
    return found


def _run(args: Namespace) -> int:
    from zoo.comparison import FORMATS, as_html, compare, find_runs
    from zoo.console import write_text
    from zoo.errors import UsageError
    from zoo.published import select, table

    if args.models and args.format != "html":
        raise UsageError("--show draws pictures, which --format html holds alone.")
    tables = select(args.paper, args.dataset)
    if args.table is not None:
        wanted = table(args.table)
        tables = [each for each in tables if each is wanted]
    if not tables:
        raise UsageError("no published table matches all of that. What there is: zoo benchmark list [--absent]")
    rows = compare(tables, args.dataset, find_runs(args.studies))
    text = FORMATS[args.format](rows) if args.format != "html" else as_html(rows, _shown(args))
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
  zoo benchmark compare --dataset cub --studies ./revisiting-table-2-cub
  zoo benchmark compare revisiting-2 --format html --out ours.html --show margin-r50-cub --map tsne

Ours are the scores in results.json of the models in the local zoo and of the shipped ones (zoo evaluate MODEL --save),
and of the finished runs of studies (zoo benchmark run), those of more seeds where a recipe has both.
A recipe's seeds are the model of its name and all models whose recipe.json differs from that in name and seed alone:
  zoo train margin-r50-cub; zoo train margin-r50-cub --seed 1 --as margin-r50-cub-seed1; ...
With several seeds: mean, standard deviation and 95 % interval of the mean; with one: its interval over classes.""",
)
