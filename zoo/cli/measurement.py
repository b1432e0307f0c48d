"""What `zoo evaluate` and `zoo score` share: which metrics are asked for, and how a measurement is told."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.console import print_json, print_table, write_errors

if TYPE_CHECKING:
    from zoo.results import Evaluation


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("-k", type=_numbers, default=[1, 2, 4, 8], metavar="K,K", help="recall at which K (1,2,4,8)")
    parser.add_argument(
        "--metrics",
        default="retrieval",
        metavar="GROUP,GROUP",
        help="measure more than retrieval: ranking, clustering, structure, verification, or all",
    )
    parser.add_argument("--json", action="store_true", help="print the measurement as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the measurement to a JSON file as well")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"expected whole numbers with commas between them, as 1,10,100, not {text!r}") from None


def tell(result: Evaluation, args: Namespace) -> None:
    """Print the measurement, and write it where the arguments say so. Raises `UsageError` where that fails."""
    from zoo.files import write_json

    if args.json:
        print_json(result.to_json())
    else:
        _print_for_people(result)
    if args.out:
        with write_errors(args.out):
            write_json(args.out, result.to_json())


def _print_for_people(result: Evaluation) -> None:
    from zoo.datasets.dataset import part_of

    measured = result.queries - result.queries_without_relatives
    what = f"{result.model} ({result.runtime}, {result.precision})" if result.model else f"{result.dim} dimensions"
    print(f"{what} on {result.dataset}, {part_of(result.split)}" if result.dataset else what)
    print(f"{measured:,} queries of {result.classes:,} classes; {result.protocol}")
    if result.unreadable:
        images = "image" if result.unreadable == 1 else "images"
        print(f"{result.unreadable:,} {images} could not be read; the scores are of the others")
    if result.queries_without_relatives == 1:
        print("1 image is alone in its class and was left out as a query")
    elif result.queries_without_relatives:
        print(f"{result.queries_without_relatives:,} images are alone in their class and were left out as queries")
    if result.classes == 1:
        print("all of them are of one class, so every neighbour counts as right: this measures nothing")
    bounds = {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in result.intervals.items()}
    rows = [[name, f"{value:.4f}", bounds.get(name, "-")] for name, value in result.metrics.items()]
    print_table(("metric", "value", "95 % over classes"), rows, numbers=("value",))
