"""`zoo gallery calibrate`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command
from zoo.console import print_json, print_table

if TYPE_CHECKING:
    from zoo.evaluation.calibration import Calibration


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder with labelled items, or with marked results")
    parser.add_argument(
        "--queries", type=int, default=2000, metavar="N", help="items that search the others, default 2000"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> None:
    from serving.calibrating import NO_ERROR, calibrate_by, pairs_of, told
    from serving.gallery import Gallery
    from zoo.errors import UsageError
    from zoo.evaluation.calibration import reliability

    if args.queries < 1:
        raise UsageError(f"--queries is at least 1, not {args.queries}.")
    with Gallery.open(args.gallery) as gallery:
        pairs = pairs_of(gallery, args.queries)
        fitted = calibrate_by(gallery, pairs)
    bins = reliability(fitted.probability(pairs.similarities), pairs.same)
    if args.json:
        found = {**(told(fitted) or {}), "marks_left_out": pairs.left_out}
        print_json({**found, "reliability": [asdict(one) for one in bins]})
        return
    print(f"p_same = 1 / (1 + exp(-({fitted.slope:.4f} * similarity {fitted.offset:+.4f})))")
    print(_said_of(fitted, pairs.left_out))
    elsewhere = NO_ERROR if fitted.error is None else f"{fitted.error:.4f}"
    print(f"calibration error on other classes: {elsewhere}\n")
    rows = [(f"{one.probability:.3f}", f"{one.share:.3f}", f"{one.count:,}") for one in bins]
    print_table(("p_same", "of the query's label", "pairs"), rows, numbers=("p_same", "of the query's label", "pairs"))


def _said_of(fitted: Calibration, left_out: int) -> str:
    from serving.calibrating import left_out_note

    without = f", and {left_out_note(left_out)}" if left_out else ""
    labelled = f"the {fitted.neighbours} nearest others of labelled items: {fitted.pairs - fitted.marked:,}"
    parts = [*([labelled] if fitted.neighbours else []), f"marked results: {fitted.marked:,}{without}"]
    return f"fitted to {fitted.pairs:,} pairs ({'; '.join(parts)})"


CALIBRATE = Command(
    "fit the probability that a neighbour is of the query's class to the labelled items and the marked results",
    _configure,
    _run,
    """  zoo gallery calibrate gallery/
  zoo gallery calibrate gallery/ --json
Searches then tell p_same, and min_p of the service cuts by it. The table shows, a tenth of probability a line, what
was promised and what was so. A service that runs sees the new calibration at once.""",
)
