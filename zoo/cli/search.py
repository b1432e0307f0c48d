"""`zoo search` finds the images of a gallery nearest to a picture, a text, an item, or a weighted sum of several."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zoo.cli.options import (
    Json,
    Labels,
    MovedModel,
    OptionalPrecision,
    OptionalRuntime,
    Where,
    metadata_filter,
)
from zoo.console import note, print_json, print_table, show
from zoo.errors import GalleryError, NoTextTowerError, ServiceError, UsageError, ZooError, check_at_least
from zoo.render import Table

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from serving.gallery.query import QueryPart
    from serving.gallery.types import Hit


app = typer.Typer()

NAMED = 5
"""Number of other places of an image that are named."""
JOINT = re.compile(r"([+-])(\d+(?:\.\d*)?|\.\d+)?", re.ASCII)
"""What joins two parts of a query: a sign, and the weight of the part after it if that is not 1."""
KIND = re.compile(r"(image|text|item|key):(.+)", re.DOTALL)
"""Part of a query that says what it is."""


@dataclass(frozen=True)
class _Query:
    """Query of `zoo search`, and the hits that are wanted.

    Attributes:
        parts: The parts of the query; an image is the path of its file.
        guessed: The words that are taken for texts because no file has that name.
    """

    parts: Sequence[QueryPart]
    guessed: Sequence[str]
    k: int
    labels: list[str]
    where: str | None
    group_by: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `search`, of a gallery and of a client alike. Raises `UsageError`."""
        # The filter's names and values are checked by what searches: a client needs none of a gallery's libraries.
        return {
            "query": self.parts,
            "k": self.k,
            "label": self.labels,
            "where": metadata_filter(self.where),
            "group_by": self.group_by,
            "fields": self.fields,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the query for `--json`."""
        if len(self.parts) > 1:
            return {"parts": [{**_described(part), "weight": part.weight} for part in self.parts]}
        return {"image": None, "id": None, **_described(self.parts[0])}

    def __post_init__(self) -> None:
        check_at_least("-k", self.k, 1)

    def __str__(self) -> str:
        words: list[str] = []
        for part in self.parts:
            ((kind, value),) = _described(part).items()
            sign = "-" if part.weight < 0 else "+" if words else ""
            weight = "" if abs(part.weight) == 1 else f"{abs(part.weight):g}"
            name = f"the {'item' if kind == 'id' else 'picture' if kind == 'image' else kind} {value!r}"
            words += [f"{sign}{weight}", name] if sign else [name]
        return " ".join(words)


def _described(part: QueryPart) -> dict[str, Any]:
    """Return what a part of a query is, by its name in JSON."""
    item = {"key" if isinstance(part.item, str) else "id": part.item}
    return next(
        {name: value} for name, value in {"image": part.image, "text": part.text, **item}.items() if value is not None
    )


@app.command(
    "search",
    context_settings={"ignore_unknown_options": True},  # such as -0.5
    epilog="""\
  zoo search gallery/ query.png -k 5
  zoo search gallery/ item:17 --json                    by an item of the gallery
  zoo search gallery/ key:cam-1/0001                    by your own key of an item
  zoo search gallery/ "a red chair"                     by a text, if the gallery's model has a text tower
  zoo search gallery/ query.png + red - leaves          like the picture, but red and without leaves
  zoo search gallery/ query.png +0.5 text:red -2 item:17        half as much of one, less of the other
  zoo search gallery/ query.png --label wren --where '{"year": {"gte": 1900, "lt": 1950}}'
  zoo search gallery/ query.png --group-by label        the nearest image of each label
  zoo search gallery/ query.png --fields price --fields colour
  zoo search --url http://127.0.0.1:3000 query.png --key-file key.txt
  zoo search --url http://127.0.0.1:3000 --collection birds query.png

A word is a picture if there is such a file, and else a text; image:, text:, item: and key: say what it is.""",
)
def search(
    gallery: Annotated[str | None, Argument(help="gallery folder; left out with --url")] = None,
    query: Annotated[
        list[str] | None,
        Argument(help="image file, text, item:ID or key:KEY to search by; several are joined by + and -"),
    ] = None,
    item: Annotated[int | None, Option("--id", help="search by this item of the gallery instead")] = None,
    key: Annotated[str | None, Option(metavar="KEY", help="search by the item of this key instead")] = None,
    text: Annotated[str | None, Option(help="search by a text, if the gallery's model has a text tower")] = None,
    k: Annotated[int, Option("-k", "--k", metavar="N", help="number of results")] = 10,
    label: Labels = None,
    where: Where = None,
    group_by: Annotated[
        str | None,
        Option(metavar="KEY", help="show only the nearest image of each label, or of each value of this metadata key"),
    ] = None,
    fields: Annotated[
        list[str] | None,
        Option("--fields", metavar="KEY", help="metadata to show of each result, or '*' for all; repeatable"),
    ] = None,
    url: Annotated[str | None, Option(help="search at this service (zoo serve) instead of in a folder")] = None,
    collection: Annotated[
        str | None, Option(metavar="NAME", help="collection to search, if the service has several")
    ] = None,
    key_file: Annotated[
        Path | None, Option(metavar="F", help="file with the service's key (default: the key in ZOO_SERVE_KEY)")
    ] = None,
    model: MovedModel = None,
    runtime: OptionalRuntime = None,
    precision: OptionalPrecision = None,
    as_json: Json = False,
) -> None:
    """find the images of a gallery nearest to an image, a text or several"""
    words = [word for word in (gallery, *(query or [])) if word is not None]
    if url is not None:
        if any(value is not None for value in (model, runtime, precision)):
            raise UsageError("with --url the service has the gallery and its model.", code="option-without-effect")
    elif key_file is not None or collection is not None:
        option = "--collection" if key_file is None else "--key-file"
        raise UsageError(f"{option} is for a service; name it with --url.", code="option-without-effect")
    elif not words:
        raise UsageError("name the gallery folder to search, or a service with --url.", code="missing-value")
    parts = _read_parts(words if url is not None else words[1:], item, key, text)
    asked = _Query(*parts, k, label or [], where, group_by, tuple(fields or ()))
    if len(asked.parts) > 1 or asked.guessed:
        note(f"searching by {asked}")
    try:
        if url is not None:
            results = _search_service(asked, url, collection, key_file)
        else:
            results = _search_folder(asked, words[0], model, runtime or "auto", precision or "fp32")
    except (NoTextTowerError, ServiceError) as error:
        if not asked.guessed or not _needs_texts(error):
            raise
        raise NoTextTowerError(f"{asked.guessed[0]!r} is not a file, and for a text: {error}") from None
    if as_json:
        print_json({"query": asked.to_json(), "results": [_result_json(result) for result in results]})
    else:
        _print_results(asked, results)


def _needs_texts(error: ZooError) -> bool:
    """Return whether a gallery or a service refuses texts."""
    return isinstance(error, NoTextTowerError) or error.code == "no_text_tower"


def _read_parts(
    words: Sequence[str], item: int | None, key: str | None, text: str | None
) -> tuple[list[QueryPart], list[str]]:
    """Return the parts of a query, and the words that are taken for texts because no file has that name.

    Every second word joins two parts, even where a file has its name: in `+ + -`, the first and the last are parts.

    Raises:
        UsageError: If nothing is searched by, or the words are not parts that signs join.
    """
    from serving.gallery.query import QueryPart

    if sum((bool(words), item is not None, key is not None, text is not None)) != 1:
        raise UsageError(
            "search needs an image file, a text or an item of the gallery: as words, or by --id, --key or --text; one "
            "of them.",
            code="missing-value",
        )
    if not words:
        return [QueryPart(item=item if key is None else key, text=text)], []
    signs = [JOINT.fullmatch(word) for word in words[1::2]]
    if len(words) % 2 == 0 or not all(signs):
        wrong = next((word for word, sign in zip(words[1::2], signs, strict=True) if not sign), None)
        reason = f"the query ends with {words[-1]!r}" if wrong is None else f"{wrong!r} is not a sign"
        raise UsageError(
            f"{reason}; expected parts that + or - join, perhaps with a weight: a.jpg + red -0.5 leaves. Words of one "
            "text are in quotation marks.",
            code="command-line",
        )
    weights = [1.0] + [float(f"{sign[1]}{sign[2] or 1}") for sign in signs if sign]
    kinds = [_kind_of(word) for word in words[::2]]
    parts = [QueryPart(**{kind: value}, weight=weight) for (kind, value), weight in zip(kinds, weights, strict=True)]
    guessed = [word for word, (kind, value) in zip(words[::2], kinds, strict=True) if kind == "text" and word == value]
    return parts, guessed


def _kind_of(word: str) -> tuple[str, Any]:
    """Return what a word of a query is, as an attribute of `QueryPart` and its value."""
    from zoo.data.images import SUFFIXES

    if named := KIND.fullmatch(word):
        kind, value = named.groups()
        if kind != "item":
            return "item" if kind == "key" else kind, value
        if not re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
            raise UsageError(f"item:{value} is not an item; ids are whole numbers.", code="invalid-value")
        return "item", int(value)
    is_path = Path(word).suffix.lower() in SUFFIXES or (" " not in word and ("/" in word or "\\" in word))
    return "image" if is_path or _exists(word) else "text", word


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # longer than names can be, or with a zero
        return False


def _check_image(image: object) -> None:
    """Check the first image of a search at a service. Raises `UsageError`."""
    if isinstance(image, str) and not Path(image).is_file():
        problem = "is a folder" if Path(image).is_dir() else "is not there"
        raise UsageError(f"{image} {problem}; with --url the first argument is what to search by.", code="not-found")


def _search_folder(query: _Query, gallery: str, model: str | None, runtime: str, precision: str) -> list[Hit]:
    from serving.galleries import Gallery

    arguments = query.arguments
    with Gallery(gallery, model, runtime, precision) as opened:
        return opened.search(**arguments)


def _search_service(query: _Query, url: str, collection: str | None, key_file: Path | None) -> Sequence[Hit]:
    from serving.client import Client

    key = None if key_file is None else _read_key(key_file)
    try:
        client = Client(url, key, collection=collection)
    except GalleryError as error:
        raise UsageError(f"--url: {error}", code="invalid-value") from None
    arguments = query.arguments
    _check_image(query.parts[0].image)
    with client:
        try:
            return client.search(**arguments)
        except ServiceError as error:
            if error.code == "name_a_collection":
                names = ", ".join(info.name for info in client.collections() if info.name) or "none that this key reads"
                message = f"{url} has several collections: name one with --collection NAME. They are: {names}."
            elif error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                message = f"{error} The command takes the key from --key-file or ZOO_SERVE_KEY."
            else:
                raise
            raise ServiceError(message, error.status, error.code) from None


def _read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        pass
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", code="unreadable-file") from None
    raise UsageError(f"{path} does not hold a key; keys consist of ASCII characters.", code="invalid-item")


def _print_results(query: _Query, results: Sequence[Hit]) -> None:
    columns = {
        "similarity": [f"{hit.similarity:.4f}" for hit in results],
        "p_same": [f"{hit.p_same:.2f}" for hit in results if hit.p_same is not None],  # all or none
        "label": [hit.label or "-" for hit in results],
        "source": [hit.source for hit in results],
        "key": [hit.key or "-" for hit in results],
        "id": [str(hit.id) for hit in results],
    }
    if not columns["p_same"]:
        del columns["p_same"]
    if all(hit.key is None for hit in results):
        del columns["key"]
    for field in dict.fromkeys(name for hit in results for name in hit.metadata or ()):
        columns[_column_name(field, columns)] = [_value_text((hit.metadata or {}).get(field)) for hit in results]
    rows = list(zip(*columns.values(), strict=True))
    print_table(Table(list(columns), rows, numbers=("similarity", "p_same", "id")))
    show(*(f"{hit.source}: also {_places(hit)}" for hit in results if hit.also))
    if results and results[-1].likely is False:
        likely = sum(1 for hit in results if hit.likely)
        after = f"after the first {likely:,}, nothing more is" if likely else "nothing is"
        note(f"{after} likely to show what the query shows.")
    if len(results) < query.k:
        condition = " of these labels and metadata" if query.labels or query.where else ""
        condition += " with another value" if query.group_by else ""
        note(f"{len(results):,} found and {query.k:,} asked for: the gallery holds no more{condition}.")


def _column_name(field: str, taken: Container[str]) -> str:
    return f"{field} (metadata)" if field in taken else field


def _value_text(value: Any) -> str:
    """Return a value of metadata for a table."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _places(hit: Hit) -> str:
    """Return where the image of a hit is besides, with keys and labels."""
    texts = []
    for other in hit.also[:NAMED]:
        place = "" if other.source == hit.source else f"at {other.source}"
        name = " ".join(filter(None, [place, other.key and f"with the key {other.key}"])) or f"as item {other.id}"
        texts.append(f"{name} ({other.label})" if other.label else name)
    return ", ".join(texts) + (f" and {len(hit.also) - NAMED:,} more" if len(hit.also) > NAMED else "")


def _result_json(result: Hit) -> dict[str, Any]:
    """Return a result without the score of re-ranking, which `zoo search` does not do, a missing group and metadata."""
    missing = {name for name in ("group", "metadata") if getattr(result, name) is None}
    return {name: value for name, value in asdict(result).items() if name not in {"rerank_score", *missing}}
