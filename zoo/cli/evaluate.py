"""`zoo evaluate`, `embed`, `score` and `data`: measure models and embeddings, write embeddings and images."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from zoo.cli.options import (
    BatchSize,
    Data,
    Dataset,
    Device,
    Exclude,
    FollowLinks,
    Json,
    Latex,
    Margins,
    Model,
    OptionalSplit,
    Precision,
    Runtime,
    Split,
    Strict,
    leaving_out,
    numbers,
    open_model_and_images,
    print_outcome,
    strict_status,
    words,
)
from zoo.console import (
    count,
    print_json,
    print_table,
    show,
    tables_in_latex,
    write_errors,
)
from zoo.errors import command

if TYPE_CHECKING:
    import numpy as np

    from zoo.evaluation.embeddings import EmbeddingRecord, Embeddings
    from zoo.models.results import Evaluation


app = typer.Typer()

Depths = Annotated[
    list[str] | None,
    Option(
        "-k",
        metavar="K",
        help="recall at which K, as 10 or 1,10,100; repeatable (default: 1,2,4,8, fewer for few images)",
    ),
]
Metrics = Annotated[
    list[str] | None,
    Option(
        metavar="GROUP",
        help="retrieval, ranking, clustering, structure, verification or all; repeatable (default: retrieval)",
    ),
]
Rerank = Annotated[
    Literal["none", "expansion", "augmentation", "diffusion", "reciprocal"],
    Option(
        "--rerank",
        help="order the neighbours of each query without labels: expansion (alpha query expansion), augmentation "
        "(database-side), diffusion, reciprocal (k-reciprocal)",
    ),
]
ResultFile = Annotated[
    Path | None, Option("--out", metavar="FILE", help="also write the measurement to this JSON file")
]

# zoo evaluate


@app.command(
    "evaluate",
    epilog="""\
  zoo evaluate margin-conv4-glyphs                            needs no data and no network
  zoo evaluate margin-conv4-omniglot --data DIR               from the two zip files in DIR
  zoo evaluate margin-conv4-glyphs --runtime onnx --json      without torch, as JSON
  zoo evaluate margin-conv4-glyphs --dataset folder --data DIR   one subfolder of images per class
  zoo evaluate margin-conv4-glyphs --dataset folder --data birds.csv   a table: image,label, and split if it is split
  zoo evaluate mine --data DIR                                the classes that zoo finetune DIR --as mine held out
  zoo evaluate margin-conv4-glyphs --metrics all              clusters, structure and verification as well
  zoo evaluate margin-conv4-glyphs --rerank diffusion         the order of the neighbours, changed without labels
Images of a folder or table that cannot be read are left out, listed and counted: the exit status is 0, with --strict 1.
In any other data set, an unreadable image is an error.

The folders train and test of a folder, or the column split of a table, say what to train and what to measure on. In a
folder that zoo finetune or zoo distill split, --split test means the classes that were held out; --split all means all
of a folder that is not split.""",
)
def evaluate(
    model: Model,
    dataset: Dataset = None,
    data: Data = None,
    split: Split = "test",
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    device: Device = None,
    batch_size: BatchSize = 64,
    strict: Strict = False,
    k: Depths = None,
    metrics: Metrics = None,
    rerank: Rerank = "none",
    latex: Latex = False,
    as_json: Json = False,
    out: ResultFile = None,
    save: Annotated[bool, Option("--save", help="add the measurement to the model folder's results.json")] = False,
) -> int:
    """measure a model's retrieval on classes it never saw"""
    from zoo.errors import UsageError
    from zoo.evaluation import evaluate as measure
    from zoo.evaluation.evaluate import check_reranking, parse_groups
    from zoo.models.names import find_model
    from zoo.models.results import add_result

    groups = words(metrics) or ["retrieval"]
    check_reranking(rerank, parse_groups(groups))
    if save and rerank != "none":
        raise UsageError(
            "--save keeps scores of the model's own order, with which others are compared; write re-ranked ones with "
            "--out FILE.",
            code="conflicting-options",
        )
    if save:
        _check_not_shipped(find_model(model))
    started = time.monotonic()
    embedder, images = open_model_and_images(model, dataset, split, data, runtime, precision, device)
    with leaving_out() as unreadable:
        result = measure(
            embedder,
            images,
            k=numbers(k) or None,
            batch_size=batch_size,
            progress=True,
            metrics=groups,
            unreadable=unreadable,
            rerank=rerank,
        )
    if save:  # before a closed pipe (`| head`) ends the command
        with write_errors(embedder.folder):
            add_result(embedder.folder, result)
    with tables_in_latex(latex):
        _print_result(result, as_json, out, time.monotonic() - started)
    return strict_status(strict, result.unreadable)


def _check_not_shipped(folder: Path) -> None:
    """Refuse to write scores into a model of the installed package.

    Raises:
        UsageError: If the model is shipped (code "not-available").
    """
    from zoo import paths
    from zoo.errors import UsageError

    if folder.resolve().is_relative_to(paths.SHIPPED.resolve()):
        copy = paths.local_models() / folder.name
        make, fill = ["mkdir", "-p", str(copy.parent)], ["cp", "-r", str(folder), str(copy)]
        raise UsageError(
            f"{folder.name} is shipped with the package, where --save must not write. Save the measurement with --out "
            f"FILE, or measure a copy: {shlex.join(make)} && {shlex.join(fill)}",
            code="not-available",
        )


def _print_result(result: Evaluation, as_json: bool, out: Path | None, seconds: float) -> None:
    """Print the measurement, and write it to a file if one is named."""
    from zoo.files import write_json

    if as_json:
        print_json({**result.to_json(), "seconds": seconds})
    else:
        _print_scores(result)
    if out:
        with write_errors(out):
            write_json(out, result.to_json())


def _print_subject(result: Evaluation, file: str = "") -> None:
    """Print what was measured on what, and how."""
    from zoo.data.dataset import split_title
    from zoo.models.results import data_title, origin_text

    facts = result.to_json()
    subject = (
        f"{result.model} ({result.runtime}, {result.precision})" if result.model else count(result.dim, "dimension")
    )
    subject = f"{file}: {subject}" if file else subject
    show(f"{subject} on {data_title(facts)}" + (f", {split_title(result.split)}" if result.dataset else ""))
    show(origin_text(facts))


def _print_scores(result: Evaluation) -> None:
    from zoo.models.results import metric_table

    _print_subject(result)
    if result.unreadable:
        show(f"{count(result.unreadable, 'image')} could not be read; the scores are of the others")
    if result.identical is not None:
        show(result.identical.text)
    if result.queries_without_relatives == 1:
        show("1 image is alone in its class and was left out as a query")
    elif result.queries_without_relatives:
        show(
            f"{count(result.queries_without_relatives, 'image')} are alone in their class and were left out as queries"
        )
    if result.classes == 1:
        show("all of them are of one class, so every neighbour counts as right: this measures nothing")
    print_table(metric_table(result.metrics, result.intervals))


# zoo embed


@app.command(
    "embed",
    epilog="""\
  zoo embed margin-conv4-glyphs pictures --out rows.npy    and rows.csv: path,label, one line per row; rows.json: model
  zoo score rows.npy --labels rows.csv                     the label is the folder of the image
  zoo embed mine pictures --out int8.npy --runtime onnx --precision int8
  zoo embed mine birds.csv --out listed.npy                image,label: listed.csv gets its labels, split and query, too
  zoo embed mine pictures --out mine.safetensors           labels and model in the file itself; and mine.csv
Images that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
)
def embed(
    model: Model,
    images: Annotated[
        Path, Argument(metavar="IMAGES", help="a folder of images, a table of them (CSV: image,label), or one image")
    ],
    out: Annotated[Path, Option(metavar="FILE", help="rows float32 [n, dim]: .npy or .safetensors")],
    overwrite: Annotated[bool, Option("--replace", help="overwrite files that exist")] = False,
    runtime: Runtime = "auto",
    precision: Precision = "fp32",
    device: Device = None,
    batch_size: BatchSize = 64,
    exclude: Exclude = None,
    follow_links: FollowLinks = False,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """write the embeddings of a folder or table of images to a file"""
    from zoo.evaluation.embed import embed as embed_images

    started = time.monotonic()
    embedded = embed_images(
        model,
        images,
        out,
        replace=overwrite,
        runtime=runtime,
        precision=precision,
        device=device,
        batch_size=batch_size,
        exclude=exclude or (),
        follow_links=follow_links,
        progress=True,
    )
    file, table, *record = embedded.files
    outcome = {
        "embeddings": str(file),
        "table": str(table),
        "record": str(*record or [file]),
        "model": embedded.model.card.identity,
        "images": len(embedded.rows),
        "dim": embedded.model.dim,
        "runtime": embedded.model.runtime,
        "seconds": time.monotonic() - started,
        **embedded.left_out,
    }
    model_file = f"; their model: {record[0]}" if record else ""
    size = f"{count(len(embedded.rows), 'image')}, {count(embedded.model.dim, 'dimension')}"
    line = f"{size}: {file}; their names and labels: {table}{model_file}"
    print_outcome(as_json, outcome, line)
    return strict_status(strict, outcome["unreadable"])


# zoo score


@app.command(
    "score",
    epilog="""\
  zoo score rows.npy --labels labels.txt                   float [n, dim] and one label per line
  zoo score mine.safetensors --metrics all --json          with the tensors embeddings and labels
  zoo score rows.npy other.npy --labels labels.txt --margin map_at_r=.005   better, worse, equivalent or undecided
  zoo score rows.npz                                       with the arrays embeddings and labels (np.savez)
  zoo score rows.npy --labels l.csv --queries l.csv        its columns label and query: queries search the others
  zoo score mine.npy --labels mine.csv --model mine        written by zoo embed: refused if another model made it
  zoo score rows.npy --labels labels.txt --rerank expansion   a further order of the neighbours, without labels
  zoo score rows.npy --dataset inshop --data DIR -k 1,10,20,30   its queries search its gallery
  zoo score rows.npy --labels labels.txt --memory 2GiB     rows that exceed the memory; .npy is read block by block
Rows that zoo embed wrote name their model, which is printed with the scores; rows that were cut off, exchanged or
changed since are refused. For other rows no model is known.""",
)
def score(
    embeddings: Annotated[
        Path, Argument(metavar="ROWS", help="one row per image: .npy, or .safetensors or .npz with embeddings")
    ],
    other: Annotated[
        Path | None, Argument(metavar="[OTHER]", help="rows of the same images by another model, to compare with")
    ] = None,
    labels: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="class of each row: .npy, .csv with the column label, or text with one label per line (default: the "
            "array labels in the file of embeddings)",
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="1 for a query row, 0 for a gallery row: .npy, .csv with the column query, or one line per "
            "row (default: each row searches all others)",
        ),
    ] = None,
    model: Annotated[
        str | None,
        Option(metavar="MODEL", help="name or folder of the only model whose rows are accepted"),
    ] = None,
    dataset: Annotated[
        str | None, Option(metavar="D", help="instead of labels: the data set whose images these are, in order")
    ] = None,
    data: Data = None,
    split: OptionalSplit = None,
    k: Depths = None,
    metrics: Metrics = None,
    rerank: Rerank = "none",
    memory: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help="the largest memory of the process, as 2GiB; the need is printed first, and what does not fit is "
            "refused (default: no limit)",
        ),
    ] = None,
    margins: Margins = None,
    latex: Latex = False,
    as_json: Json = False,
    out: ResultFile = None,
) -> None:
    """measure embeddings of any origin, from files

    With OTHER, the two are compared: its scores are subtracted from those of ROWS, class by class.
    """
    from zoo.errors import UsageError
    from zoo.evaluation import evaluate as measure
    from zoo.evaluation.compare import named
    from zoo.evaluation.embeddings import check_file_fits, read_queries
    from zoo.evaluation.evaluate import METRICS, check_reranking, parse_groups
    from zoo.evaluation.memory import parse_size
    from zoo.evaluation.statistics import check_margins, parse_margins

    groups = parse_groups(words(metrics) or ["retrieval"])
    check_reranking(rerank, groups, memory)
    limits = parse_margins(margins or ())
    if limits and other is None:
        raise UsageError("--margin needs a second file of embeddings to compare with.", code="missing-value")
    check_margins(limits, METRICS)
    if dataset is None and (data or split):
        raise UsageError("--data and --split need --dataset.", code="missing-value")
    started = time.monotonic()
    results = []
    for file in filter(None, (embeddings, other)):
        if memory is not None:
            check_file_fits(file, parse_size(memory))
        rows, classes, record = _rows(file, model)
        _check_out(out, file, record, (labels, queries))
        classes = _labels(file, rows, classes, labels, dataset)
        searching = None if queries is None else read_queries(queries)
        _check_length(file, rows, queries or file, searching, "queries")
        _check_tables(file, record, (labels, queries))
        with named(file):
            result = measure(
                rows,
                dataset,
                split or "test",
                data,
                classes,
                numbers(k) or None,
                metrics=groups,
                queries=searching,
                memory=memory,
                rerank=rerank,
            )
        if dataset is None and result.data is not None:
            result = replace(result, data=replace(result.data, name=(labels or file).name))
        results.append(result if record is None else _with_model(result, record))
    with tables_in_latex(latex):
        if other is None:
            _print_result(results[0], as_json, out, time.monotonic() - started)
        else:
            _print_comparison((embeddings, other), results, limits, as_json, out)


def _labels(
    file: Path, rows: np.ndarray, own: np.ndarray | None, labels: Path | None, dataset: str | None
) -> np.ndarray | None:
    """Return the classes of the rows: of the file of labels, or else their own; None for those of a data set."""
    from zoo.errors import UsageError
    from zoo.evaluation.embeddings import read_labels

    if labels is not None:
        own = read_labels(labels)
    elif dataset is not None:
        return None
    elif own is None:
        beside = file.with_suffix(".csv")
        hint = f" {beside} exists: {command('score', file, '--labels', beside)}" if beside.is_file() else ""
        raise UsageError(
            f"the classes of the rows are not known. Name labels (--labels FILE) or a data set (--dataset D).{hint}",
            code="no-labels",
        )
    _check_length(file, rows, labels or file, own, "labels")
    return own


def _check_tables(file: Path, record: EmbeddingRecord | None, tables: Sequence[Path | None]) -> None:
    from zoo.evaluation.embeddings import check_table

    for table in tables:
        if record is not None and table is not None:
            check_table(file, record, table)


def _print_comparison(
    files: tuple[Path, Path],
    results: Sequence[Evaluation],
    margins: Mapping[str, float],
    as_json: bool,
    out: Path | None,
) -> None:
    """Print the scores of two files of embeddings and their differences, and write them to a file if one is named.

    Raises:
        UsageError: If the two have other labels (code "other-images").
    """
    from zoo.evaluation.compare import compare_evaluations
    from zoo.evaluation.statistics import VERDICT_RULE
    from zoo.files import write_json

    compared = compare_evaluations(results[0], results[1], margins)
    names = list(map(str, files))
    facts = {"files": names, **compared.to_json()}
    if as_json:
        print_json(facts)
    else:
        for name, result in zip(names, results, strict=True):
            _print_subject(result, name)
        print_table(compared.table(names))
        notes = (difference.note for difference in compared.differences.values())
        family = f"{VERDICT_RULE} The family is the metrics of this table."
        show(*dict.fromkeys(f"Intervals are {note}." for note in notes if note), family)
    if out:
        with write_errors(out):
            write_json(out, facts)


def _rows(file: Path, model: str | None) -> Embeddings:
    """Return the rows of a file, and refuse those that the named model did not make."""
    from zoo.errors import UsageError
    from zoo.evaluation.embeddings import read_embeddings
    from zoo.models.card import read_card
    from zoo.models.names import find_model

    if model is None:
        return read_embeddings(file)
    card = read_card(find_model(model))
    embeddings = read_embeddings(file)
    if embeddings.record is None:
        raise UsageError(
            f"{file} does not say which model made its rows, so they cannot be shown to be of {card.name}. "
            f"Rows that say so are made by: {command('embed', model, 'IMAGES', '--out', file, '--replace')}",
            code="other-model",
        )
    embeddings.record.check_model(file, card)
    return embeddings


def _check_out(
    out: Path | None, embeddings: Path, record: EmbeddingRecord | None, tables: Sequence[Path | None]
) -> None:
    """Raise `UsageError` if --out is one of the files that are read."""
    from zoo.errors import UsageError
    from zoo.evaluation.embeddings import output_files

    rows = [embeddings] if record is None else output_files(embeddings)
    inputs = [path.resolve() for path in (*rows, *tables) if path is not None]
    if out is not None and out.resolve() in inputs:
        raise UsageError(f"{out} is what is measured; name another --out.", code="overwrites-input")


def _check_length(file: Path, rows: np.ndarray, table: Path, values: np.ndarray | None, noun: str) -> None:
    """Raise `UsageError` if there is not one value per row."""
    from zoo.errors import UsageError

    if values is not None and rows.ndim == 2 and values.ndim == 1 and len(values) != len(rows):
        raise UsageError(
            f"{file} has {count(len(rows), 'row')}, and {table} {len(values):,} {noun}; one per row is needed.",
            code="invalid-value",
        )


def _with_model(result: Evaluation, record: EmbeddingRecord) -> Evaluation:
    """Return the measurement with the model that made the rows."""
    return replace(
        result, model=record.name, fingerprint=record.fingerprint, runtime=record.runtime, precision=record.precision
    )


# zoo data


@app.command(
    "data",
    epilog="""\
  zoo data glyphs --out pictures                        the scripts that no glyphs model has seen
  zoo data omniglot --split train --out handwriting""",
)
def data(
    dataset: Annotated[str, Argument(metavar="DATASET", help="name of a data set, as glyphs, omniglot or cub")],
    out: Annotated[str, Option(metavar="DIR", help="folder to write, one subfolder per class")],
    split: Split = "test",
    data: Data = None,
    merge_labels: Annotated[
        bool,
        Option("--merge-labels", help="make one class of labels that differ by spaces, letter case or Unicode form"),
    ] = False,
    as_json: Json = False,
) -> None:
    """write a data set's images as a folder, one subfolder per class"""
    from zoo.data import export_dataset
    from zoo.paths import expand

    images, folder = export_dataset(dataset, out, split, data, merge_labels=merge_labels), expand(out)
    facts = {"folder": str(folder), "images": len(images), "classes": len(images.classes)}
    print_outcome(
        as_json, facts, f"{count(len(images), 'image')} of {count(len(images.classes), 'class')} are in {folder}"
    )
