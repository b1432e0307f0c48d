"""`zoo gallery export` and `zoo gallery import`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli.command import Command
from zoo.console import print_json
from zoo.errors import UsageError


def _configure_export(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder")
    parser.add_argument(
        "out", nargs="?", type=Path, help="new folder for items.parquet, index.faiss, marks.parquet and model.json"
    )
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="write the marked results as training pairs: a .csv or .parquet file"
    )
    parser.add_argument("--replace", action="store_true", help="write over a file of --pairs that is there already")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _export(args: Namespace) -> None:
    from serving.gallery.pairs import check_file

    if args.out is None and args.pairs is None:
        raise UsageError("say where to: a new folder for all of the gallery, or --pairs FILE for the marked results.")
    if args.pairs is not None:
        check_file(args.pairs, args.replace)
    elif args.replace:
        raise UsageError("--replace is for the file of --pairs; a whole gallery is written into a new folder.")
    items = None if args.out is None else _export_gallery(args.gallery, args.out)
    pairs = None if args.pairs is None else _export_pairs(args.gallery, args.pairs)
    if args.json:
        told = {"out": args.out and str(args.out), "items": items}
        print_json(told if pairs is None else {**told, "pairs_file": str(args.pairs), "pairs": pairs})
        return
    if items is not None:
        print(f"{args.out}: {items:,} items")
    if pairs is not None:
        print(f"{args.pairs}: {pairs:,} marked pairs")


def _export_gallery(gallery: Path, out: Path) -> int:
    from serving.gallery.exchange import export_gallery

    return export_gallery(gallery, out)


def _export_pairs(path: Path, file: Path) -> int:
    from serving.gallery import Gallery
    from serving.gallery.pairs import export_pairs

    there = file.parent.is_dir()
    with Gallery.open(path) as gallery:
        count = export_pairs(gallery, file)
    if not there:
        print(f"zoo: made the folder {file.parent}, which was not there.", file=sys.stderr)
    if not count:
        print(
            f"zoo: {file} holds no pairs, as no result of {path} was marked yet. Mark some on the page of zoo serve, "
            "or with POST /feedback.",
            file=sys.stderr,
        )
    return count


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
    """  zoo gallery export gallery/ copy/
  zoo gallery export gallery/ --pairs pairs.csv
Of each pair that was marked right or wrong the file says query_source, query_sha256, query_item, query_label, the same
four of the result, same (1 right, 0 wrong), similarity, model and marked_at.""",
)
IMPORT = Command(
    "read an exported gallery back",
    _configure_import,
    _import,
    "  zoo gallery import copy/ gallery/        items get new ids, in the old order",
)
