"""`zoo gallery tune`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command
from zoo.console import print_json, print_table

if TYPE_CHECKING:
    from serving.gallery.measuring import Measured


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder")
    parser.add_argument("--recall", type=float, default=0.99, help="the part of the nearest to find, default 0.99")
    parser.add_argument("-k", type=int, default=10, metavar="N", help="how many nearest, default 10")
    parser.add_argument("--kind", action="append", metavar="KIND", help="only this kind beside flat; may be repeated")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")


def _run(args: Namespace) -> None:
    from serving.gallery import Gallery
    from serving.gallery.kinds import KINDS

    with Gallery.open(args.gallery) as gallery:
        facts, rows = gallery.tune(args.recall, args.k, args.kind or tuple(KINDS))
    if facts and args.k >= facts.count:
        print(
            f"zoo: -k {args.k:,} is more than the {facts.count - 1:,} others that each item has; that many were taken.",
            file=sys.stderr,
        )
    if args.json:
        measured = {name: asdict(one) if one else None for name, one in rows}
        print_json({"chosen": asdict(facts) if facts else None, "measured": measured})
    elif facts:
        columns = ("kind", "effort", "shortlist", "recall", "ms a search", "s to build", "")
        print_table(columns, [_row(name, one, facts.setting.kind) for name, one in rows], numbers=columns[1:6])
    else:
        print("the gallery is empty; there is nothing to tune")


def _row(name: str, measured: Measured | None, chosen: str) -> list[str]:
    if measured is None:
        return [name, "-", "-", "-", "-", "-", "too few vectors, or no setting holds the recall"]
    setting = measured.setting
    numbers = [f"{measured.recall:.4f}", f"{measured.milliseconds:.3f}", f"{measured.seconds:.1f}"]
    return [name, str(setting.effort or "-"), str(setting.shortlist), *numbers, "chosen" if name == chosen else ""]


TUNE = Command(
    "choose a fast index of a given recall, measured on the gallery's own vectors",
    _configure,
    _run,
    """  zoo gallery tune gallery/ --recall 0.99
  zoo gallery tune gallery/ --recall 1 --kind flat        back to exact search
  zoo gallery tune gallery/ -k 100 --json
A kind must be faster by more than 10 % to be taken in place of a simpler one; exact search is the simplest.
Recall is of the k nearest that exact search finds. Searches for more than 4 k items are exact.""",
)
