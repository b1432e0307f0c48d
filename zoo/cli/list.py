"""`zoo list`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command
from zoo.console import print_json, print_table

if TYPE_CHECKING:
    from zoo.catalogue import ModelInfo

FACTS = ("name", "status", "dim", "method", "backbone", "dataset")
CHANGED = "*"
COLUMNS = (*FACTS, "size", "paper's R@1", "R@1")


def _configure(parser: ArgumentParser) -> None:
    for fact in ("method", "backbone", "dataset"):
        parser.add_argument(f"--{fact}", help=f"only models of this {fact}")
    parser.add_argument("--status", help="only models that are shipped, trained (here), on the hub, or a recipe")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def _run(args: Namespace) -> int:
    from zoo.registry import damaged, list_models

    models = list_models(args.method, args.backbone, args.dataset, args.status)
    if args.json:
        print_json([_row(model) for model in models])
    elif models:
        print_table(COLUMNS, [_cells(model) for model in models], numbers=("dim", "size", "paper's R@1", "R@1"))
        if any(map(_is_changed, models)):
            print(f"{CHANGED} is for the recipe; this model was trained with changes to it: zoo info NAME")
    else:
        print("zoo: no model matches; without filters all are listed: zoo list", file=sys.stderr)
    for why in damaged().values():
        print(f"zoo: not listed, because it is damaged: {why}", file=sys.stderr)
    return 0


def _row(model: ModelInfo) -> dict[str, Any]:
    row = {fact: getattr(model, fact) for fact in FACTS}
    measured = {"published_recall_at_1": _published(model), "recall_at_1": _recall_at_1(model)}
    changed = {"changed": dict(model.origin.changed)}
    return {**row, "size": model.size, "parameters": model.parameters, **measured, **changed}


def _cells(model: ModelInfo) -> list[str]:
    row = {**_row(model), "status": model.standing}
    return [_cell(row[fact]) for fact in FACTS] + [
        _size(row),
        _papers(model),
        _cell(row["recall_at_1"]),
    ]


def _published(model: ModelInfo) -> float | None:
    """The first R@1 that a paper prints for it on its own data set."""
    return model.papers_recall.get(model.dataset)


def _papers(model: ModelInfo) -> str:
    """R@1 on the model's own data set; else with the name of the first that a paper measured it on."""
    if _published(model) is not None or not model.papers_recall:
        return _cell(_published(model)) + (CHANGED if _is_changed(model) else "")
    dataset, value = next(iter(model.papers_recall.items()))
    return f"{dataset} {value:.4f}"


def _is_changed(model: ModelInfo) -> bool:
    return bool(model.origin.changed) and _published(model) is not None


def _recall_at_1(model: ModelInfo) -> float | None:
    """The newest score on the unseen classes of the data set that the model was trained on."""
    own = [r for r in model.results if (r["dataset"], r["split"]) == (model.dataset, "test")]
    return own[-1]["metrics"].get("recall_at_1") if own else None


def _size(row: dict[str, Any]) -> str:
    """Megabytes on disk, else millions of parameters."""
    if row["size"] is not None:
        return f"{row['size'] / 1e6:.1f} MB"
    return f"{row['parameters'] / 1e6:.1f} M" if row["parameters"] else "-"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


COMMAND = Command(
    summary="list the models: trained here, shipped, on the Hub, or known as a recipe",
    configure=_configure,
    run=_run,
    examples="""\
  zoo list
  zoo list --dataset omniglot
  zoo list --status hub                     strong public backbones that load by name
  zoo list --json

size: megabytes on disk, or millions of parameters (M) of what is not here yet. paper's R@1: on the model's data set, or
on the one that is named; zoo info NAME has all of them.""",
)
