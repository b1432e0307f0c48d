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
    for result in model.results:
        print(f"\nmeasured on {_subject(result)}")
        print_table(("metric", "value", "95 % over classes"), _scores(result), numbers=("value",))
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


def _subject(result: dict[str, Any]) -> str:
    named = {key: str(result[key] or "-") for key in ("dataset", "split", "runtime", "precision")}
    when = result.get("date", "date unknown")
    return f"{named['dataset']}, {named['split']} split, with {named['runtime']} in {named['precision']} ({when})"


def _scores(result: dict[str, Any]) -> list[list[str]]:
    bounds = {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in result.get("intervals", {}).items()}
    return [[name, f"{value:.4f}", bounds.get(name, "-")] for name, value in result["metrics"].items()]


COMMAND = Command(
    summary="say what is known of a model: its card, its files, its measured scores",
    configure=_configure,
    run=_run,
    examples="""\
  zoo info margin-conv4-glyphs
  zoo info ./my-model --json""",
)
