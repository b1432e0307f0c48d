"""The records beside the weights, which no hash covers: whole, and of this model and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.cards import Card, read_card
from zoo.errors import ModelFolderError
from zoo.files import read_json
from zoo.onnx_runtime import VARIANTS
from zoo.parity import PARITY_FILE as PARITY
from zoo.parity import misplaced, read_parity
from zoo.results import RESULTS_FILE as RESULTS
from zoo.results import Check, read_results

RECIPE = "recipe.json"

KINDS = ("recipe", "ensemble", "baseline")
"""What a recipe.json says a model was made as, by its key."""


def verify_records(folder: Path) -> Iterator[Check]:
    """A check for each of recipe.json, results.json and, where there are graphs, onnx/parity.json.

    One that is missing cannot be checked; but graphs that give less than the fp32 graph does must have their statement.
    An onnx/parity.json that cannot be read is what `verify` says.
    """
    card = read_card(folder)
    yield _recipe(folder, card)
    yield _results(folder, card)
    yield from _parity(folder, card)


def _recipe(folder: Path, card: Card) -> Check:
    try:
        record = read_json(folder / RECIPE)
    except FileNotFoundError:
        return Check(RECIPE, None, "there is none, so how the model was made is not known")
    except (OSError, ValueError) as error:
        return Check(RECIPE, False, f"cannot be read as JSON, perhaps it was cut off: {error}")
    if not isinstance(record, dict) or not any(kind in record for kind in KINDS):
        return Check(RECIPE, False, f"is none that dml-zoo writes: it has none of {', '.join(KINDS)}")
    why = _made_as(record, card) or _made_for(record, card)
    return Check(RECIPE, not why, why or f"is of {card.name}")


def _made_as(record: Mapping[str, Any], card: Card) -> str:
    """Why a model of this card cannot have been made so; "" where it can."""
    if "ensemble" in record:
        count, joined = _count(record["ensemble"]), _count(card.architecture_args.get("members"))
        return "" if count == joined else f"is of an ensemble of {count} models, the card's is one of {joined}"
    if "recipe" in record:
        name = _member(record["recipe"], "name")
        return "" if name == card.name else f"is of another model, {name!r}"
    repository = _member(record["baseline"], "repository")
    known = repository is None or f"https://huggingface.co/{repository}" in card.sources
    return "" if known else f"is of another model, of the Hub's {repository}"


def _made_for(record: Mapping[str, Any], card: Card) -> str:
    """Why the model that the file names is not this one; "" where it is, or was not yet named when it was written."""
    if (model := record.get("model")) is None:
        return ""
    if _member(model, "fingerprint") == card.fingerprint:
        return ""
    name = _member(model, "name")
    return (
        f"is of another model, {name!r}" if name != card.name else f"is of {name} with other weights or preprocessing"
    )


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else 0


def _results(folder: Path, card: Card) -> Check:
    if not (folder / RESULTS).exists():
        return Check("scores", None, f"there is no {RESULTS}")
    try:
        results = read_results(folder)
    except ModelFolderError as error:
        return Check(RESULTS, False, str(error))
    # Of plain embeddings no model is known.
    if others := sorted({str(result["model"]) for result in results if result.get("model") not in (None, card.name)}):
        return Check(RESULTS, False, f"holds scores of {', '.join(others)}. Delete it and measure again: zoo evaluate")
    return Check(RESULTS, True, f"{len(results)} measurements of {card.name}")


def _parity(folder: Path, card: Card) -> Iterator[Check]:
    graphs = {variant for variant, file in VARIANTS.items() if (folder / file).is_file()}
    try:
        parity = read_parity(folder)
    except ModelFolderError:
        return
    if not parity and graphs <= {"fp32"}:
        # Golden images prove the fp32 graph: it is to give what torch gives.
        if graphs:
            yield Check(PARITY, None, "there is none")
        return
    wrong = [f"says nothing of {VARIANTS[variant]}" for variant in sorted(graphs - parity.keys() - {"fp32"})]
    wrong += [
        f"{variant} {why}" for variant, entry in parity.items() if (why := misplaced(entry, variant, card, graphs))
    ]
    advice = ". Export the model anew, or get its folder anew"
    yield Check(PARITY, not wrong, "; ".join(wrong) + advice if wrong else f"is of {card.name}")
