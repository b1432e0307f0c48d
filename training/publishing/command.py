"""`zoo publish-all`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command, always
from zoo.errors import UsageError

if TYPE_CHECKING:
    from training.publishing.estimate import Cost
    from training.publishing.rows import Options, Row

COLUMNS = ("model", "data set", "backbone", "images (M)", "hours", "disk (GB)", "steps")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--study",
        nargs="+",
        default=["papers"],
        metavar="WHAT",
        help="papers (default: every paper's models), recipes' names, or patterns as 'diva-*-cub'",
    )
    parser.add_argument("--data", metavar="DIR", help="where the data sets lie (default: ZOO_DATA, else downloaded)")
    parser.add_argument("--org", help="push to this organisation or user of the Hub (default: nothing is pushed)")
    parser.add_argument("--private", action="store_true", help="make new repositories private")
    parser.add_argument("--out", type=Path, metavar="DIR", help="state and logs (default: ZOO_HOME/publishing)")
    parser.add_argument(
        "--weights", action="append", default=[], metavar="BACKBONE=DIR", help="converted weights (zoo convert)"
    )
    parser.add_argument(
        "--precision",
        nargs="+",
        default=["fp32", "fp16", "int8"],
        metavar="P",
        help="of the ONNX graphs (default: all)",
    )
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="change every recipe"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument(
        "--throughput",
        action="append",
        default=[],
        metavar="[BACKBONE=]N",
        help="images/s of training (default: measured on the device)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan with its cost, and do nothing")
    parser.add_argument("--json", action="store_true", help="print the plan or the outcome as JSON")


def _run(args: Namespace) -> int:
    from training.publishing.rows import rows_of

    options = _options(args)
    rows = rows_of(args.study, options)
    return _plan(rows, options, args) if args.dry_run else _publish(rows, args)


def _options(args: Namespace) -> Options:
    from training.publishing.estimate import BYTES
    from training.publishing.rows import Options
    from zoo.errors import nearest

    for precision in args.precision:
        if precision not in BYTES:
            raise UsageError(f"--precision {precision}: expected {', '.join(BYTES)}.{nearest(precision, BYTES)}")
    weights = [value.partition("=") for value in args.weights]
    if wrong := [value for value, (name, _, path) in zip(args.weights, weights, strict=True) if not (name and path)]:
        raise UsageError(f"--weights {wrong[0]}: expected BACKBONE=DIR, as ibn=weights/bn_inception.")
    return Options(
        args.data,
        args.org,
        args.private,
        args.device,
        tuple(args.settings),
        tuple((name, path) for name, _, path in weights),
        tuple(dict.fromkeys(args.precision)),
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _plan(rows: Sequence[Row], options: Options, args: Namespace) -> int:
    from training.publishing.estimate import cost, decoded
    from training.publishing.throughput import given, measured, named
    from zoo.console import print_json
    from zoo.torch_runtime import choose_device

    device = choose_device(args.device)
    known = given(args.throughput, rows)
    rates = measured(rows, known, device, _tell)
    costs = [cost(row, rates, options.precisions) for row in rows]
    shared = {(row.dataset, row.recipes[0].data.side, row.recipes[0].data.fit): decoded(row) for row in rows}
    where = "as given" if set(rates) == set(known) else f"measured on {named(device)}"
    total: dict[str, Any] = {
        "rows": len(rows),
        "hours": sum(each.hours for each in costs),
        "disk": sum(each.disk for each in costs),
        "scratch": max(each.scratch for each in costs),
        "decoded_images": sum(shared.values()),
        "device": str(device),
        "throughput": {"source": where, "images_per_second": rates},
    }
    if args.json:
        print_json({"rows": [_facts(row, each) for row, each in zip(rows, costs, strict=True)], "total": total})
    else:
        _print_plan(rows, costs, total)
    return 0


def _facts(row: Row, each: Cost) -> dict[str, Any]:
    from dataclasses import asdict

    steps = [{"name": step.name, "command": ["zoo", *step.command], "needed": step.needed} for step in row.steps]
    return {"name": row.name, "dataset": row.dataset, "backbone": row.backbone, **asdict(each), "steps": steps}


def _print_plan(rows: Sequence[Row], costs: Sequence[Cost], total: dict[str, Any]) -> None:
    from zoo.console import print_table

    cells = [
        [
            row.name,
            row.dataset,
            row.backbone,
            f"{each.images / 1e6:.2f}",
            f"{each.hours:.2f}",
            f"{each.disk / 1e9:.2f}",
            ", ".join(step.name for step in row.steps),
        ]
        for row, each in zip(rows, costs, strict=True)
    ]
    print_table(COLUMNS, cells, numbers=("images (M)", "hours", "disk (GB)"))
    rates = ", ".join(f"{name} {rate:,.1f}" for name, rate in total["throughput"]["images_per_second"].items())
    kind = "GPU hours" if total["device"].startswith("cuda") else "hours"
    print(
        f"{total['rows']} models, {total['hours']:,.1f} {kind} of training at images/s {total['throughput']['source']} "
        f"({rates}).\nDisk: {total['disk'] / 1e9:.1f} GB of models, {total['decoded_images'] / 1e9:.1f} GB of decoded "
        f"images, {total['scratch'] / 1e9:.1f} GB for the checkpoint of the largest. Measuring, exporting and decoding "
        "are not in the hours."
    )


def _publish(rows: Sequence[Row], args: Namespace) -> int:
    from training.publishing.runner import run_all
    from training.publishing.state import State, held
    from zoo import paths
    from zoo.console import print_json

    folder = args.out or paths.home() / "publishing"
    with held(folder):
        tally = run_all(rows, State(folder), _tell)
    if args.json:
        print_json({**tally.to_json(), "folder": str(folder)})
    else:
        print(
            f"{len(tally.whole)} done, {len(tally.partly)} without some variants, {len(tally.failed)} failed. "
            f"State and logs: {folder}"
        )
        for name, messages in {**tally.partly, **tally.failed}.items():
            for step, message in messages.items():
                print(f"  {name}, {step}: {message}")
    return 1 if tally.failed else 0


COMMAND = Command(
    summary="train, measure, export, verify and publish every paper's models, one after another",
    configure=_configure,
    run=_run,
    examples="""\
  zoo publish-all --dry-run                                         what it would take, at this device's speed
  zoo publish-all --dry-run --throughput r50=900 --throughput ibn=1500 --study 'diva-*-cub' 'group-ibn-cub'
  zoo publish-all --study 'diva-*' --data DIR                       all but the push
  zoo publish-all --data DIR --org my-org --weights ibn=weights/bn_inception --weights gn=weights/googlenet

Every step is a command of `zoo` in a process of its own, whose output goes to a log. What is done is kept in
state.json: the same command goes on where it stopped, tries again what failed, and leaves alone what is done. The exit
status is 1 when a model failed. docs/publish.md tells the whole of it.""",
    resumes=always,
)
