"""Card of a model (card.json): its facts, its preprocessing, the SHA-256 of its files, and its origin."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from zoo.data.preprocessing import Preprocessing
from zoo.errors import CardError, nearest
from zoo.files import read_json, read_object, write_json
from zoo.paths import without_paths

SCHEMA = 3
"""Version of the model folder's layout that this package reads and writes; every other one is refused."""

NEEDS = "0.3.0"
"""The first dml-zoo that reads this schema. Cards store it, so that an older dml-zoo names the version to install."""

_KINDS = {
    "int": "a whole number, as 64",
    "str": 'a text in quotes, as "margin"',
    "bool": "true or false",
    "tuple[float, ...]": "a list of numbers, as [0.5]",
    "tuple[str, ...]": 'a list of texts, as ["arXiv:2002.08473"]',
    "Mapping[str, str]": 'an object of texts, as {"model.safetensors": "SHA-256"}',
    "Mapping[str, Any]": 'an object, as {"widths": [16, 32]}',
}
"""Annotation of a card's field -> description of the values that it takes."""

MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
HEAD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Names without dots, which separate a module from its parameters in the names of weights."""

UNKNOWN_LICENCE = "unknown"
"""Licence of a model whose weights come with none and whose author states none."""

HEADS = {"trained": "method", "pca": "PCA", "lda": "LDA"}
"""A recipe's `head_end` -> what makes the embedding: the heads that the method trained, or a projection of the trained
trunk's features."""

ORDERED_HEADS = ("PCA", "LDA")
"""Values of `HEADS` whose numbers are in the order of their importance."""

TRAINING_DATA = "training_data"
"""Entry of recipe.json: the identity of the images that were trained on, and of a user's own their classes."""

MODULES_FILE = "modules.json"
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "zoo.models.sentence_transformer.ImageEmbedding"}]
"""What sentence-transformers loads from a model folder."""


def holds_other_modules(folder: Path) -> bool:
    """Return whether sentence-transformers loads something else from a folder than a model of ours."""
    path = folder / MODULES_FILE
    if not os.path.isfile(path) or (folder / "card.json").is_file():  # noqa: PTH113  (False for an impossible name)
        return False
    return read_json(path) != MODULES


LARGEST_DIM = 65_536
"""Largest dimension of an embedding. A larger one in a card would request memory that no machine has."""


@dataclass(frozen=True)
class Head:
    """Linear map from the trunk's pooled features to `dim` numbers, normalised to unit length."""

    name: str
    dim: int

    def __post_init__(self) -> None:
        if not HEAD_NAME.fullmatch(self.name) or not 1 <= self.dim <= LARGEST_DIM:
            raise CardError(
                "a head needs a name of lower-case letters, digits, '_' and '-' and a dim from 1 to "
                f"{LARGEST_DIM}, not {self.name!r} and {self.dim!r}.",
                code="conflicting-settings",
            )


def heads_problem(heads: Sequence[Head]) -> str | None:
    """Return why heads do not go together, though each is valid; None if they do."""
    names = [head.name for head in heads]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        return f"several heads are called {duplicates[0]!r}; each needs its own name."
    if (dim := sum(head.dim for head in heads)) > LARGEST_DIM:
        return f"the heads' dims add up to {dim}; an embedding has at most {LARGEST_DIM} numbers."
    return None


@dataclass(frozen=True)
class TextSettings:
    """Tokenisation of the text tower.

    Attributes:
        length: Number of tokens; longer texts are cut, shorter ones padded.
        padding: Id of the padding token.
        lowercase: True if the text is lowercased first.
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
    """Description of a model, as its folder's card.json stores it.

    The embedding is the concatenation of the heads' unit vectors, normalised again; without heads it is the
    trunk's pooled features, normalised.

    Attributes:
        files: Weight file -> SHA-256.
        text: Tokenisation of the text tower; None without one.
        needs: The first version of dml-zoo that reads this card.
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
    licence: str = UNKNOWN_LICENCE
    sources: tuple[str, ...] = ()
    description: str = ""
    text: TextSettings | None = None
    needs: str = NEEDS
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if not MODEL_NAME.fullmatch(self.name):
            raise CardError(
                f"the model name {self.name!r} may hold lower-case letters, digits, '.', '_' and '-' only.",
                code="invalid-value",
            )
        if problem := heads_problem(self.heads):
            raise CardError(f"card of {self.name!r}: {problem}", code="conflicting-settings")
        if not 1 <= self.dim <= LARGEST_DIM:
            raise CardError(
                f"card of {self.name!r}: dim is {self.dim}, expected 1 to {LARGEST_DIM}.", code="invalid-value"
            )
        if self.heads and self.dim != (total := sum(head.dim for head in self.heads)):
            raise CardError(
                f"card of {self.name!r}: dim is {self.dim}, its heads' dims add up to {total}.", code="invalid-value"
            )
        for file in self.files:
            if Path(file).is_absolute() or ".." in Path(file).parts:
                raise CardError(
                    f"card of {self.name!r} names a file outside the model folder: {file!r}.", code="unsafe-file"
                )

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of weights, architecture and preprocessing: equal for models that give equal vectors."""
        facts = {
            "architecture": self.architecture,
            "architecture_args": dict(self.architecture_args),
            "heads": [dataclasses.asdict(head) for head in self.heads],
            "preprocessing": self.preprocessing.to_json(),
            "weights": {file: sha for file, sha in sorted(self.files.items()) if file.endswith(".safetensors")},
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def shortened(self, dim: int) -> Card:
        """Return the card of the first `dim` numbers of the one head's vector, which has a fingerprint of its own."""
        return dataclasses.replace(self, dim=dim, heads=(Head(self.heads[0].name, dim),))

    @property
    def licence_text(self) -> str:
        """Return the licence for people."""
        return "unknown (not stated)" if self.licence == UNKNOWN_LICENCE else self.licence

    @property
    def identity(self) -> dict[str, str]:
        """Return the name and fingerprint by which records refer to this model."""
        return {"name": self.name, "fingerprint": self.fingerprint}

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "preprocessing": self.preprocessing.to_json()}

    def write(self, folder: Path) -> None:
        """Write card.json, and modules.json, by which sentence-transformers finds the network."""
        write_json(folder / "card.json", self.to_json())
        write_json(folder / MODULES_FILE, MODULES)


def joint_licence(licences: Iterable[str]) -> str:
    """Return the licence of a model that was made of others: all of theirs apply."""
    return " AND ".join(dict.fromkeys(licences)) or UNKNOWN_LICENCE


def read_card(folder: Path) -> Card:
    """Return the card of a model folder.

    Raises:
        CardError: `missing-file`, `unreadable-file`, or what `card_from_json` raises; the message names the file.
    """
    path = folder / "card.json"
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise CardError(f"{folder} is not a model folder: it has no card.json.", code="missing-file") from None
    except (OSError, ValueError) as error:
        raise CardError(f"{path} cannot be read as JSON: {error}.", code="unreadable-file") from None
    try:
        return card_from_json(values)
    except CardError as error:
        raise CardError(f"{path}: {error}", code=error.code) from None


def card_from_json(values: Any) -> Card:
    """Build a card from parsed JSON.

    Raises:
        CardError: `other-schema`, `card`, or a value that `Card`, `Head`, `TextSettings` or `Preprocessing` refuses.
    """
    if not isinstance(values, dict):
        raise CardError("a card is a JSON object.")
    schema = values.get("schema")
    if not isinstance(schema, int):
        raise CardError("the card has no schema number.", code="other-schema")
    if schema != SCHEMA:
        raise CardError(_other_schema(schema, values.get("needs")), code="other-schema")
    heads = values.get("heads", [])
    if not isinstance(heads, list):
        raise CardError("heads must be a list.")
    text = values.get("text")
    built = {
        "preprocessing": _build(Preprocessing, values.get("preprocessing"), "preprocessing"),
        "heads": tuple(_build(Head, head, "heads") for head in heads),
        "text": None if text is None else _build(TextSettings, text, "text"),
    }
    return _build(Card, values | built, "card")


def _other_schema(schema: int, needs: Any) -> str:
    """Return the refusal of a card of another schema. needs: as the card states it."""
    refusal = f"the card has schema {schema}; this version of dml-zoo reads schema {SCHEMA} alone."
    if schema < SCHEMA:
        return f"{refusal} Make the model again with this version: train, export or download it."
    # The value goes into a command that people copy, so only a version is accepted.
    is_version = isinstance(needs, str) and re.fullmatch(r"\d+(\.\d+){1,3}", needs)
    package = f"'dml-zoo>={needs}'" if is_version else "-U dml-zoo"
    return f"{refusal} Upgrade with: pip install {package}; in a clone of the repository: git pull, pip install ."


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
        if not _matches(value, str(fields[key].type)):
            kind = _KINDS.get(str(fields[key].type), str(fields[key].type))
            raise CardError(f"{where}.{key} must be {kind}, not {values[key]!r}.")
    return cls(**tuples)


def _matches(value: Any, annotation: str) -> bool:
    """Return whether a JSON value matches the annotation of a field."""
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
    """Recipe of a model and the changes to it.

    Attributes:
        recipe: Name of the recipe; None for a model without one.
        changed: Setting -> value, as `--set` takes them.
    """

    recipe: str | None
    changed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exact_recipe(self) -> str | None:
        """Return the recipe if the model was trained exactly by it, so that its papers' scores belong to the model."""
        return None if self.changed else self.recipe

    @property
    def as_published(self) -> bool:
        """Return whether the model has the settings of the authors' published code."""
        return bool(self.changed.get("as_published"))

    @property
    def text(self) -> str:
        """Return the recipe with the changes to it on one line, or "" without one; paths are cut to their last part."""
        if self.recipe is None or not self.changed:
            return self.recipe or ""
        changed = {key: value for key, value in self.changed.items() if key != "as_published"}
        settings = ", ".join(f"{key}={setting_text(without_paths(value))}" for key, value in changed.items())
        code = " as its authors' published code" if self.as_published else ""
        return f"{self.recipe}{code}, changed: {' '.join(settings.split())}"


def read_origin(folder: Path) -> Origin:
    """Return the origin of the model in a folder: no recipe where recipe.json does not name it and its changes."""
    record = read_object(folder / "recipe.json")
    recipe, changed = record.get("origin"), record.get("settings")
    return Origin(recipe, changed) if isinstance(recipe, str) and isinstance(changed, dict) else Origin(None)


def read_training_data(folder: Path) -> dict[str, Any]:
    """Return what the recipe.json of a model folder says of the images that it was trained on; {} if nothing."""
    data = read_object(folder / "recipe.json").get(TRAINING_DATA)
    return data if isinstance(data, dict) else {}


def read_head(folder: Path) -> str:
    """Return a value of `HEADS` for a model that a recipe made; "" for another model."""
    recipe = read_object(folder / "recipe.json").get("recipe")
    return head_kind(recipe.get("head_end"), bool(recipe.get("heads"))) if isinstance(recipe, dict) else ""


def head_kind(end: Any, heads: bool) -> str:
    """Return the value of `HEADS` for a recipe's `head_end`; "none" for a recipe without heads, "" if it is unknown.

    Args:
        end: The recipe's `head_end`.
        heads: Whether the recipe has heads.
    """
    return HEADS.get(end, "") if heads else "none"


def read_kept(folder: Path) -> str | None:
    """Return what a finetuned model is: "base", "start" or "trained"; None for another model."""
    kept = read_object(folder / "recipe.json").get("kept")
    return kept if isinstance(kept, str) else None


def setting_text(value: Any) -> str:
    """Return the value of a recipe's setting as `--set` takes it; null, such as no miner, is "none"."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
