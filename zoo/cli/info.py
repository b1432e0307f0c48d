"""`zoo info`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command
from zoo.cli.output import print_json, print_table

if TYPE_CHECKING:
    from zoo.registry import ModelInfo


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="a model's name or the path of a model folder")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _run(args: Namespace) -> int:
    from zoo.registry import info

    model = info(args.name)
    if args.json:
        print_json(model.to_json())
        return 0
    print_table(("what", "value"), list(_facts(model).items()))
    if model.results:
        print()
        columns = ("dataset", "split", "runtime", "precision", "R@1", "MAP@R", "date")
        print_table(columns, [_result(result) for result in model.results], numbers=("R@1", "MAP@R"))
    if model.status == "recipe":
        print(f"Not trained yet. Train it with: zoo train {model.name}")
    return 0


def _facts(model: ModelInfo) -> dict[str, str]:
    facts = {key: str(getattr(model, key)) for key in ("name", "status", "dim", "method", "backbone", "dataset")}
    if (card := model.card) is None:
        return facts
    how = card.preprocessing
    return {
        **facts,
        "description": card.description or "-",
        "architecture": card.architecture,
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in card.heads) or "-",
        "input": f"{how.mode}, short side to {how.resize}, centre square of {how.crop}, {how.interpolation}",
        "files": ", ".join(card.files) or "-",
        "licence": card.licence,
        "sources": ", ".join(card.sources) or "-",
        "fingerprint": card.fingerprint,
        "folder": str(model.folder),
    }


def _result(result: dict[str, Any]) -> list[str]:
    metrics = result["metrics"]
    scores = [f"{metrics[name]:.4f}" if name in metrics else "-" for name in ("recall_at_1", "map_at_r")]
    named = [str(result[key] or "-") for key in ("dataset", "split", "runtime", "precision")]
    return [*named, *scores, str(result.get("date", "-"))]


COMMAND = Command(
    summary="say what is known of a model: its card, its files, its measured scores",
    configure=_configure,
    run=_run,
    examples="""\
  zoo info margin-conv4-glyphs
  zoo info ./my-model --json""",
)
