"""The options --label and --where: which items a command is about."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from serving.json_option import json_object

if TYPE_CHECKING:
    from serving.gallery import Gallery
    from serving.gallery.filters import Filter

EXAMPLE = '{"colour": "red", "year": {"gte": 1900, "lt": 1950}}'


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--label", action="append", default=[], help="only items of this label; may be given again")
    parser.add_argument(
        "--where",
        metavar="JSON",
        help=f"only items whose metadata is so, as {EXAMPLE}: a value, one of a list, or a range (gt, gte, lt, lte)",
    )


def chosen(args: Namespace) -> Filter:
    """Raises `UsageError`."""
    from serving.gallery.filters import Filter

    return Filter(tuple(args.label), where(args))


def where(args: Namespace) -> dict[str, Any]:
    """What --where says, unchecked but for being an object. Raises `UsageError`."""
    return {} if args.where is None else json_object(args.where, "--where", EXAMPLE)


def note(gallery: Gallery, chosen: Filter, found: bool) -> None:
    """Say on stderr which of the labels no item has, and, where nothing was found, which key."""
    from serving.gallery.hints import notes

    for one in notes(gallery, chosen, found):
        print(f"zoo: {one[:1].lower()}{one[1:]}", file=sys.stderr)
