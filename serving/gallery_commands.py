"""The subcommands of `zoo gallery` that look after what a gallery holds."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving import choosing, runtimes
from serving.confirming import and_marks, confirmed, marked
from serving.json_option import json_object
from zoo.cli.command import Command, CommandGroup
from zoo.console import one_line, print_json, print_table, printable
from zoo.errors import ItemNotFoundError, UsageError, nearest

if TYPE_CHECKING:
    from serving.gallery import Gallery
    from serving.gallery.image_files import ImageFile
    from serving.gallery.items import IndexStats

MARKS = {True: "ok", False: "FAILED", None: "not checked"}


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _configure_add(parser: ArgumentParser) -> None:
    _configure(parser)
    parser.add_argument("images", nargs="+", type=Path, help="image files; for a whole folder use zoo index")
    parser.add_argument("--label", help="the label of all of them (default: none)")
    parser.add_argument("--metadata", metavar="JSON", default="{}", help="a JSON object to store with each of them")
    parser.add_argument(
        "--update", action="store_true", help="give the label and the metadata to images that are there already as well"
    )
    parser.add_argument("--model", help="name or folder of the gallery's model, if it has moved")
    runtimes.configure(parser)


def _add(args: Namespace) -> int:
    from serving.gallery import Gallery
    from serving.gallery.builder import add_files

    files = _files(args)
    with Gallery.open(args.gallery) as gallery:
        embedder = runtimes.loaded(args.model or gallery.model_ref, args)
        report = add_files(gallery, embedder, files, progress=sys.stderr.isatty(), update=args.update)
    if args.json:
        print_json(report.to_json())
    else:
        for source, reason in report.unreadable:
            print(printable(f"left out {source}: {reason}"))
        for source, known, label in report.differing:
            what = "it is as given now" if args.update else "it stays as it is; --update changes it"
            print(f"{source}: already there as {known} with {f'label {label}' if label else 'no label'}; {what}")
        print(f"{report.added:,} added, {report.already_there:,} were there already; {report.items:,} items")
    return 1 if report.unreadable else 0


def _files(args: Namespace) -> list[ImageFile]:
    """The images with what all of them are given. Raises one `UsageError` for all that is wrong with the words."""
    from serving.gallery.image_files import named_images

    wrong: list[str] = []
    metadata: dict[str, Any] = {}
    files: list[ImageFile] = []
    try:
        metadata = _metadata(args.metadata)
    except UsageError as error:
        wrong.append(str(error))
    try:
        files = named_images(args.images, args.label, metadata)
    except UsageError as error:
        wrong.append(str(error))
    if wrong:
        raise UsageError(" ".join(wrong))
    return files


def _metadata(text: str) -> dict[str, Any]:
    from serving.gallery.rows import json_of

    value = json_object(text, "--metadata", '{"year": 1908}')
    try:
        json_of(value)
    except ValueError as error:
        raise UsageError(f"--metadata cannot be kept: {error}.") from None
    return value


def _configure_remove(parser: ArgumentParser) -> None:
    _configure(parser)
    parser.add_argument("ids", nargs="*", type=int, metavar="ID", help="ids of items, as zoo gallery list shows them")
    parser.add_argument("--label", help="all items of this label instead")
    parser.add_argument("--yes", action="store_true", help="with --label: do not ask first")


def _remove(args: Namespace) -> int:
    from serving.gallery import Gallery

    if bool(args.ids) == (args.label is not None):
        raise UsageError("name the ids of items, or a label with --label; one of the two.")
    with Gallery.open(args.gallery) as gallery:
        ids = args.ids or _ids_of_label(gallery, args.label, args.yes)
        marks = gallery.marks.of_items(ids)
        removed, items = gallery.remove(ids), gallery.count()
    absent = len(set(ids)) - removed
    if args.json:
        print_json({"removed": removed, "not_there": absent, "items": items, "marks_removed": marks})
    else:
        went = f"; {marked(marks)} went with them" if marks else ""
        print(f"{removed:,} removed, {absent:,} were not there; {items:,} items{went}")
    return ItemNotFoundError.exit_code if absent else 0


def _ids_of_label(gallery: Gallery, label: str, yes: bool) -> list[int]:
    """The ids of all items of a label, once it is sure that they are to go."""
    of_items = gallery.labels()
    ids = [item for item, own in of_items.items() if own == label]
    if not ids:
        known = {own for own in of_items.values() if own is not None}
        raise ItemNotFoundError(f"no item has the label {label!r}.{nearest(label, known)}")
    if yes:
        return ids
    items = "1 item" if len(ids) == 1 else f"{len(ids):,} items"
    what = f"{items} of the label {label!r}{and_marks(gallery.marks.of_items(ids))}"
    if not sys.stdin.isatty():
        raise UsageError(f"{what} would be removed, out of {len(of_items):,}. Say --yes if they are to go.")
    if not confirmed(f"Remove {what}, out of {len(of_items):,}?"):
        raise UsageError("nothing was removed.")
    return ids


def _configure_list(parser: ArgumentParser) -> None:
    _configure(parser)
    choosing.configure(parser)
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="leave out the first N")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="show at most N, default 50; 0 for all")


def _list(args: Namespace) -> None:
    from serving.gallery import Gallery

    if args.offset < 0 or args.limit < 0:
        raise UsageError("--offset and --limit are not negative.")
    chosen = choosing.chosen(args)
    with Gallery.open(args.gallery) as gallery:
        items, total = gallery.items(args.offset, args.limit or -1, None, chosen), gallery.count(None, chosen)
        choosing.note(gallery, chosen, total > 0)
    if args.json:
        print_json({"total": total, "items": [asdict(item) for item in items]})
        return
    rows = [(str(item.id), item.label or "-", item.source, item.added_at) for item in items]
    print_table(("id", "label", "source", "added"), rows, numbers=("id",))
    if len(items) < total:
        print(f"{len(items):,} of {total:,}")


def _stats(args: Namespace) -> None:
    from serving.gallery import Gallery
    from serving.gallery.backends import backend_of
    from serving.gallery.hints import untuned

    with Gallery.open(args.gallery) as gallery:
        index, stats, marks = gallery.index_stats(), gallery.stats(), gallery.marks.counts()
        backend, hint = backend_of(args.gallery), untuned(gallery)
        facts = {**asdict(stats), "model": gallery.card.name, "fingerprint": gallery.card.fingerprint}
        other = gallery.other_model()
        facts["other_model"] = {"name": other[0].name, "role": other[1]} if other else None
    if args.json:
        print_json(
            {
                **facts,
                "dim": gallery.card.dim,
                "metric": "cosine",
                "index": {**asdict(index), "hint": hint},
                "marks": asdict(marks),
            }
        )
        return
    print(f"{stats.items:,} items of {stats.labels:,} labels, at change {stats.change:,}")
    print(f"embedded by {gallery.card.name} ({gallery.card.fingerprint[:12]}), {gallery.card.dim} numbers, cosine")
    print(f"index: {index.kind}" + (f", effort {index.effort}, shortlist {index.shortlist} k" if index.effort else ""))
    if index.recall is not None:
        print(f"finds {index.recall:.4f} of the {index.k} nearest, {index.milliseconds} ms a search when measured")
    print(_where(index, backend))
    if hint:
        print(hint)
    if other:
        way = "zoo gallery rollback" if other[1] == "replaced" else "zoo gallery rebuild"
        print(f"has embeddings by {other[0].name} as well: {way} {args.gallery}")
    if marks.total:
        print(f"marked results: {marks.right:,} right, {marks.wrong:,} wrong")


def _where(index: IndexStats, backend: str) -> str:
    if index.kind == "milvus":
        return f"{index.frozen:,} vectors in {backend}, which searches them by an index of its own choice"
    size = index.bytes / 2**20
    return f"{index.frozen:,} vectors on disk ({size:,.1f} MiB), {index.waiting:,} changes wait beside it"


def _compact(args: Namespace) -> None:
    from serving.gallery import Gallery

    with Gallery.open(args.gallery) as gallery:
        facts, items = gallery.compact(), gallery.count()
    if args.json:
        print_json(asdict(facts) if facts else None)
    elif facts:
        print(f"{facts.count:,} vectors in a new {facts.setting.kind} index, in {facts.seconds:.1f} s")
    else:
        print("Milvus holds what the store does" if items else "the gallery is empty; it needs no index")


def _verify(args: Namespace) -> int:
    from serving.gallery.verification import verify_gallery

    checks = list(verify_gallery(args.gallery))
    if args.json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            print(f"{MARKS[check.ok]:<12}{check.name:<14}{one_line(check.detail)}")
    return 1 if any(check.ok is False for check in checks) else 0


GALLERY = CommandGroup("look after a gallery: its items, its index, its copies", "zoo.gallery.commands")
ADD = Command(
    "add single images to a gallery",
    _configure_add,
    _add,
    """  zoo gallery add gallery/ new.jpg --label wren
  zoo gallery add gallery/ *.png --metadata '{"year": 1908}'
The exit status is 1 where an image could not be read.""",
)
REMOVE = Command(
    "remove items from a gallery",
    _configure_remove,
    _remove,
    """  zoo gallery remove gallery/ 17 18        the exit status is 2 where one of them was not there
  zoo gallery remove gallery/ --label wren --yes""",
)
LIST = Command(
    "list the items of a gallery",
    _configure_list,
    _list,
    "  zoo gallery list gallery/ --label wren\n"
    '  zoo gallery list gallery/ --where \'{"year": {"gte": 1900}}\'\n'
    "  zoo gallery list gallery/ --limit 0 --json",
)
STATS = Command(
    "how much a gallery holds, and how it is searched",
    _configure,
    _stats,
    "  zoo gallery stats gallery/",
)
COMPACT = Command(
    "write a gallery's index anew, with all that came and went since",
    _configure,
    _compact,
    "  zoo gallery compact gallery/        searches and writes of other processes go on meanwhile",
)
VERIFY = Command(
    "check a gallery: the database, the index against it, searches against exact search",
    _configure,
    _verify,
    "  zoo gallery verify gallery/        one line a check; the exit status is 1 when any fails",
)
