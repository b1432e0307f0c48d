"""`zoo data`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from zoo.cli.command import Command
from zoo.datasets import DATASETS


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("dataset", help=f"a data set's name: {', '.join(DATASETS)}")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write, one subfolder a class")
    parser.add_argument("--split", default="test", help="train or test (default: test)")
    parser.add_argument("--data", metavar="DIR", help="where the data set lies (default: ZOO_DATA, else downloaded)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> int:
    from zoo.console import print_json
    from zoo.datasets import load
    from zoo.datasets.export import export_folder

    dataset = load(args.dataset, args.split, args.data)
    folder = export_folder(dataset, args.out)
    if args.json:
        print_json({"folder": str(folder), "images": len(dataset), "classes": len(dataset.classes)})
    else:
        print(f"{len(dataset):,} images of {len(dataset.classes):,} classes written to {folder}")
    return 0


COMMAND = Command(
    summary="write a data set's images as a plain folder, one subfolder a class",
    configure=_configure,
    run=_run,
    examples="""\
  zoo data glyphs --out pictures                        the scripts that no glyphs model has seen
  zoo data omniglot --split train --out handwriting""",
)
