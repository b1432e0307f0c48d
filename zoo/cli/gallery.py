"""The items of a gallery: `zoo gallery add`, `remove`, `list`, `stats`, `compact`, `verify`, `export` and `import`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from zoo.cli.index import copy_lines
from zoo.cli.options import (
    GalleryAddress,
    GalleryFolder,
    Json,
    Labels,
    MovedModel,
    Precision,
    Runtime,
    Where,
    Yes,
    confirm,
    item_filter,
    json_object,
    print_outcome,
)
from zoo.console import count, one_line, print_json, print_table, show
from zoo.errors import ImageError, ItemNotFoundError, UsageError, command
from zoo.render import Table

if TYPE_CHECKING:
    from serving.galleries import AddReport, Gallery
    from serving.gallery.types import IndexStats


app = typer.Typer()

NAMED = 5
"""Copies that a warning names."""

OUTCOMES = {True: "ok", False: "FAILED", None: "not checked"}


@app.command(
    "add",
    epilog="""\
  zoo gallery add gallery/ new.jpg --label wren
  zoo gallery add gallery/ *.png --metadata '{"year": 1908}'
  zoo gallery add gallery/ new.jpg --key cam-1/0001 --label wren      replaces what the key had
The exit status is 1 where an image could not be read.""",
)
def add(
    gallery: GalleryAddress,
    images: Annotated[list[Path], Argument(help="image files; for a whole folder use zoo index")],
    label: Annotated[str | None, Option(help="the label of all these images (default: none)")] = None,
    metadata: Annotated[
        str | None, Option(metavar="JSON", help="a JSON object to store with each image (default: none)")
    ] = None,
    key: Annotated[
        str | None,
        Option(help="create or replace the item with this key, your own name of it; only for a single image"),
    ] = None,
    update: Annotated[
        bool, Option("--update", help="give the label and the metadata also to images that are already there")
    ] = False,
    model: MovedModel = None,
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    as_json: Json = False,
) -> int:
    """add single images to a gallery"""
    from serving.galleries import Gallery

    if key is not None and (update or len(images) > 1):
        raise UsageError(
            "--key is for a single image, whose label and metadata it always gives to the item; leave out --update and "
            "the other images.",
            code="conflicting-options",
        )
    values = None if metadata is None else json_object(metadata, "--metadata", '{"year": 1908}')
    with Gallery(gallery, model, runtime, precision) as opened:
        if key is not None:
            return _put(opened, key, images[0], label, values, as_json)
        report = opened.add(images, label, values, update=update, progress=True)
    print_outcome(as_json, asdict(report), *_added_lines(report, update))
    return 1 if report.unreadable else 0


def _put(
    gallery: Gallery, key: str, image: Path, label: str | None, metadata: dict[str, Any] | None, as_json: bool
) -> int:
    try:
        result = gallery.put(key, image, label, metadata)
    except ImageError as error:
        print_outcome(as_json, {"key": key, "error": str(error)}, f"left out {image}: {error}")
        return 1
    lines = [f"{image}: {text}" for text in result.notes]
    facts = {"key": key, **asdict(result), "items": len(gallery)}
    print_outcome(as_json, facts, *lines, f"{key}: {result.status}, as item {result.id}")
    return 0


def _added_lines(report: AddReport, update: bool) -> Iterator[str]:
    from serving.gallery.image_files import report_notes

    for source, reason in report.unreadable:
        yield f"left out {source}: {reason}"
    yield from report_notes(report)
    for source, item, label in report.differing:
        outcome = "it is as given now" if update else "it keeps what it has; --update changes it"
        yield f"{source}: already there as {item} with {f'label {label}' if label else 'no label'}; {outcome}"
    yield from copy_lines(report)
    for copy in report.near_duplicates:
        of = ", ".join(map(str, copy["of"][:NAMED])) + (", ..." if len(copy["of"]) > NAMED else "")
        yield f"{copy['source']}: added as {copy['id']}; it looks like a copy of {of}"
    replaced = f", {count(report.replaced, 'has', 'have')} another image now" if report.replaced else ""
    described = f", {report.updated:,} got a label or metadata" if report.updated else ""
    there = f"{report.already_there:,} already there{replaced}{described}"
    yield f"{report.added:,} added, {there}; {count(report.items, 'item')}"


@app.command(
    "remove",
    epilog="""\
  zoo gallery remove gallery/ 17 18        the exit status is 2 where one of them was not there
  zoo gallery remove gallery/ --key cam-1/0001
  zoo gallery remove gallery/ --label wren --yes""",
)
def remove(
    gallery: GalleryAddress,
    ids: Annotated[
        list[int] | None, Argument(metavar="ID", help="ids of items, as zoo gallery list shows them")
    ] = None,
    label: Annotated[str | None, Option(help="remove all items of this label instead")] = None,
    key: Annotated[
        list[str] | None, Option(help="remove the item with this key instead; repeat it for several")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """remove items from a gallery"""
    from serving.galleries import Gallery

    if bool(ids) + bool(key) + (label is not None) != 1:
        message = "name the ids of items, their keys with --key, or a label with --label; one of the three."
        raise UsageError(message, code="conflicting-options")
    named: list[int] | list[str] = ids or key or []
    with Gallery(gallery) as opened:
        if label is not None and not yes:
            _confirm_removal(opened, label)
        removed, items = opened.remove(named, label=label), len(opened)
    unknown = 0 if label is not None else len(set(named)) - removed
    facts = {"removed": removed, "not_there": unknown, "items": items}
    stays = ". zoo index does not bring them back without --readd" if removed else ""
    print_outcome(as_json, facts, f"{removed:,} removed, {unknown:,} not there; {count(items, 'item')}{stays}")
    return ItemNotFoundError.exit_code if unknown else 0


def _confirm_removal(gallery: Gallery, label: str) -> None:
    """Ask the person at the terminal whether to remove the items of a label, if there are any."""
    items = gallery.count(label)
    removal = f"{count(items, 'item')} of the label {label!r}"
    if items and not sys.stdin.isatty():
        raise UsageError(
            f"{removal} would be removed, out of {len(gallery):,}. Add --yes to remove them without a question.",
            code="not-confirmed",
        )
    if items and not confirm(f"Remove {removal}, out of {len(gallery):,}?"):
        raise UsageError("nothing was removed.", code="not-confirmed")


@app.command(
    "list",
    epilog="""\
  zoo gallery list gallery/ --label wren
  zoo gallery list gallery/ --where '{"year": {"gte": 1900}}'     the table has a column year
  zoo gallery list gallery/ --limit 0 --json""",
)
def list_items(
    gallery: GalleryAddress,
    label: Labels = None,
    where: Where = None,
    offset: Annotated[int, Option(metavar="N", help="leave out the first N items")] = 0,
    limit: Annotated[int, Option(metavar="N", help="show at most N items; 0 for all")] = 50,
    as_json: Json = False,
) -> None:
    """list the items of a gallery"""
    from serving.galleries import Gallery

    selection = item_filter(label, where)
    with Gallery(gallery) as opened:
        items = opened.items(selection.labels, selection.where, offset=offset, limit=limit)
        total = opened.count(selection.labels, selection.where)
    if as_json:
        print_json({"total": total, "items": [asdict(item) for item in items]})
        return
    names = tuple(selection.where)
    keyed = ["key"] if any(item.key is not None for item in items) else []
    rows = [
        [
            str(item.id),
            *[item.key or "-" for _ in keyed],
            item.label or "-",
            *(_cell(item.metadata.get(name)) for name in names),
            item.source,
            item.added_at,
        ]
        for item in items
    ]
    print_table(Table(("id", *keyed, "label", *names, "source", "added"), rows, numbers=("id",)))
    if len(items) < total:
        show(f"{len(items):,} of {total:,}")


def _cell(value: Any) -> str:
    """Return a value of the metadata for a table."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@app.command("stats", epilog="  zoo gallery stats gallery/")
def stats(gallery: GalleryAddress, as_json: Json = False) -> None:
    """show the size of a gallery and its index"""
    from serving.galleries import Gallery

    with Gallery(gallery) as opened:
        facts, index, other = opened.stats(), opened.vectors.index.stats(), opened.vectors.other_model()
    if as_json:
        print_json(facts)
        return
    show(f"{count(facts['items'], 'item')} of {count(facts['labels'], 'label')}, at change {facts['change']:,}")
    show(f"embedded by {facts['model']} ({facts['fingerprint'][:12]}), {facts['dim']} numbers, cosine")
    _print_index(index, gallery)
    if facts["calibration"]:
        show(*_calibration_lines(facts["calibration"]))
    if hint := facts["index"]["hint"]:
        show(hint)
    if other:
        words = ("rollback", gallery) if other[2] == "replaced" else ("rebuild", gallery, "--model", other[1])
        show(f"has embeddings by {other[0].name} as well: {command('gallery', *words)}")


def _calibration_lines(calibration: dict[str, Any]) -> Iterator[str]:
    from serving.gallery.types import Attribution

    error = "not measured" if calibration["error"] is None else f"{calibration['error']:.4f}"
    yield f"p_same: fitted to {count(calibration['pairs'], 'pair')}, mean error on labels outside the fit: {error}"
    yield f"measured on {Attribution.from_json(calibration['measured']).text}"


def _print_index(index: IndexStats, gallery: str) -> None:
    show(f"index: {index.kind}" + (f", effort {index.effort}, shortlist {index.shortlist} k" if index.effort else ""))
    if index.measured is not None:
        show(f"finds {index.recall:.4f} of the {index.k} nearest, {index.milliseconds} ms per search when measured")
        show(f"measured on {index.measured.text}")
    if index.kind == "milvus":
        show(f"{count(index.frozen, 'item')} in {gallery}, which Milvus searches")
    else:
        size = index.bytes / 2**20
        waiting = f"{count(index.waiting, 'change')} {'waits' if index.waiting == 1 else 'wait'}"
        show(f"{count(index.frozen, 'vector')} on disk ({size:,.1f} MiB), {waiting} beside it")


@app.command(
    "compact", epilog="  zoo gallery compact gallery/        searches and writes of other processes go on meanwhile"
)
def compact(gallery: GalleryFolder, as_json: Json = False) -> None:
    """rewrite a gallery's index with all changes since"""
    from serving.galleries import Gallery

    with Gallery(gallery) as opened:
        facts = opened.compact()
    if facts:
        line = f"{count(facts.count, 'vector')} in a new {facts.setting.kind} index, in {facts.seconds:.1f} s"
    else:
        line = "the gallery is empty; it needs no index"
    print_outcome(as_json, asdict(facts) if facts else None, line)


@app.command(
    "verify", epilog="  zoo gallery verify gallery/        one line per check; the exit status is 1 when any fails"
)
def verify(gallery: GalleryFolder, as_json: Json = False) -> int:
    """check a gallery's database, its index and its searches

    The index is compared with the database, and searches with exact search.
    """
    from serving.galleries import Gallery

    checks = Gallery(gallery).verify()
    lines = [f"{OUTCOMES[check.ok]:<12}{check.name:<14}{one_line(check.detail)}" for check in checks]
    print_outcome(as_json, [asdict(check) for check in checks], *lines)
    return 1 if any(check.ok is False for check in checks) else 0


@app.command(
    "export",
    epilog="  zoo gallery export gallery/ copy/",
)
def export_gallery(
    gallery: GalleryAddress,
    out: Annotated[Path, Argument(help="new folder for items.parquet, index.faiss, model.json, calibration.json")],
    as_json: Json = False,
) -> None:
    """write a gallery as Parquet and a plain FAISS index

    Both open without zoo.
    """
    from serving.galleries import Gallery

    items = Gallery(gallery).export(out)
    print_outcome(as_json, {"out": str(out), "items": items}, f"{out}: {count(items, 'item')}")


@app.command("import", epilog="  zoo gallery import copy/ gallery/        items get new ids, in the old order")
def import_gallery(
    export: Annotated[Path, Argument(help="folder that zoo gallery export has written")],
    gallery: Annotated[str, Argument(help="gallery to make or add to: a folder, or an address in Milvus")],
    as_json: Json = False,
) -> None:
    """read an exported gallery"""
    from serving.gallery.parquet import import_gallery

    done = import_gallery(export, gallery)
    facts = {"gallery": str(gallery), "read": done.read, "added": done.new, "calibrated": done.calibrated}
    lines = [f"{gallery}: {done.new:,} added, {done.read - done.new:,} already there"]
    if done.calibrated:
        lines.append("p_same: the calibration of the export was taken over, with its origin")
    elif done.calibrated is not None:
        lines.append(
            "p_same: the calibration of the export was not taken over, because the gallery has other items too or was "
            f"calibrated later. Fit it to all items: {command('gallery', 'calibrate', gallery)}"
        )
    print_outcome(as_json, facts, *lines)
