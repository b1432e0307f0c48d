"""`zoo index` fills a gallery with images; `zoo search` finds the nearest ones in a gallery or at a service."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from zoo.cli.options import (
    ADVANCED,
    CLUSTER,
    BatchSize,
    Dim,
    Exclude,
    FollowLinks,
    Json,
    Model,
    Precision,
    Runtime,
    Strict,
    Yes,
    confirm,
    strict_status,
)
from zoo.console import count, note, print_json, show
from zoo.errors import UsageError, ZooError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from serving.galleries import Gallery
    from serving.gallery import VectorGallery
    from serving.gallery.image_files import IndexingReport
    from serving.gallery.indexing import Fill
    from zoo.data.columns import Column
    from zoo.models.load import Embedder
    from zoo.models.registry import ModelLike


app = typer.Typer()

NAMED = 5
"""Number of items to be pruned, or of copies, that are named."""


@app.command(
    "index",
    epilog="""\
  zoo index photos pictures/ --out gallery/
  zoo index photos pictures/ --out gallery/ --labels table.csv      its columns path and label
  zoo index photos birds.csv --out birds/       the images that a table lists: image,label,...
  zoo index photos pictures/ --out gallery/ --on ray --ray-workers 8          eight processes here
  zoo index photos pictures/ --out gallery/ --on ray --ray-address auto       those of this cluster
  zoo index photos pictures/ --out gallery/ --prune --yes --strict            every night, from cron
  zoo index photos pictures/ --out gallery/ --exclude '*_edited' --location   without some names; with places
  zoo index photos --vectors rows.npy --table rows.csv --out keyed/           embeddings from zoo embed, by key
  zoo index photos pictures/ --out gallery/ --labels shop.csv --encoding cp1252 --column sku=text

An item is an image at a place: a changed file is the same item with a new image, and keeps label, metadata and key.
Images that cannot be read are left out and listed: the exit status is 0, with --strict 1. A refused key makes it 1.""",
)
def index(
    model: Model,
    images: Annotated[
        Path | None,
        Argument(
            metavar="DIR",
            help="folder of images; the folders inside it are the labels. Or a table of images (CSV): the column image "
            "(or path), relative to the table's folder, label, key (your own name of the image), and further columns, "
            "which are stored as metadata; left out with --vectors",
        ),
    ] = None,
    out: Annotated[
        str | None,
        Option(
            metavar="GALLERY",
            help="gallery to make or add to: a folder, or an address in Milvus (default: the address of --backend)",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        Option(
            metavar="CSV",
            help="table with the columns image (or path), below DIR or relative to the table, and label; further "
            "columns are stored as metadata (default: the folders' names are the labels)",
        ),
    ] = None,
    vectors: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="embeddings that this model computed elsewhere (.npy, .safetensors, .npz), instead of images",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    table: Annotated[
        Path | None,
        Option(
            metavar="CSV",
            help="table only for --vectors, its rows in order: key (or image or path), label, and further columns, "
            "which are stored as metadata",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    fingerprint: Annotated[
        str | None,
        Option(
            help="fingerprint of the model that computed --vectors, only for a file that zoo embed did not write",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    dim: Dim = None,
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    on: Annotated[
        Literal["here", "ray"], Option(help="embed in this process or on a Ray cluster", rich_help_panel=CLUSTER)
    ] = "here",
    ray_address: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="address of a running cluster, auto for this machine's (default: a Ray of this machine, for this run)",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    ray_workers: Annotated[
        int | None,
        Option(
            metavar="N", help="number of processes that embed (default: one per processor)", rich_help_panel=CLUSTER
        ),
    ] = None,
    update: Annotated[
        bool,
        Option(
            "--update",
            help="give existing items the labels and metadata of this run, even if a client has set others",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    prune: Annotated[
        bool,
        Option(
            "--prune",
            help="remove the items of indexed folders that no image or row of this run is; asks first",
        ),
    ] = False,
    yes: Yes = False,
    backend: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="keep the whole gallery in Milvus, at milvus://host:port/name or milvus:///file.db, instead of in the "
            "folder of --out",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    location: Annotated[
        bool,
        Option(
            "--location",
            help="store where a photograph was taken as metadata (latitude, longitude), as its date, camera and size "
            "always are (taken, camera, width, height)",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    watch: Annotated[
        bool,
        Option(
            "--watch", help="go on, and index again whenever files have changed, until Ctrl-C", rich_help_panel=ADVANCED
        ),
    ] = False,
    exclude: Exclude = None,
    follow_links: FollowLinks = False,
    readd: Annotated[
        bool, Option("--readd", help="add images again whose items somebody has removed", rich_help_panel=ADVANCED)
    ] = False,
    delimiter: Annotated[
        str | None,
        Option(
            metavar="C",
            help="what separates the cells of a table (default: a comma, or a tab in a .tsv)",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    encoding: Annotated[
        str, Option(metavar="NAME", help="encoding of a table, such as cp1252", rich_help_panel=ADVANCED)
    ] = "utf-8",
    column: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=KIND",
            help="what a column of a table holds: number, decimal-comma (3,5), boolean or text; repeatable (default: "
            "what most cells are)",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """index a folder or table of images into a gallery"""
    from serving.galleries import index as fill_gallery

    gallery, how = _gallery_address(out, backend), (delimiter, encoding, _column_kinds(column or []))
    if images is None:
        options = labels is not None, prune, update, follow_links, exclude, location, watch, readd, on == "ray"
        return _index_vectors(
            model, vectors, table, gallery, fingerprint, how, any(options) or dim is not None, as_json
        )
    if vectors is not None or table is not None or fingerprint is not None:
        message = "--vectors, --table and --fingerprint take the place of images; leave out DIR."
        raise UsageError(message, code="conflicting-options")
    embed = _ray(model, images, runtime, ray_address, ray_workers, on == "ray")
    _check_pruning(prune, yes)
    if watch and on == "ray":
        raise UsageError("--watch indexes in this process; leave --on ray out.", code="conflicting-options")
    run = partial(
        fill_gallery,
        images=images,
        out=gallery,
        labels=labels,
        runtime="onnx" if on == "ray" else runtime,
        precision=precision,
        dim=dim,
        batch_size=batch_size,
        update=update,
        prune=_pruning(prune, yes),
        follow_links=follow_links,
        readd=readd,
        delimiter=how[0],
        encoding=how[1],
        columns=how[2],
        exclude=exclude or (),
        location=location,
        embed=embed,
        progress=True,
    )

    def tell(report: IndexingReport, seconds: float) -> None:
        if as_json:
            print_json({**asdict(report), "seconds": seconds})
        else:
            show(*_report_lines(report, prune))
            _advise_tuning(gallery, report)

    if watch:
        from zoo.models.load import load

        return _watch(run, load(model, runtime, precision), images, gallery, tell)
    started = time.monotonic()
    with run(model) as filled:
        report = filled.report
    tell(report, time.monotonic() - started)
    return strict_status(strict or bool(report.refused), [*report.unreadable, *report.refused])


def _column_kinds(texts: Sequence[str]) -> dict[str, Any]:
    """Return the kinds of columns by name; `index` checks them."""
    kinds = dict(text.rpartition("=")[::2] for text in texts)
    if "" in kinds:
        message = f"--column takes NAME=KIND, such as year=number, not {kinds['']!r}."
        raise UsageError(message, code="invalid-value")
    return kinds


def _watch(
    run: Callable[[ModelLike], Gallery],
    embedder: Embedder,
    images: Path,
    gallery: str,
    tell: Callable[[IndexingReport, float], None],
) -> int:
    """Index at each change of the folder, and tell what has changed; return the exit status after Ctrl-C."""
    from serving.gallery.image_files import source_root
    from serving.gallery.watch import changes

    told = ""
    for _ in changes(source_root(images), [Path(gallery)]):
        started = time.monotonic()
        try:
            with run(embedder) as filled:
                report = filled.report
        except ZooError as error:  # an empty folder, a table that is being written: the next change may mend it
            note(str(error))
            continue
        news = json.dumps({**asdict(report), "found": 0, "already_there": 0})
        if news != told or report.added or report.replaced:
            tell(report, time.monotonic() - started)
            sys.stdout.flush()
        told = news
    return 0


def _index_vectors(
    model: str,
    vectors: Path | None,
    table: Path | None,
    gallery: str,
    fingerprint: str | None,
    how: tuple[str | None, str, dict[str, Any]],
    extra: bool,
    as_json: bool,
) -> int:
    """Index embeddings by key, and return the exit status. extra: whether there are options that are for images."""
    from serving.vectors import index_vectors
    from zoo.data.table import TableFormat
    from zoo.models.card import read_card
    from zoo.models.names import find_model
    from zoo.models.registry import model_reference

    if vectors is None or table is None:
        raise UsageError("name the images to index, or --vectors and --table, both.", code="no-images")
    if extra:
        message = "--labels, --dim, --update, --prune, --readd and other options of folders are not for --vectors."
        raise UsageError(message, code="option-without-effect")
    card, ref = read_card(find_model(model)), model_reference(model)
    report = index_vectors(card, ref, vectors, table, gallery, fingerprint, TableFormat(*how))
    if as_json:
        print_json(asdict(report))
        return strict_status(True, report.refused)
    for key, reason in report.refused[:NAMED]:
        show(f"{key} was refused: {reason}")
    show(
        f"{gallery}: {count(report.items, 'item')}; of {count(report.rows, 'row')} {report.created:,} created, "
        f"{report.replaced:,} replaced, {report.updated:,} updated, {report.unchanged:,} unchanged, "
        f"{len(report.refused):,} refused"
    )
    show(*_column_lines(report.columns))
    return strict_status(True, report.refused)


def _gallery_address(out: str | None, backend: str | None) -> str:
    """Return the folder or the address of the gallery to make or add to.

    Raises:
        UsageError: If none is given (code "missing-value"), both are ("conflicting-options"), or it is not an address.
    """
    from serving.gallery.backends.milvus_client import address_of
    from serving.gallery.types import is_address

    if backend in (None, "faiss"):
        if out is None:
            raise UsageError("name the gallery with --out: a folder, or milvus://host:port/name.", code="missing-value")
        return address_of(out).text if is_address(out) else out
    if out is not None:
        raise UsageError("--backend and --out both name the gallery; give one of them.", code="conflicting-options")
    return address_of(str(backend)).text


def _ray(
    model: str, images: Path, runtime: str, address: str | None, workers: int | None, on_cluster: bool
) -> Fill | None:
    """Return the function that embeds the images on a Ray cluster; None for this process."""
    if not on_cluster:
        if address is not None or workers is not None:
            raise UsageError("--ray-address and --ray-workers need --on ray.", code="option-without-effect")
        return None
    if runtime == "torch":
        raise UsageError("workers of a cluster run ONNX models only; leave --runtime out.", code="invalid-value")
    from serving.gallery.backends.ray import on_ray
    from serving.gallery.image_files import source_root
    from zoo.models.registry import model_reference

    return on_ray(model_reference(model), source_root(images), address, workers)


def _check_pruning(prune: bool, yes: bool) -> None:
    if yes and not prune:
        raise UsageError("--yes is for --prune.", code="option-without-effect")
    if prune and not (yes or sys.stdin.isatty()):
        raise UsageError("--prune asks before it removes; add --yes where nobody can answer.", code="not-confirmed")


def _pruning(prune: bool, yes: bool) -> Callable[[VectorGallery, list[int]], bool] | None:
    """Return the function that decides whether items are removed; None keeps all."""
    if not prune:
        return None
    return _may_prune_unasked if yes else _may_prune


def _may_prune_unasked(gallery: VectorGallery, ids: list[int]) -> bool:
    if 2 * len(ids) > (items := gallery.store.count()):
        raise UsageError(
            f"{len(ids):,} of {items:,} items would be pruned, more than half; nothing was removed. Is a part of the "
            "folder missing, for example because it is not mounted? To remove them, run this at a terminal without "
            "--yes; it asks.",
            code="not-confirmed",
        )
    return True


def _may_prune(gallery: VectorGallery, ids: list[int]) -> bool:
    items = map(gallery.store.item, ids[: NAMED + 1])
    names = _first_names([item.key or item.source for item in items])
    return confirm(f"Remove {count(len(ids), 'item')} whose image is not among those indexed now ({names})?")


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def _report_lines(report: IndexingReport, pruning: bool) -> Iterator[str]:
    from serving.gallery.image_files import report_left_out

    yield from report_left_out(report)
    yield from copy_lines(report)
    yield (
        f"{report.gallery}: {count(report.items, 'image')}; {report.added:,} added, {report.already_there:,} "
        f"already there, {len(report.unreadable):,} unreadable"
    )
    yield from _key_lines(report)
    if report.stay_out:
        images = count(len(report.stay_out), "image")
        names = _first_names(report.stay_out)
        yield f"{images} left out, because somebody removed the item ({names}); --readd adds such again"
    if report.moved:
        yield f"{count(report.moved, 'item')} updated: moved, or described otherwise now"
    if report.renamed:
        first = _first_names([f"{former} is {new} now" for former, new in report.renamed])
        yield f"{count(len(report.renamed), 'item')} got the new key of the row: {first}"
    if report.kept:
        yield f"{report.kept:,} keep a label that is not their folder's; --update gives them that"
    if report.facts_kept:
        names = ", ".join(dict.fromkeys(name for _, kept in report.facts_kept for name in kept))
        items = count(len(report.facts_kept), "item keeps", "items keep")
        first = _first_names(list(dict.fromkeys(source for source, _ in report.facts_kept)))
        yield f"{items} another value of {names} than the file has now ({first}); --update takes the file's"
    if report.labels_unused or report.unlabelled:
        yield (
            f"{report.unlabelled:,} of the {report.found:,} image files have no row in the file of labels; "
            f"{len(report.labels_unused):,} of its rows name no image here"
        )
    yield from _column_lines(report.columns)
    if report.pruned:
        removed = count(len(report.pruned), "item was", "items were")
        yield f"{removed} removed, as no file or row of this run is theirs ({_first_names(report.pruned)})"
    if stay := len(report.not_in_folder) - len(report.pruned):
        hint = "" if pruning or report.other_folder else "; --prune removes such"
        yield f"{stay:,} are not among the images indexed now: they stay in the gallery{hint}"


def _column_lines(columns: Sequence[Column]) -> Iterator[str]:
    """Yield what the columns of metadata hold, which cells do not fit, and how to decide otherwise."""
    if columns:
        yield f"kept as metadata: {', '.join(f'{column.name} ({column.kind})' for column in columns)}"
    for column in columns:
        other = f"; --column {column.name}=text keeps the whole column as text"
        if column.misfits:
            cells = ", ".join(f"{cell!r} in line {line}" for line, cell in column.misfits[:NAMED])
            more = len(column.misfits) - NAMED
            rest = f" and {count(more, 'cell')} more" if more > 0 else ""
            yield f"column {column.name}: no {column.kind}, and kept as text: {cells}{rest}{other}"
        if column.missing:
            yield f"column {column.name}: {count(column.missing, 'cell')} NaN, which counts as empty{other}"
        if column.numbers:
            yield (
                f"column {column.name}: {column.numbers:,} of {count(column.cells, 'cell')} are numbers, too few for a "
                f"column of numbers; --column {column.name}=number makes it one"
            )
        if column.identifier:
            line, cell = column.identifier
            yield (
                f"column {column.name}: most cells are numbers, but {cell!r} in line {line} is written as an "
                f"identifier, so that all are kept as text; --column {column.name}=number makes them numbers"
            )
        if column.commas:
            yield (
                f"column {column.name}: {column.commas:,} of {count(column.cells, 'cell')} have a comma, kept as "
                f"text; --column {column.name}=decimal-comma reads 1.250,00 as 1250"
            )


def _key_lines(report: IndexingReport) -> Iterator[str]:
    """Yield lines about items that have another image, and about keys that were refused."""
    if report.replaced:
        yield f"{count(report.replaced, 'item has', 'items have')} another image now; label, metadata and key stay"
    for source, reason in report.refused[:NAMED]:
        yield f"the key of {source} was refused: {reason.rstrip('.')}"
    if (more := len(report.refused) - NAMED) > 0:
        yield f"{count(more, 'more key', 'more keys')} refused; --json names all"


def copy_lines(report: IndexingReport) -> Iterator[str]:
    """Yield a line for each of the first files that are copies of others, and one with the number of the rest."""
    for source, first in report.copies[:NAMED]:
        yield f"{source} is a copy of {first}: a search shows them as one result"
    if (more := len(report.copies) - NAMED) > 0:
        yield f"{count(more, 'more copy', 'more copies')}; --json names all"


def _advise_tuning(path: str, report: IndexingReport) -> None:
    from serving.gallery import VectorGallery
    from serving.gallery.gallery import TUNING_ITEMS, tuning_advice

    if report.items > TUNING_ITEMS:
        with VectorGallery.open(path) as gallery:
            if hint := tuning_advice(gallery):
                show(hint)
