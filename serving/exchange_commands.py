"""`zoo gallery export` and `zoo gallery import`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli.command import Command
from zoo.cli.output import print_json


def _configure_export(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder")
    parser.add_argument("out", type=Path, help="new folder for items.parquet, index.faiss and model.json")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _export(args: Namespace) -> None:
    from serving.gallery.exchange import export_gallery

    items = export_gallery(args.gallery, args.out)
    if args.json:
        print_json({"out": str(args.out), "items": items})
    else:
        print(f"{args.out}: {items:,} items")


def _configure_import(parser: ArgumentParser) -> None:
    parser.add_argument("export", type=Path, help="folder that zoo gallery export has written")
    parser.add_argument("gallery", type=Path, help="gallery to make or add to")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _import(args: Namespace) -> None:
    from serving.gallery.exchange import import_gallery

    read, new = import_gallery(args.export, args.gallery)
    if args.json:
        print_json({"gallery": str(args.gallery), "read": read, "added": new})
    else:
        print(f"{args.gallery}: {new:,} added, {read - new:,} were there already")


EXPORT = Command(
    "write a gallery as Parquet and a plain FAISS index, which open without zoo",
    _configure_export,
    _export,
    "  zoo gallery export gallery/ copy/",
)
IMPORT = Command(
    "read an exported gallery back",
    _configure_import,
    _import,
    "  zoo gallery import copy/ gallery/        items get new ids, in the old order",
)
