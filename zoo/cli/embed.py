"""`zoo embed`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli import running, strict
from zoo.cli.command import Command


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, or the path of a model folder")
    parser.add_argument("images", type=Path, help="a folder of images, with all that lies below it, or one image")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="rows float32 [n, dim]: .npy or .safetensors"
    )
    parser.add_argument("--replace", action="store_true", help="overwrite files that are there")
    running.configure(parser)
    strict.configure(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> int:
    from zoo.cli.output import naming, note, print_json
    from zoo.datasets.folder import list_images
    from zoo.embedding_files import check_free, write_embeddings, written_with
    from zoo.errors import ImageError, UsageError
    from zoo.paths import expand

    args.images, args.out = expand(args.images), expand(args.out)
    _, table, *record = written_with(args.out)  # before anything takes time
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
        write_embeddings(args.out, rows, read, args.images, model)
    if args.json:
        files = {"embeddings": str(args.out), "table": str(table), "record": str(*record or [args.out])}
        left_out = [[str(paths[place]), str(error)] for place, error in unreadable.items()]
        print_json(
            {**files, "model": model.card.identity, "images": len(rows), "dim": model.dim, "unreadable": left_out}
        )
    else:
        beside = f"; whose they are: {record[0]}" if record else ""
        print(f"{len(rows):,} images, {model.dim} dimensions: {args.out}; their names and labels: {table}{beside}")
    return strict.status(args, unreadable)


COMMAND = Command(
    summary="write the embeddings of a folder of images to a file",
    configure=_configure,
    run=_run,
    examples="""\
  zoo embed margin-conv4-glyphs pictures --out rows.npy    and rows.csv: path,label, a line a row; rows.json: whose
  zoo score rows.npy --labels rows.csv                     the label is the folder that an image lies in
  zoo embed mine pictures --out rows.npy --runtime onnx --precision int8
  zoo embed mine pictures --out rows.safetensors           with labels, and whose they are, in the file; and rows.csv
Images that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
)
