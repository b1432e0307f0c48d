"""`zoo search`: in a gallery folder, or at a service."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving import choosing, runtimes
from zoo.cli.command import Command
from zoo.console import print_json, print_table
from zoo.errors import GalleryError, ServiceError, UsageError

if TYPE_CHECKING:
    from serving.client import Match
    from serving.gallery import Hit
    from serving.gallery.filters import Filter
    from serving.searcher import Searcher


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", nargs="?", help="gallery folder; left out with --url")
    parser.add_argument("image", nargs="?", help="image file to search with")
    parser.add_argument("--id", type=int, help="search with this item of the gallery instead of an image")
    parser.add_argument("--text", help="search by words, where the gallery's model has a text tower")
    parser.add_argument("-k", "--k", type=int, default=10, metavar="N", help="how many to find, default 10")
    choosing.configure(parser)
    parser.add_argument("--url", help="search at this service (zoo serve) instead of in a folder")
    parser.add_argument("--collection", metavar="NAME", help="the collection to search, of a service with several")
    parser.add_argument(
        "--key-file", type=Path, metavar="F", help="file with the service's key; default: ZOO_SERVE_KEY, if it is set"
    )
    parser.add_argument("--model", help="name or folder of the gallery's model, if it has moved")
    parser.add_argument("--runtime", choices=("onnx", "torch"), help="default: onnx")
    parser.add_argument("--precision", metavar="P", help=runtimes.PRECISION)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def _run(args: Namespace) -> None:
    if args.k < 1:
        raise UsageError(f"k must be at least 1, not {args.k}; without -k it is 10.")
    if args.url is not None:
        image = _image_for_service(args)
        _print(args, image, _at_service(args, image))
    elif args.key_file is not None or args.collection is not None:
        word = "--collection" if args.key_file is None else "--key-file"
        raise UsageError(f"{word} is for a service; name it with --url.")
    elif args.gallery is None:
        raise UsageError("name the gallery folder to search, or a service with --url.")
    else:
        _check_query(args.image, args)
        _print(args, args.image, _in_folder(args))


def _in_folder(args: Namespace) -> list[Hit]:
    from serving.models import Models
    from serving.searcher import Searcher

    chosen = choosing.chosen(args)
    searcher = Searcher.open(args.gallery, args.model, models=Models(args.runtime or "onnx", args.precision or "fp32"))
    try:
        hits = _hits(searcher, args, chosen)
        choosing.note(searcher.gallery, chosen, bool(hits))
        return hits
    finally:
        searcher.close()


def _hits(searcher: Searcher, args: Namespace, chosen: Filter) -> list[Hit]:
    if args.text is not None:
        return _by_text(searcher, args, chosen)
    if args.id is not None:
        return searcher.by_item(args.id, args.k, chosen)
    return searcher.by_image(args.image, args.k, chosen)


def _by_text(searcher: Searcher, args: Namespace, chosen: Filter) -> list[Hit]:
    found, truncated = searcher.by_text(args.text, args.k, chosen)
    if truncated:
        print("zoo: the text is longer than the model reads; its end was left out.", file=sys.stderr)
    return found


def _at_service(args: Namespace, image: str | None) -> list[Match]:
    from serving.client import Client

    key = None if args.key_file is None else _key_in(args.key_file)
    try:
        client = Client(args.url, key, collection=args.collection)
    except GalleryError as error:
        raise UsageError(f"--url: {error}") from None
    with client:
        try:
            # The service checks the filter: a client needs nothing that a gallery does.
            return client.search(
                image, item=args.id, text=args.text, k=args.k, labels=args.label, where=choosing.where(args)
            )
        except ServiceError as error:
            if error.status not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise
            told = f"{error} Here the key comes from --key-file or ZOO_SERVE_KEY."
            raise ServiceError(told, error.status, error.code) from None


def _image_for_service(args: Namespace) -> str | None:
    """With --url the first word is the image."""
    of_folder = (args.image, args.model, args.runtime, args.precision)
    if any(one is not None for one in of_folder):
        raise UsageError("with --url the service has the gallery and its model; give an image, --id or --text alone.")
    image: str | None = args.gallery
    _check_query(image, args)
    if image is not None and not Path(image).is_file():
        what = "is a folder" if Path(image).is_dir() else "is not there"
        raise UsageError(f"{image} {what}; with --url the first word is the image file to search with.")
    return image


def _check_query(image: str | None, args: Namespace) -> None:
    if sum(query is not None for query in (image, args.id, args.text)) != 1:
        raise UsageError("search needs an image file, --id with an item of the gallery, or --text; one of the three.")


def _key_in(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        pass
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    raise UsageError(f"{path} holds no key of a service; keys are of ASCII characters.")


def _print(args: Namespace, image: str | None, found: list[Hit] | list[Match]) -> None:
    if args.json:
        query = {"image": image, "id": args.id, **({} if args.text is None else {"text": args.text})}
        print_json({"query": query, "results": [_as_json(one) for one in found]})
        return
    rows = [(f"{one.similarity:.4f}", one.label or "-", one.source, str(one.id)) for one in found]
    print_table(("similarity", "label", "source", "id"), rows, numbers=("similarity", "id"))
    if len(found) < args.k:
        of = " of these labels and metadata" if args.label or args.where else ""
        print(f"zoo: {len(found):,} found and {args.k:,} asked for: the gallery holds no more{of}.", file=sys.stderr)


def _as_json(found: Hit | Match) -> dict[str, Any]:
    """Nothing is re-ranked here."""
    return {name: value for name, value in asdict(found).items() if name != "rerank_score"}


SEARCH = Command(
    "find the images of a gallery nearest to an image or a text",
    _configure,
    _run,
    """\
  zoo search gallery/ query.png -k 5
  zoo search gallery/ --id 17 --json
  zoo search gallery/ --text "a red chair"
  zoo search gallery/ query.png --label wren --where '{"year": {"gte": 1900, "lt": 1950}}'
  zoo search --url http://127.0.0.1:3000 query.png --key-file key.txt
  zoo search --url http://127.0.0.1:3000 --collection birds query.png""",
)
