"""`zoo index` fills a gallery with images; `zoo search` finds the nearest ones in a gallery or at a service."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
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
    Labels,
    Model,
    MovedModel,
    OptionalPrecision,
    OptionalRuntime,
    Precision,
    Runtime,
    Strict,
    Where,
    Yes,
    confirm,
    metadata_filter,
    strict_status,
)
from zoo.console import count, note, print_json, print_table, show
from zoo.errors import GalleryError, ServiceError, UsageError, ZooError, check_at_least
from zoo.render import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from serving.galleries import Gallery
    from serving.gallery import VectorGallery
    from serving.gallery.indexing import Fill, IndexingReport
    from serving.gallery.types import Hit
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
            help="remove every item whose image is not among these, also items that clients have added; asks first",
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
            help="what a column of a table holds: number, boolean or text; repeatable (default: what most cells are)",
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
    from serving.gallery.indexing import source_root
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
    from serving.gallery.indexing import source_root
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
    names = ", ".join(gallery.store.item(item).source for item in ids[:NAMED]) + (", ..." if len(ids) > NAMED else "")
    items = f"{count(len(ids), 'item')} whose image is not among those indexed now ({names})"
    return confirm(f"Remove {items}?")


def _report_lines(report: IndexingReport, pruning: bool) -> Iterator[str]:
    from serving.gallery.indexing import report_left_out

    yield from report_left_out(report)
    yield from copy_lines(report)
    yield (
        f"{report.gallery}: {count(report.items, 'image')}; {report.added:,} added, {report.already_there:,} "
        f"already there, {len(report.unreadable):,} unreadable"
    )
    yield from _key_lines(report)
    if report.stay_out:
        names = ", ".join(report.stay_out[:NAMED]) + (", ..." if len(report.stay_out) > NAMED else "")
        images = count(len(report.stay_out), "image")
        yield f"{images} left out, because somebody removed the item ({names}); --readd adds such again"
    if report.moved:
        yield f"{report.moved:,} have moved, or are described otherwise now: they were updated"
    if report.kept:
        yield f"{report.kept:,} keep a label that is not their folder's; --update gives them that"
    if report.labels_unused or report.unlabelled:
        yield (
            f"{report.unlabelled:,} of the {report.found:,} image files have no row in the file of labels; "
            f"{len(report.labels_unused):,} of its rows name no image here"
        )
    yield from _column_lines(report.columns)
    if report.pruned:
        yield f"{report.pruned:,} whose image is not among these were removed"
    if stay := len(report.not_in_folder) - report.pruned:
        hint = "" if pruning or report.other_folder else "; --prune removes such"
        yield f"{stay:,} are not among the images indexed now: they stay in the gallery{hint}"


def _column_lines(columns: Sequence[Column]) -> Iterator[str]:
    """Yield what the columns of metadata hold, which cells do not fit, and how to decide otherwise."""
    if columns:
        yield f"kept as metadata: {', '.join(f'{column.name} ({column.kind})' for column in columns)}"
    for column in columns:
        other = f"; --column {column.name}=text keeps the whole column as text"
        if column.misfits:
            cells = ", ".join(f"{cell!a} in line {line}" for line, cell in column.misfits[:NAMED])
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


def _key_lines(report: IndexingReport) -> Iterator[str]:
    """Yield lines about items that have another image, and about keys that were refused."""
    if report.replaced:
        yield f"{count(report.replaced, 'item has', 'items have')} another image now, and keep what is known of them"
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


@dataclass(frozen=True)
class _Query:
    """Query of `zoo search`: an image file, an item of the gallery or a text, and the hits that are wanted."""

    image: str | None
    item: int | None
    key: str | None
    text: str | None
    k: int
    labels: list[str]
    where: str | None
    group_by: str | None = None
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_at_least("-k", self.k, 1)
        if sum(query is not None for query in (self.image, self.item, self.key, self.text)) != 1:
            raise UsageError(
                "search needs an image file, --id or --key with an item of the gallery, or --text; one of the four.",
                code="missing-value",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the query for `--json`."""
        named = {name: value for name, value in (("key", self.key), ("text", self.text)) if value is not None}
        return {"image": self.image, "id": self.item, **named}


@app.command(
    "search",
    epilog="""\
  zoo search gallery/ query.png -k 5
  zoo search gallery/ --id 17 --json
  zoo search gallery/ --key cam-1/0001
  zoo search gallery/ --text "a red chair"
  zoo search gallery/ query.png --label wren --where '{"year": {"gte": 1900, "lt": 1950}}'
  zoo search gallery/ query.png --group-by label        the nearest image of each label
  zoo search gallery/ query.png --fields price --fields colour
  zoo search --url http://127.0.0.1:3000 query.png --key-file key.txt
  zoo search --url http://127.0.0.1:3000 --collection birds query.png""",
)
def search(
    gallery: Annotated[str | None, Argument(help="gallery folder; left out with --url")] = None,
    image: Annotated[str | None, Argument(help="image file to search with")] = None,
    item: Annotated[int | None, Option("--id", help="search with this item of the gallery instead of an image")] = None,
    key: Annotated[
        str | None, Option(metavar="KEY", help="search with the item of this key instead of an image")
    ] = None,
    text: Annotated[str | None, Option(help="search with a text, if the gallery's model has a text tower")] = None,
    k: Annotated[int, Option("-k", "--k", metavar="N", help="number of results")] = 10,
    label: Labels = None,
    where: Where = None,
    group_by: Annotated[
        str | None,
        Option(metavar="KEY", help="show only the nearest image of each label, or of each value of this metadata key"),
    ] = None,
    fields: Annotated[
        list[str] | None,
        Option("--fields", metavar="KEY", help="metadata to show of each result, or '*' for all; repeatable"),
    ] = None,
    url: Annotated[str | None, Option(help="search at this service (zoo serve) instead of in a folder")] = None,
    collection: Annotated[
        str | None, Option(metavar="NAME", help="collection to search, if the service has several")
    ] = None,
    key_file: Annotated[
        Path | None, Option(metavar="F", help="file with the service's key (default: the key in ZOO_SERVE_KEY)")
    ] = None,
    model: MovedModel = None,
    runtime: OptionalRuntime = None,
    precision: OptionalPrecision = None,
    as_json: Json = False,
) -> None:
    """find the images of a gallery nearest to an image or a text"""
    results: Sequence[Hit]
    if url is not None:
        if any(value is not None for value in (image, model, runtime, precision)):
            raise UsageError(
                "with --url the service has the gallery and its model; give only an image, --id, --key or --text.",
                code="option-without-effect",
            )
        query = _Query(gallery, item, key, text, k, label or [], where, group_by, tuple(fields or ()))
        _check_image(query.image)
        results = _search_service(query, url, collection, key_file)
    elif key_file is not None or collection is not None:
        option = "--collection" if key_file is None else "--key-file"
        raise UsageError(f"{option} is for a service; name it with --url.", code="option-without-effect")
    elif gallery is None:
        raise UsageError("name the gallery folder to search, or a service with --url.", code="missing-value")
    else:
        query = _Query(image, item, key, text, k, label or [], where, group_by, tuple(fields or ()))
        results = _search_folder(query, gallery, model, runtime or "auto", precision or "fp32")
    if as_json:
        print_json({"query": query.to_json(), "results": [_result_json(result) for result in results]})
    else:
        _print_results(query, results)


def _check_image(image: str | None) -> None:
    """Check the image of a search at a service. Raises `UsageError`."""
    if image is not None and not Path(image).is_file():
        problem = "is a folder" if Path(image).is_dir() else "is not there"
        raise UsageError(
            f"{image} {problem}; with --url the first argument is the image file to search with.", code="not-found"
        )


def _search_folder(query: _Query, gallery: str, model: str | None, runtime: str, precision: str) -> list[Hit]:
    from serving.galleries import Gallery

    where = metadata_filter(query.where)
    item = query.item if query.key is None else query.key
    with Gallery(gallery, model, runtime, precision) as opened:
        return opened.search(
            query.image,
            item=item,
            text=query.text,
            k=query.k,
            label=query.labels,
            where=where,
            group_by=query.group_by,
            fields=query.fields,
        )


def _search_service(query: _Query, url: str, collection: str | None, key_file: Path | None) -> Sequence[Hit]:
    from serving.client import Client

    key = None if key_file is None else _read_key(key_file)
    try:
        client = Client(url, key, collection=collection)
    except GalleryError as error:
        raise UsageError(f"--url: {error}", code="invalid-value") from None
    # The service checks the filter, so that a client needs none of a gallery's libraries.
    where = metadata_filter(query.where)
    with client:
        try:
            item = query.item if query.key is None else query.key
            return client.search(
                query.image,
                item=item,
                text=query.text,
                k=query.k,
                label=query.labels,
                where=where,
                group_by=query.group_by,
                fields=query.fields,
            )
        except ServiceError as error:
            if error.code == "name_a_collection":
                names = ", ".join(info.name for info in client.collections() if info.name) or "none that this key reads"
                message = f"{url} has several collections: name one with --collection NAME. They are: {names}."
            elif error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                message = f"{error} The command takes the key from --key-file or ZOO_SERVE_KEY."
            else:
                raise
            raise ServiceError(message, error.status, error.code) from None


def _read_key(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        pass
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", code="unreadable-file") from None
    raise UsageError(f"{path} does not hold a key; keys consist of ASCII characters.", code="invalid-item")


def _print_results(query: _Query, results: Sequence[Hit]) -> None:
    columns = {
        "similarity": [f"{hit.similarity:.4f}" for hit in results],
        "p_same": [f"{hit.p_same:.2f}" for hit in results if hit.p_same is not None],  # all or none
        "label": [hit.label or "-" for hit in results],
        "source": [hit.source for hit in results],
        "key": [hit.key or "-" for hit in results],
        "id": [str(hit.id) for hit in results],
    }
    if not columns["p_same"]:
        del columns["p_same"]
    if all(hit.key is None for hit in results):
        del columns["key"]
    for field in dict.fromkeys(name for hit in results for name in hit.metadata or ()):
        columns[_column_name(field, columns)] = [_value_text((hit.metadata or {}).get(field)) for hit in results]
    rows = list(zip(*columns.values(), strict=True))
    print_table(Table(list(columns), rows, numbers=("similarity", "p_same", "id")))
    show(*(f"{hit.source}: also {_places(hit)}" for hit in results if hit.also))
    if results and results[-1].likely is False:
        likely = sum(1 for hit in results if hit.likely)
        after = f"after the first {likely:,}, nothing more is" if likely else "nothing is"
        note(f"{after} likely to show what the query shows.")
    if len(results) < query.k:
        condition = " of these labels and metadata" if query.labels or query.where else ""
        condition += " with another value" if query.group_by else ""
        note(f"{len(results):,} found and {query.k:,} asked for: the gallery holds no more{condition}.")


def _column_name(field: str, taken: Container[str]) -> str:
    return f"{field} (metadata)" if field in taken else field


def _value_text(value: Any) -> str:
    """Return a value of metadata for a table."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _places(hit: Hit) -> str:
    """Return where the image of a hit is besides, with keys and labels."""
    texts = []
    for other in hit.also[:NAMED]:
        place = "" if other.source == hit.source else f"at {other.source}"
        name = " ".join(filter(None, [place, other.key and f"with the key {other.key}"])) or f"as item {other.id}"
        texts.append(f"{name} ({other.label})" if other.label else name)
    return ", ".join(texts) + (f" and {len(hit.also) - NAMED:,} more" if len(hit.also) > NAMED else "")


def _result_json(result: Hit) -> dict[str, Any]:
    """Return a result without the score of re-ranking, which `zoo search` does not do, a missing group and metadata."""
    missing = {name for name in ("group", "metadata") if getattr(result, name) is None}
    return {name: value for name, value in asdict(result).items() if name not in {"rerank_score", *missing}}
