"""Card.json: schema, migrations, references to parents.

The card of a model: what it is, what it expects and what its files must hash to (`card.json`).

By which recipe a model was trained, and what was changed in it, as recipe.json says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.data.preprocessing import Preprocessing
from zoo.errors import CardError, nearest
from zoo.files import read_json, read_object, write_json
from zoo.paths import without_paths

SCHEMA = 3
"""The version of the model folder's layout that this package writes. Older ones load, newer ones are refused.

1: without `needs`. 2: with it. 3: with `text`, for a model that has a text tower.
"""

NEEDS = {1: "0.1.0", 2: "0.2.0", 3: "0.3.0"}
"""Schema -> the first dml-zoo that reads it. Every card says its own, so that an older one can name what to install:
a new schema takes a new version of the package."""

KINDS = {
    "int": "a whole number, as 64",
    "str": 'a text in quotes, as "margin"',
    "bool": "true or false",
    "tuple[float, ...]": "a list of numbers, as [0.5]",
    "tuple[str, ...]": 'a list of texts, as ["arXiv:2002.08473"]',
    "Mapping[str, str]": 'an object of texts, as {"model.safetensors": "SHA-256"}',
    "Mapping[str, Any]": 'an object, as {"widths": [16, 32]}',
}
"""What a field of a card takes, by its annotation."""

MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
HEAD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Without dots: in the names of weights they part a module from what it holds."""

LARGEST_DIM = 65_536
"""Of an embedding. A card that says more would have memory asked for that no machine has."""


@dataclass(frozen=True)
class Head:
    """A linear map from the trunk's pooled features to `dim` numbers, normalised to unit length."""

    name: str
    dim: int

    def __post_init__(self) -> None:
        if not HEAD_NAME.fullmatch(self.name) or not 1 <= self.dim <= LARGEST_DIM:
            raise CardError(
                "a head needs a name of lower-case letters, digits, '_' and '-' and a dim from 1 to "
                f"{LARGEST_DIM}, not {self.name!r} and {self.dim!r}."
            )


def heads_problem(heads: Sequence[Head]) -> str | None:
    """What is wrong with heads that are fine each by itself; None where nothing is."""
    names = [head.name for head in heads]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"several heads are called {twice[0]!r}; each needs a name of its own."
    if (dim := sum(head.dim for head in heads)) > LARGEST_DIM:
        return f"the heads' dims add up to {dim}; an embedding has at most {LARGEST_DIM} numbers."
    return None


@dataclass(frozen=True)
class TextSettings:
    """How a text becomes the text tower's tokens: at most `length` of them, filled up to `length` with `padding`.

    padding: a token's id. lowercase: whether the text is put into small letters first.
    """

    length: int
    padding: int
    lowercase: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.length <= 65536 or self.padding < 0:
            raise CardError(
                f"text needs a length of 1 to 65536 and a token's id, got {self.length} and {self.padding}."
            )


@dataclass(frozen=True)
class Card:
    """What a model folder says of itself.

    The embedding is the concatenation of the heads' unit vectors, normalised again; without heads it is the
    trunk's pooled features, normalised. `files` maps each weight file to its SHA-256. `text`: of the text tower, None
    where there is none. `needs`: the first version of dml-zoo that reads this card.
    """

    name: str
    method: str
    backbone: str
    dataset: str
    architecture: str
    dim: int
    preprocessing: Preprocessing
    heads: tuple[Head, ...] = ()
    architecture_args: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    licence: str = "apache-2.0"
    sources: tuple[str, ...] = ()
    description: str = ""
    text: TextSettings | None = None
    needs: str = NEEDS[SCHEMA]
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if not MODEL_NAME.fullmatch(self.name):
            raise CardError(f"the model name {self.name!r} may hold lower-case letters, digits, '.', '_' and '-' only.")
        if why := heads_problem(self.heads):
            raise CardError(f"card of {self.name!r}: {why}")
        if not 1 <= self.dim <= LARGEST_DIM:
            raise CardError(f"card of {self.name!r}: dim is {self.dim}, expected 1 to {LARGEST_DIM}.")
        if self.heads and self.dim != sum(head.dim for head in self.heads):
            raise CardError(f"card of {self.name!r}: dim is {self.dim}, its heads' dims add up to another number.")
        for file in self.files:
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise CardError(f"card of {self.name!r} names a file outside the model folder: {file!r}.")

    @property
    def fingerprint(self) -> str:
        """Equal for two models exactly when they give the same vectors: weights, architecture and preprocessing."""
        facts = {
            "architecture": self.architecture,
            "architecture_args": dict(self.architecture_args),
            "heads": [dataclasses.asdict(head) for head in self.heads],
            "preprocessing": dataclasses.asdict(self.preprocessing),
            "weights": {file: sha for file, sha in sorted(self.files.items()) if file.endswith(".safetensors")},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def identity(self) -> dict[str, str]:
        """By what a record names the model that it is of, or that another one was made of."""
        return {"name": self.name, "fingerprint": self.fingerprint}

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def write(self, folder: Path) -> None:
        write_json(folder / "card.json", self.to_json())


def read_card(folder: Path) -> Card:
    """The card in a model folder. Raises `CardError` that names the file and what is wrong with it."""
    path = folder / "card.json"
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise CardError(f"{folder} is no model folder: it has no card.json.") from None
    except (OSError, ValueError) as error:
        raise CardError(f"{path} cannot be read as JSON: {error}.") from None
    try:
        return card_from_json(values)
    except CardError as error:
        raise CardError(f"{path}: {error}") from None


def card_from_json(values: Any) -> Card:
    """A card from parsed JSON; unknown, missing and mistyped keys are named."""
    if not isinstance(values, dict):
        raise CardError("a card is a JSON object.")
    schema = values.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise CardError("the card has no schema number.")
    if schema > SCHEMA:
        raise CardError(_too_new(schema, values.get("needs")))
    heads = values.get("heads", [])
    if not isinstance(heads, list):
        raise CardError("heads must be a list.")
    fields = _upgraded(values, schema)
    fields["preprocessing"] = _build(Preprocessing, values.get("preprocessing"), "preprocessing")
    fields["heads"] = tuple(_build(Head, head, "heads") for head in heads)
    fields["text"] = None if fields.get("text") is None else _build(TextSettings, fields["text"], "text")
    return _build(Card, fields, "card")


def _upgraded(values: dict[str, Any], schema: int) -> dict[str, Any]:
    """The same card in today's schema. Each version differs from the one before by what its line here says."""
    fields = dict(values)
    for key, since in (("needs", 2), ("text", 3)):
        if schema < since and key in fields:
            raise CardError(f"card has an unknown key {key!r}: schema {schema} had none.")
    return {**fields, "needs": NEEDS[SCHEMA], "schema": SCHEMA}


def _too_new(schema: int, needs: Any) -> str:
    # The text goes into a command that people copy, so it is nothing but a version.
    known = isinstance(needs, str) and re.fullmatch(r"\d+(\.\d+){1,3}", needs)
    wanted = f"It needs dml-zoo {needs} or newer: " if known else ""
    install = f"pip install 'dml-zoo>={needs}'" if known else "pip install -U dml-zoo"
    return (
        f"the card has schema {schema}; this version of dml-zoo reads up to {SCHEMA}. Upgrade. {wanted}{install}; a "
        "version that is on no index yet is the repository's main branch: git pull in a clone of it, pip install ."
    )


def _build(cls: type[Any], values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise CardError(f"{where} must be a JSON object.")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise CardError(f"{where} has an unknown key {key!r}.{nearest(key, fields)}")
    required = {
        name
        for name, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if absent := required - values.keys():
        raise CardError(f"{where} lacks {', '.join(sorted(absent))}.")
    tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    for key, value in tuples.items():
        if not _fits(value, str(fields[key].type)):
            kind = KINDS.get(str(fields[key].type), str(fields[key].type))
            raise CardError(f"{where}.{key} must be {kind}, not {values[key]!r}.")
    return cls(**tuples)


def _fits(value: Any, annotation: str) -> bool:
    """Whether a JSON value is of the kind that a field's annotation names."""
    if annotation == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation in ("str", "bool"):
        return isinstance(value, str if annotation == "str" else bool)
    if annotation == "Mapping[str, str]":
        return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    if annotation.startswith("Mapping"):
        return isinstance(value, dict)
    if annotation == "tuple[float, ...]":
        return isinstance(value, tuple) and all(isinstance(v, int | float) for v in value)
    if annotation == "tuple[str, ...]":
        return isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    return True


@dataclass(frozen=True)
class Origin:
    """recipe: its name; None for a model that no recipe was to make. changed: setting -> value, as `--set` takes them.

    Whoever sets a paper's number beside a model looks it up by `recipe`, and tells `changed` with it.
    """

    recipe: str | None
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """ "changed: schedule.epochs=1", on one line; "" where nothing was. Of paths the last part, as pages are shown
        to others."""
        if not self.changed:
            return ""
        told = ", ".join(f"{key}={_value(without_paths(value))}" for key, value in self.changed.items())
        return f"changed: {' '.join(told.split())}"


def read_origin(folder: Path, name: str) -> Origin:
    """The origin of the model `name` in a folder.

    Folders from before this was recorded have nothing but their name to go by, and so has one whose recipe.json cannot
    be read.
    """
    record = read_object(folder / "recipe.json")
    if "origin" not in record:
        return Origin(None if "baseline" in record else name)
    recipe, changed = record["origin"], record.get("settings")
    return Origin(recipe if isinstance(recipe, str) else None, changed if isinstance(changed, dict) else {})


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
