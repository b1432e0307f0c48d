"""`zoo export`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command
from zoo.parity import COST_METRICS, verdict

if TYPE_CHECKING:
    from exports.parity import Parity


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument(
        "--precision",
        nargs="+",
        default=["fp32"],
        metavar="P",
        help="fp32, fp16, int8, several of them, or all (default: fp32)",
    )
    parser.add_argument(
        "--calibration",
        metavar="NAME",
        help="int8: calibrate on this data set's training images, or on those of a folder or a table (CSV with the "
        "column image; where there is a column split, on those to train on)",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data sets lie (default: ZOO_DATA)")
    parser.add_argument(
        "--resize", action="store_true", help="also write graphs that take images of any height and width"
    )
    parser.add_argument("--no-cost", action="store_true", help="do not measure what fp16 and int8 cost in retrieval")
    parser.add_argument("--force", action="store_true", help="write a variant that departs too far from torch as well")
    parser.add_argument("--json", action="store_true", help="print the proof of parity as JSON")


def _run(args: Namespace) -> int:
    from exports.precisions import check_precision
    from zoo.onnx_runtime import FILES
    from zoo.registry import find

    precisions = list(FILES) if args.precision == ["all"] else list(dict.fromkeys(args.precision))
    for precision in precisions:
        check_precision(precision)
    return _export(find(args.model), precisions, args)


def _export(found: Path, precisions: list[str], args: Namespace) -> int:
    from exports.copies import place_of
    from exports.export import Exporter
    from zoo.console import note, print_json
    from zoo.errors import ZooError
    from zoo.onnx_runtime import FILES, RESIZING

    folder = place_of(found, precisions, args.model)
    source = folder if (folder / "card.json").exists() else found
    exporter = Exporter(source, args.calibration, args.data, args.force, not args.no_cost, into=folder)
    done: dict[str, Parity] = {}
    resized: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    status = 0
    dropped: list[str] = []
    for precision in precisions:
        try:
            done[precision] = exporter.export(precision)
            dropped += [] if args.resize else exporter.dropped
            if args.resize:
                resized[precision] = exporter.export_resizing(precision)
        except ZooError as error:
            failed[precision] = str(error)
            status = max(status, error.exit_code)
            print(f"zoo: error: {error}", file=sys.stderr)
            continue
        if not args.json:
            print(_line(folder / FILES[precision], done[precision]))
        if not args.json and args.resize:
            print(_resizing(folder / RESIZING[precision], resized[precision]))
    for said in exporter.notes:
        note(said)
    if args.json:
        parity = {precision: found.to_json() for precision, found in done.items()}
        told = {"folder": str(folder), "parity": parity, "resize": resized, "dropped": dropped, "failed": failed}
        print_json(told)
    elif dropped:
        print(f"removed, because made of the graph before: {', '.join(dropped)}; to have it anew: --resize")
    return status


def _line(graph: Path, parity: Parity) -> str:
    lines = [
        f"{graph}: cosine to torch at least {parity.min_cosine:.7f} on {parity.images} images "
        f"(floor {parity.floor}), largest difference {parity.max_difference:.1e}"
    ]
    if parity.forced:
        lines.append("  below its floor, and written because of --force")
    if "quantised" in parity.details:
        lines.append(f"  int8: {parity.details['quantised']}; calibrated on {parity.details['calibrated_on']}")
    cost = parity.cost or {}
    if "not_measured" in cost:
        lines.append(f"  its cost in retrieval was not measured: {cost['not_measured']}")
    lines += [f"  {name}: {_change(cost[name])}" for name in COST_METRICS if name in cost]
    if "target" in cost:
        left = f", {cost['unreadable']} unreadable left out" if cost.get("unreadable") else ""
        lines.append(f"  on {cost['dataset']}{left}; the target is a loss of at most {100 * cost['target']:.1f} points")
    return "\n".join(lines)


def _change(row: Mapping[str, Any]) -> str:
    """The difference from fp32, and its interval and verdict by either unit."""
    over_classes, over_queries = row["interval"], row["over_queries"]["interval"]
    return (
        f"{100 * row['difference']:+.2f} points against fp32; target {verdict(over_classes)} over classes "
        f"({_points(over_classes)}), {verdict(over_queries)} over queries ({_points(over_queries)})"
    )


def _points(interval: Sequence[float]) -> str:
    low, high = (100 * bound for bound in interval)
    return f"95 % {low:+.2f} to {high:+.2f}"


def _resizing(graph: Path, row: dict[str, Any]) -> str:
    return (
        f"{graph}: takes images of any size; pixels at most {row['max_pixel_difference']} of 255 from Pillow's, "
        f"{row['mean_pixel_difference']:.3f} on average, cosine at least {row['min_cosine_to_pillow']:.5f}"
    )


COMMAND = Command(
    summary="export a model to ONNX and prove it equal to the torch model",
    configure=_configure,
    run=_run,
    examples="""\
  zoo export margin-conv4-omniglot                     writes onnx/model.onnx into the model's folder
  zoo export margin-conv4-glyphs --precision all       fp32, fp16 and int8, and what the last two cost
  zoo export ./my-model --precision int8 --calibration ./pictures
  zoo export ./my-model --precision int8 --calibration birds.csv
  zoo export ./my-model --resize                       also onnx/model_resize.onnx: images uint8 [n, h, w, c]
  zoo export ./my-model --json""",
)
