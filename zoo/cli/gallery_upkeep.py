"""Upkeep of a gallery: `zoo gallery tune`, `calibrate`, `backend`, `backup`, `restore`, `rebuild` and `rollback`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from zoo.cli.options import (
    BatchSize,
    Dim,
    GalleryAddress,
    GalleryFolder,
    Json,
    MovedModel,
    Precision,
    Runtime,
    make_graph,
    print_outcome,
    repeated,
)
from zoo.console import count, note, print_json, print_table, show
from zoo.errors import UsageError, check_at_least, command
from zoo.render import Table

if TYPE_CHECKING:
    from serving.gallery.backup import BackupInfo
    from serving.gallery.rebuild import MissingItem, ModelComparison, Upgrade
    from serving.gallery.tune import IndexMeasurement
    from serving.gallery.types import IndexStats
    from zoo.models.load import Embedder


app = typer.Typer()

SHOWN = 20
"""Number of items that cannot be embedded that are printed; `--json` prints all."""
SCORES = ("recall_at_1", "map_at_r")
BEFORE = ("kind", "recall", "milliseconds", "measured")
"""What `zoo gallery tune --json` says of the index before."""


@app.command(
    "tune",
    epilog="""\
  zoo gallery tune gallery/ --recall 0.99
  zoo gallery tune gallery/ --recall 1 --kind flat        back to exact search
  zoo gallery tune gallery/ -k 100 --json
A kind must be faster by more than 10 % to be chosen over a simpler one; exact search is the simplest.
Recall is of the k nearest that exact search finds. Searches for more than 4 k items are exact.
Above 100,000 items, bits with exact re-scoring (ivf-rabitq) are measured first, and other kinds only if they fail.""",
)
def tune(
    gallery: GalleryFolder,
    recall: Annotated[float, Option(help="the share of the nearest items to find")] = 0.99,
    k: Annotated[int, Option("-k", metavar="N", help="number of nearest items")] = 10,
    kind: Annotated[
        list[str] | None, Option(metavar="KIND", help="measure only this kind beside flat; repeatable")
    ] = None,
    as_json: Json = False,
) -> None:
    """choose a fast index of a given recall, measured on the gallery"""
    from serving.galleries import Gallery

    with Gallery(gallery) as opened:
        before = opened.vectors.index.stats()
        facts, rows = opened.tune(recall, k, kind or ())
    if facts and k >= facts.count:
        note(f"-k {k:,} is more than the {count(facts.count - 1, 'other')} that each item has; that many were taken.")
    if as_json:
        measured = {name: asdict(row) if row else None for name, row in rows}
        had = {name: value for name, value in asdict(before).items() if name in BEFORE}
        print_json({"chosen": asdict(facts) if facts else None, "measured": measured, "before": had})
    elif facts:
        columns = ("kind", "effort", "shortlist", "recall", "ms per search", "s to build", "")
        print_table(
            Table(columns, [_tune_row(name, row, facts.setting.kind) for name, row in rows], numbers=columns[1:6])
        )
        show(*tuning_lines(facts.setting.kind, {name: row for name, row in rows if row}, before))
        show(*([facts.measured.text] if facts.measured else []))
    else:
        show("the gallery is empty; there is nothing to tune")


def tuning_lines(chosen: str, measured: Mapping[str, IndexMeasurement], before: IndexStats) -> Iterator[str]:
    """Yield why a kind of index was chosen, and how it compares with the gallery's index before.

    Args:
        chosen: The kind.
        measured: The measurement of each kind that holds the recall, the simplest first.
        before: The gallery's index before.
    """
    from serving.gallery.index_files import SPEED_MARGIN

    if chosen not in measured:
        yield f"{chosen} was chosen: there is nothing to compare"
        return
    own, fastest = measured[chosen], min(measured.values(), key=lambda row: row.milliseconds)
    if own is fastest:
        reason = "it is the fastest of those that hold the recall"
    else:
        gain = 1 - fastest.milliseconds / own.milliseconds
        reason = (
            f"{fastest.setting.kind} is faster by {gain:.0%}, and only more than {SPEED_MARGIN:.0%} counts against a "
            "simpler kind"
        )
    yield f"{chosen} was chosen: {reason}"
    if chosen == before.kind:
        yield f"kept: the gallery had {before.kind} before"
        return
    again = measured.get(before.kind)
    milliseconds, recall = (again or before).milliseconds, (again or before).recall
    speed = f"{milliseconds:.3f} to {own.milliseconds:.3f} ms per search" if milliseconds else "not measured before"
    found = "" if recall is None else f"; recall {recall:.4f} to {own.recall:.4f}"
    yield f"changed from {before.kind} to {chosen}: {speed}{found}"


def _tune_row(name: str, measured: IndexMeasurement | None, chosen: str) -> list[str]:
    if measured is None:
        return [name, "-", "-", "-", "-", "-", "too few vectors, or no setting holds the recall"]
    setting = measured.setting
    numbers = [f"{measured.recall:.4f}", f"{measured.milliseconds:.3f}", f"{measured.seconds:.1f}"]
    return [name, str(setting.effort or "-"), str(setting.shortlist), *numbers, "chosen" if name == chosen else ""]


@app.command(
    "calibrate",
    epilog="""\
  zoo gallery calibrate gallery/
  zoo gallery calibrate gallery/ --json
Searches then return p_same, and min_p of the service cuts by it. The table shows the promised probability and the
observed share with its 95 % interval, one line per tenth, on labels that the curve was not fitted to. A running service
takes up the new calibration at once.""",
)
def calibrate(
    gallery: Annotated[str, Argument(help="gallery with labelled items: a folder, or an address in Milvus")],
    queries: Annotated[int, Option(metavar="N", help="number of items that are used as queries")] = 2000,
    as_json: Json = False,
) -> None:
    """fit the probability that a hit is of the query's class

    It is fitted to the labelled items.
    """
    from serving.galleries import Gallery
    from serving.gallery.calibration import NO_ERROR
    from serving.gallery.types import Attribution
    from zoo.evaluation.calibration import Bin

    with Gallery(gallery) as opened:
        fitted = opened.calibrate(queries)
        facts = opened.stats()["calibration"]
    if as_json:
        print_json(facts)
        return
    bins = [Bin(**row) for row in facts["reliability"]]
    low, high = fitted.range
    show(f"p_same is {low:.3f} to {high:.3f} by the similarity above the query's background; 1 for identical images")
    show(f"fitted to {count(fitted.pairs, 'pair')}: the first {fitted.neighbours} results of labelled items")
    error = NO_ERROR if fitted.error is None else f"{fitted.error:.4f}"
    show(f"calibration error on other classes: {error}")
    show(Attribution.from_json(facts["measured"]).text)
    if bins:
        print()
        columns = ("p_same", "of the query's label", "95 % interval", "pairs")
        rows = [
            (f"{row.probability:.3f}", f"{row.share:.3f}", f"{row.low:.3f} to {row.high:.3f}", f"{row.count:,}")
            for row in bins
        ]
        print_table(Table(columns, rows, numbers=columns))


@app.command(
    "backend",
    epilog="""\
  zoo gallery backend gallery/                                  print where the gallery is
  zoo gallery backend gallery/ milvus://localhost:19530/birds   copy it into a server (token: ZOO_MILVUS_TOKEN)
  zoo gallery backend gallery/ milvus:///data/birds.db          embedded (milvus-lite), for one process at a time
  zoo gallery backend milvus://localhost:19530/birds gallery/   copy it into a folder
Items get new ids; the calibration is copied. Images that exist there are skipped, so that the same
command continues after an interruption. The source stays unchanged. Needs dml-zoo[milvus].""",
)
def backend(
    gallery: GalleryAddress,
    target: Annotated[
        str | None,
        Argument(metavar="BACKEND", help="folder or address to copy the gallery to (default: print where it is)"),
    ] = None,
    as_json: Json = False,
) -> None:
    """copy a gallery into Milvus, or out of it"""
    from serving.galleries import Gallery
    from serving.gallery.types import is_address

    opened = Gallery(gallery)
    if target == "faiss":
        raise UsageError("name the folder to copy the gallery to; a folder has FAISS.", code="missing-value")
    address = gallery if target is None else target
    facts: dict[str, Any] = {"gallery": address, "backend": address if is_address(address) else "faiss"}
    if target is None:
        print_outcome(as_json, facts, f"{gallery}: {'in Milvus' if is_address(gallery) else 'a folder, with FAISS'}")
        return
    read, new = opened.copy(target)
    line = f"{target}: {count(new, 'item')} copied, {read - new:,} exist already"
    print_outcome(as_json, {**facts, "read": read, "added": new}, line)


@app.command(
    "backup",
    epilog="""\
  zoo gallery backup gallery/ backups/2026-11-22
The copy is of one moment. It lacks the index, which is derived.""",
)
def backup(
    gallery: GalleryFolder, out: Annotated[Path, Argument(help="new folder for the copy")], as_json: Json = False
) -> None:
    """copy a gallery while it is in use"""
    from tqdm.auto import tqdm

    from serving.gallery.backup import backup as copy
    from serving.gallery.gallery import check_folder

    folder = check_folder(gallery, f"use Milvus's own backup, or: {command('gallery', 'export', gallery, out)}")

    with tqdm(unit="page", desc="backup", disable=not sys.stderr.isatty()) as bar:

        def progress(pages: int, total: int) -> None:
            bar.total = total
            bar.update(pages - bar.n)

        copied = copy(folder, out, progress)
    _print_copy(out, copied, as_json)


@app.command(
    "restore",
    epilog="""\
  zoo gallery restore backups/2026-11-22 gallery-again/
A gallery that is served is not replaced: restore into another folder, and serve that.""",
)
def restore(
    backup: Annotated[Path, Argument(help="folder that zoo gallery backup has written")],
    out: Annotated[Path, Argument(help="new gallery folder")],
    as_json: Json = False,
) -> None:
    """make a gallery from a backup, and verify it"""
    from serving.gallery.backup import restore as copy

    _print_copy(out, copy(backup, out), as_json)


def _print_copy(out: Path, copied: BackupInfo, as_json: bool) -> None:
    line = f"{out}: {count(copied.items, 'item')}, at change {copied.change:,}, {copied.bytes / 2**20:,.1f} MiB"
    print_outcome(as_json, {"out": str(out), **asdict(copied)}, line)


ImageFolders = Annotated[
    list[Path] | None,
    Option(
        "--images",
        metavar="DIR",
        help="folder to look for images in, by the items' sources, besides the folders that were indexed; repeatable",
    ),
]
MissingImages = Annotated[
    Literal["refuse", "thumbnail", "drop"],
    Option(
        "--missing",
        help="for items whose image is not found: refuse to swap the models, embed their thumbnails, or drop the items "
        "for good at the swap",
    ),
]


@dataclass(frozen=True)
class _Embedding:
    """Settings for embedding a gallery with another model: its images and the size of a batch."""

    gallery: str
    images: Sequence[Path]
    missing: str
    batch_size: int

    def __post_init__(self) -> None:
        from serving.gallery.rebuild import check_rebuilds

        check_rebuilds(self.gallery)
        for folder in self.images:
            if not folder.is_dir():
                raise UsageError(f"--images {folder}: there is no such folder.", code="not-found")

    def items(self) -> int:
        """Return the number of items of the gallery."""
        from serving.gallery import VectorGallery

        with VectorGallery.open(self.gallery) as opened:
            return opened.store.count()

    def upgrade(self, embedder: Embedder, reference: str) -> AbstractContextManager[Upgrade]:
        """Open the upgrade of the gallery to a model, which the gallery remembers by its reference."""
        from serving.gallery.rebuild import begin_upgrade

        return begin_upgrade(self.gallery, embedder, reference, self.images, self.missing, self.batch_size, True)


@app.command(
    "rebuild",
    epilog="""\
  zoo gallery rebuild gallery/ --model better                     embeds and compares; the gallery keeps its model
  zoo gallery rebuild gallery/ --model better --swap-if-not-worse  the exit status is 1 where it keeps its model
  zoo gallery rebuild gallery/ --model better --swap --images photos/ --missing thumbnail
After an interruption the same command continues. Items that are added, removed and labelled meanwhile are included;
running services take over the new model by themselves. Images of at most 128 pixels need no file: their thumbnails
are the images. Measurements of the old model are dropped with it; a calibration is fitted again. There is room for one
other model: a rebuild drops the embeddings that an earlier one has left.""",
)
def rebuild(
    context: typer.Context,
    gallery: GalleryFolder,
    model: Annotated[str, Option(help="name or folder of the new model")],
    swap: Annotated[
        bool,
        Option(
            "--swap",
            help="give the gallery the new model, unless the labelled items show it to be worse in R@1 or MAP@R, and "
            "better in neither (Holm's p below .05)",
        ),
    ] = False,
    force: Annotated[bool, Option("--force", help="with --swap: give it the new model even if it is worse")] = False,
    swap_if_not_worse: Annotated[
        bool,
        Option(
            "--swap-if-not-worse",
            help="give the gallery the new model if R@1 and MAP@R fall by at most MARGIN: the 95 % intervals of the "
            "differences (new - old) are above -MARGIN",
        ),
    ] = False,
    margin: Annotated[float, Option(help="largest fall that --swap-if-not-worse allows, as a fraction")] = 0.01,
    queries: Annotated[int, Option(metavar="N", help="number of items that are used as queries")] = 2000,
    dim: Dim = None,
    images: ImageFolders = None,
    missing: MissingImages = "refuse",
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    as_json: Json = False,
) -> int:
    """embed a gallery by another model while in use

    The two models are compared, and swapped if wanted.
    """
    from zoo.models.load import load
    from zoo.models.registry import model_reference

    if force and not swap:
        raise UsageError("--force is for --swap.", code="option-without-effect")
    if swap and swap_if_not_worse:
        raise UsageError("give --swap or --swap-if-not-worse, not both.", code="conflicting-options")
    check_at_least("--queries", queries, 1)
    if not 0 <= margin < 1:
        raise UsageError(f"--margin must be a fraction from 0 to below 1, not {margin:g}.", code="invalid-value")
    embedding = _Embedding(gallery, images or (), missing, batch_size)
    if swap or swap_if_not_worse:
        make_graph(model, "fp32")  # running services take the model over
    embedder = load(model, runtime, precision, images=embedding.items(), dim=dim)
    with embedding.upgrade(embedder, model_reference(model)) as upgrade:
        not_embedded = upgrade.embed()
        if not_embedded and missing == "refuse":
            return _refuse_swap(upgrade, not_embedded, as_json)
        outcome = _outcome(upgrade, not_embedded)
        with upgrade.announced() if swap or swap_if_not_worse else nullcontext():
            compared = upgrade.compare(queries)
            not_worse = compared.not_worse(margin)
            swapped = (swap and (force or not compared.is_worse())) or (swap_if_not_worse and not_worse)
            if swapped:
                upgrade.swap()
    if as_json:
        facts = {
            "models": compared.models,
            "date": compared.date,
            "compared": compared.rows or None,
            "not_compared": compared.reason,
            "not_calibrated": compared.uncalibrated,
            "not_worse": not_worse,
            "learnt_labels": compared.learnt,
            "learnt_by_name": compared.learnt_by_name,
        }
        print_json({**outcome, **facts, "index": asdict(compared.index), "swapped": swapped})
    else:
        show(*_embedded_lines(outcome))
        _print_comparison(compared)
        again = repeated(context, "--force" if swap else "--swap", "swap_if_not_worse")
        again += " --force" if compared.is_worse() and not swap else ""
        if compared.uncalibrated is not None:
            show(f"p_same is not fitted for the new model: {compared.uncalibrated}")
        show(_decision(gallery, compared, margin, swapped, swap_if_not_worse, again))
        if swapped and not_embedded:
            lost = count(len(not_embedded), "image")
            show(f"The items of {lost} that could not be embedded were removed; a rollback does not bring them back.")
    return 1 if (swap or swap_if_not_worse) and not swapped else 0


def _refuse_swap(upgrade: Upgrade, not_embedded: Sequence[MissingItem], as_json: bool) -> int:
    """Print which images are missing and return the exit status 1."""
    outcome = {**_outcome(upgrade, not_embedded), "swapped": False}
    advice = (
        "The gallery keeps its model. Name the folders of the images with --images, or choose --missing thumbnail "
        "or --missing drop; the embeddings made so far are kept for the next call."
    )
    print_outcome(as_json, outcome, *_embedded_lines(outcome), advice)
    return 1


def _outcome(upgrade: Upgrade, not_embedded: Sequence[MissingItem]) -> dict[str, Any]:
    return {
        "gallery": str(upgrade.path),
        "model": upgrade.embedder.card.name,
        "embedded": upgrade.rebuild.embedded,
        "from_thumbnails": upgrade.rebuild.staging.from_thumbnails(),
        "rule": upgrade.rule,
        "missing": [asdict(item) for item in not_embedded],
    }


def _embedded_lines(outcome: dict[str, Any]) -> Iterator[str]:
    yield f"{count(outcome['embedded'], 'item')} embedded by {outcome['model']} in this run"
    if outcome["from_thumbnails"]:
        yield f"{outcome['from_thumbnails']:,} of all are embedded by their thumbnails, as their images were not found"
    for item in outcome["missing"][:SHOWN]:
        yield f"not embedded: {item['item']} {item['source']}: {item['reason']}"
    if len(outcome["missing"]) > SHOWN:
        yield f"... and {len(outcome['missing']) - SHOWN:,} more; --json names all"


def _print_comparison(compared: ModelComparison) -> None:
    from zoo.evaluation.split import first_names
    from zoo.models.results import few_classes_note

    if compared.learnt:
        labels = count(len(compared.learnt), "label")
        show(f"left out as queries: items of {labels} that a model learnt from ({first_names(compared.learnt, SHOWN)})")
    if compared.learnt_by_name:
        names = first_names(compared.learnt_by_name, SHOWN)
        show(f"of these known by name, because the model does not record its images: {names}")
    if compared.reason is not None:
        show(f"not compared: {compared.reason}")
        return
    rows = [
        (
            when,
            row["step"],
            *(f"{row['metrics'][name]:.4f}" for name in SCORES),
            *(_difference(row["loss"], name) for name in SCORES),
        )
        for when, row in zip(("before", "after"), compared.rows, strict=True)
    ]
    columns = ("", "model", "R@1", "MAP@R", "R@1, new - old", "MAP@R, new - old")
    print_table(Table(columns, rows, numbers=columns[2:]))
    models = " and ".join(model["fingerprint"][:8] for model in compared.models)
    few = few_classes_note(compared.rows[1]["classes"])
    show(
        f"{count(compared.rows[1]['queries'], 'item')} of {count(compared.rows[1]['classes'], 'label')} search; 95 % "
        f"intervals of paired differences, over labels alone: other seeds of the models are not in them; models "
        f"{models}; {compared.date}{few and f'; {few}'}"
    )
    if compared.index.recall is not None:
        show(f"index of the new model: {compared.index.kind}, finds {compared.index.recall:.4f} of the nearest")


def _difference(loss: dict[str, Any] | None, name: str) -> str:
    if loss is None:
        return ""
    interval = loss["intervals"].get(name)
    return f"{0 - loss[name]:+.4f}" + (f" [{0 - interval[1]:+.4f}, {0 - interval[0]:+.4f}]" if interval else "")


def _decision(
    gallery: str, compared: ModelComparison, margin: float, swapped: bool, conditional: bool, swap: str
) -> str:
    """Return which model is better, what became of the gallery's model, and what to run next.

    Args:
        gallery: The gallery.
        compared: The comparison.
        margin: The largest fall of a score that counts as not worse.
        swapped: Whether the gallery has the new model.
        conditional: Whether --swap-if-not-worse was given.
        swap: The command that swaps the models in any case.
    """
    unknown = compared.undecided()
    doubt = f"It is not known whether the new model is worse, because {unknown}"
    verdict = f"{doubt}. " if unknown else f"The new model is {compared.verdict()}. "
    if swapped:
        return f"{verdict}The gallery has the new model. To go back: {command('gallery', 'rollback', gallery)}"
    if unknown is not None:
        kept = ": the gallery keeps its model" if conditional else ""
        return f"{doubt}{kept}. Label items of the gallery and run it again, or swap the models in any case: {swap}"
    if compared.is_worse():
        return f"{verdict}The gallery keeps its model. To give it the worse one all the same: {swap}"
    falls = "No score falls" if compared.not_worse(margin) else "It is not shown that no score falls"
    advice = "" if conditional else f" To give it the new one: {swap}"
    return f"{verdict}{falls} by more than {margin:g}: the gallery keeps its model.{advice}"


@app.command(
    "rollback",
    epilog="""\
  zoo gallery rollback gallery/               items that were added since are embedded by the previous model
  zoo gallery rollback gallery/ --discard     free the space; there is no way back then
A second rollback goes forward again, to the newer model.""",
)
def rollback(
    gallery: GalleryFolder,
    model: MovedModel = None,
    discard: Annotated[
        bool, Option("--discard", help="delete the embeddings that are kept; there is no way back then")
    ] = False,
    images: ImageFolders = None,
    missing: MissingImages = "refuse",
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    as_json: Json = False,
) -> int:
    """return a gallery to the model it had before a rebuild"""
    from serving.gallery.rebuild import discard_other, load_previous_model
    from zoo.models.registry import model_reference

    embedding = _Embedding(gallery, images or (), missing, batch_size)
    if discard:
        discard_other(gallery)
        print_outcome(as_json, {"discarded": True}, "the kept embeddings are deleted")
        return 0
    embedder, reference = load_previous_model(gallery, model and model_reference(model), runtime, precision)
    with embedding.upgrade(embedder, reference) as upgrade:
        not_embedded = upgrade.embed()
        if not_embedded and missing == "refuse":
            return _refuse_swap(upgrade, not_embedded, as_json)
        outcome = {**_outcome(upgrade, not_embedded), "swapped": True}
        with upgrade.announced():
            upgrade.swap()
    print_outcome(as_json, outcome, *_embedded_lines(outcome), f"The gallery has {outcome['model']} again.")
    return 0
