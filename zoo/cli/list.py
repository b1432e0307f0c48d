"""`zoo list`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command
from zoo.cli.output import print_json, print_table

if TYPE_CHECKING:
    from zoo.registry import ModelInfo

FACTS = ("name", "status", "dim", "method", "backbone", "dataset")


def _configure(parser: ArgumentParser) -> None:
    for fact in ("method", "backbone", "dataset"):
        parser.add_argument(f"--{fact}", help=f"only models of this {fact}")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def _run(args: Namespace) -> int:
    from zoo.registry import list_models

    rows = [_row(model) for model in list_models(args.method, args.backbone, args.dataset)]
    if args.json:
        print_json(rows)
    elif rows:
        print_table((*FACTS, "R@1"), [list(map(_cell, row.values())) for row in rows], numbers=("dim", "R@1"))
    else:
        print("zoo: no model matches; without filters all are listed: zoo list", file=sys.stderr)
    return 0


def _row(model: ModelInfo) -> dict[str, Any]:
    return {**{fact: getattr(model, fact) for fact in FACTS}, "recall_at_1": _recall_at_1(model)}


def _recall_at_1(model: ModelInfo) -> float | None:
    """The newest score on the unseen classes of the data set that the model was trained on."""
    own = [r for r in model.results if (r["dataset"], r["split"]) == (model.dataset, "test")]
    return own[-1]["metrics"].get("recall_at_1") if own else None


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


COMMAND = Command(
    summary="list the models: trained here, shipped with the package, or known as a recipe",
    configure=_configure,
    run=_run,
    examples="""\
  zoo list
  zoo list --dataset omniglot
  zoo list --json""",
)
