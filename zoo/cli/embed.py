"""`zoo embed`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli import running
from zoo.cli.command import Command


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, or the path of a model folder")
    parser.add_argument("images", type=Path, help="a folder of images, with all that lies below it, or one image")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="rows float32 [n, dim]: FILE.npy")
    parser.add_argument("--replace", action="store_true", help="overwrite FILE.npy and FILE.csv")
    running.configure(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 where an image could not be read")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> int:
    from zoo.cli.output import naming, note, print_json
    from zoo.datasets.folder import list_images
    from zoo.embedding_files import check_free, table_of, write_embeddings
    from zoo.errors import ImageError, UsageError
    from zoo.paths import expand

    args.images, args.out = expand(args.images), expand(args.out)
    table = table_of(args.out)  # before anything takes time
    if not args.replace:
        check_free(args.out)
    paths = [args.images] if args.images.is_file() else list_images(args.images)
    if not paths:
        raise UsageError(f"{args.images} holds no images.")
    model = running.loaded(args)
    rows, unreadable = model.embed_readable(paths, args.batch_size, progress=sys.stderr.isatty())
    for error in unreadable.values():  # which name their images
        note(f"left out: {error}")
    if not len(rows):
        raise ImageError(f"none of the {len(paths):,} images could be read; nothing was written.")
    read = [path for place, path in enumerate(paths) if place not in unreadable]
    with naming(args.out):
        write_embeddings(args.out, rows, read, args.images)
    told = {"embeddings": str(args.out), "table": str(table), "images": len(rows), "dim": model.dim}
    if args.json:
        print_json({**told, "unreadable": [[str(paths[place]), str(error)] for place, error in unreadable.items()]})
    else:
        print(f"{len(rows):,} images, {model.dim} dimensions: {args.out}; their names and labels: {table}")
    return 1 if args.strict and unreadable else 0


COMMAND = Command(
    summary="write the embeddings of a folder of images to a file",
    configure=_configure,
    run=_run,
    examples="""\
  zoo embed margin-conv4-glyphs pictures --out rows.npy    and rows.csv: path,label, a line a row
  zoo score rows.npy --labels rows.csv                     the label is the folder that an image lies in
  zoo embed mine pictures --out rows.npy --runtime onnx --precision int8
Images that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
)
