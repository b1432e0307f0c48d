"""`zoo info`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command
from zoo.console import print_json, print_table

if TYPE_CHECKING:
    from zoo.cards import Card
    from zoo.catalogue import ModelInfo


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
    if model.published:
        print(f"\npublished{_changed(model)}")
        print_table(("data set", "metric", "value", "dim", "source"), _published(model), numbers=("value", "dim"))
    for line in _advice(model):
        print(line)
    return 0


def _facts(model: ModelInfo) -> dict[str, str]:
    facts = {key: str(getattr(model, key)) for key in ("name", "status", "dim", "method", "backbone", "dataset")}
    facts["status"] = model.standing
    if model.parameters:
        facts["parameters"] = f"{model.parameters / 1e6:.2f} million"
    if model.card is not None:
        files = {"files": ", ".join(_files(model)) or "-"}
        return {
            **facts,
            **_card(model.card),
            **_recipe(model),
            **files,
            "folder": str(model.folder),
            "size": f"{(model.size or 0) / 1e6:.2f} MB",
        }
    told = {key: "; ".join(value) if isinstance(value, list) else str(value) for key, value in model.facts.items()}
    return {**facts, **told, "paper's R@1": _papers_recall(model)}


def _recipe(model: ModelInfo) -> dict[str, str]:
    origin = model.origin
    return {"recipe": f"{origin.recipe}{f', {origin.words}' if origin.words else ''}"} if origin.recipe else {}


def _changed(model: ModelInfo) -> str:
    """What a reader of the paper's numbers must know of this model."""
    words = model.origin.words
    return f" for {model.origin.recipe} (of this model, {words})" if words else ""


def _papers_recall(model: ModelInfo) -> str:
    """On the model's own data set, else on each that a paper has; the table of published scores has all of them."""
    found = model.papers_recall
    if model.dataset in found:
        return f"{found[model.dataset]:.4f}"
    return ", ".join(f"{dataset} {value:.4f}" for dataset, value in found.items()) or "-"


def _card(card: Card) -> dict[str, str]:
    how = card.preprocessing
    return {
        "description": card.description or "-",
        "architecture": card.architecture,
        "heads": ", ".join(f"{head.name} ({head.dim})" for head in card.heads) or "-",
        "input": f"{how.mode}, short side to {how.resize}, centre square of {how.crop}, {how.interpolation}",
        **({"text": f"texts of up to {card.text.length} tokens"} if card.text else {}),
        "licence": card.licence,
        "sources": ", ".join(card.sources) or "-",
        "fingerprint": card.fingerprint,
    }


def _files(model: ModelInfo) -> Iterator[str]:
    """The files that the card lists, each with its size."""
    for name in model.card.files if model.card else ():
        path = model.folder / name if model.folder else None
        yield f"{name} ({path.stat().st_size / 1e6:.2f} MB)" if path and path.is_file() else f"{name} (missing)"


def _advice(model: ModelInfo) -> list[str]:
    """How one comes to have a model that is not here."""
    from zoo.hub import repository

    if model.folder is not None:
        return []
    if model.status == "hub":
        return [f"\nNot used here yet; the first use fetches it from the Hub: zoo.load({model.name!r})"]
    return [
        f"\nNot trained yet. Train it with: zoo train {model.name}",
        f"Should it be published, zoo.load({model.name!r}) fetches it: https://huggingface.co/{repository(model.name)}",
    ]


def _published(model: ModelInfo) -> list[list[str]]:
    rows = model.published
    return [[r["dataset"], r["metric"], f"{r['value']:.4f}", str(r.get("dim", "-")), r["source"]] for r in rows]


def _subject(result: dict[str, Any]) -> str:
    from zoo.datasets.dataset import part_of

    named = {key: str(result[key] or "-") for key in ("dataset", "runtime", "precision")}
    when = result.get("date", "date unknown")
    part = part_of(result["split"])
    if left_out := result.get("unreadable"):  # which older files do not have
        part += f", {left_out} unreadable left out"
    return f"{named['dataset']}, {part}, with {named['runtime']} in {named['precision']} ({when})"


def _scores(result: dict[str, Any]) -> list[list[str]]:
    bounds = {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in result.get("intervals", {}).items()}
    return [[name, f"{value:.4f}", bounds.get(name, "-")] for name, value in result["metrics"].items()]


COMMAND = Command(
    summary="say what is known of a model: its card, its files, its measured and published scores",
    configure=_configure,
    run=_run,
    examples="""\
  zoo info margin-conv4-glyphs
  zoo info diva-r50-cub                     a recipe: what it would train, and what the paper reports
  zoo info ./my-model --json""",
)
