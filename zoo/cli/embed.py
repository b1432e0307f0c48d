"""`zoo embed`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from zoo.cli import running, strict
from zoo.cli.command import Command


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, or the path of a model folder")
    parser.add_argument(
        "images",
        type=Path,
        help="a folder of images, with all that lies below it, a table of them (CSV: image,label), or one image",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="rows float32 [n, dim]: .npy or .safetensors"
    )
    parser.add_argument("--replace", action="store_true", help="overwrite files that are there")
    running.configure(parser)
    strict.configure(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> int:
    from zoo.console import note_left_out, print_json, write_errors
    from zoo.embedding_files import check_free, write_embeddings, written_with
    from zoo.errors import ImageError, UsageError, none_readable
    from zoo.paths import expand

    args.images, args.out = expand(args.images), expand(args.out)
    _, table, *record = written_with(args.out)  # before anything takes time
    if _is_same(table, args.images):
        raise UsageError(f"{table} is the table of images, and would be overwritten; name another --out.")
    if not args.replace:
        check_free(args.out)
    paths, about = _listed(args.images)
    model = running.loaded(args)
    rows, unreadable = model.embed_readable(paths, args.batch_size, progress=sys.stderr.isatty())
    note_left_out(unreadable.values())
    if not len(rows):
        raise ImageError(none_readable(len(paths), unreadable[0]))
    with write_errors(args.out):
        write_embeddings(args.out, rows, [said for place, said in enumerate(about) if place not in unreadable], model)
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


def _listed(place: Path) -> tuple[list[Path], list[dict[str, str]]]:
    """The images, and what the table beside the rows says of each: its path and label, of a table all that it says."""
    from zoo.datasets import table
    from zoo.datasets.folder import list_images
    from zoo.errors import UsageError

    if table.is_table(place):
        rows = table.read(place)
        return [table.place_of(place, row[table.IMAGE]) for row in rows], [_of_row(row) for row in rows]
    root, paths = (place.parent, [place]) if place.is_file() else (place, list_images(place))
    if not paths:
        raise UsageError(f"{place} holds no images.")
    return paths, [_of_path(path.relative_to(root)) for path in paths]


def _of_row(row: Mapping[str, str]) -> dict[str, str]:
    from zoo.datasets.table import IMAGE, PATH

    return {PATH: row[IMAGE], **{name: cell for name, cell in row.items() if name != IMAGE}}


def _of_path(below: Path) -> dict[str, str]:
    """The label is the folder that the image lies in, if it lies in one."""
    from zoo.datasets.table import LABEL, PATH

    return {PATH: below.as_posix(), LABEL: "" if below.parent == Path() else below.parent.as_posix()}


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


COMMAND = Command(
    summary="write the embeddings of a folder or table of images to a file",
    configure=_configure,
    run=_run,
    examples="""\
  zoo embed margin-conv4-glyphs pictures --out rows.npy    and rows.csv: path,label, a line a row; rows.json: whose
  zoo score rows.npy --labels rows.csv                     the label is the folder that an image lies in
  zoo embed mine pictures --out rows.npy --runtime onnx --precision int8
  zoo embed mine birds.csv --out rows.npy                  image,label: rows.csv has its labels, split and query, too
  zoo embed mine pictures --out rows.safetensors           with labels, and whose they are, in the file; and rows.csv
Images that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
)
