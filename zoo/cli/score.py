"""`zoo score`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli import measurement
from zoo.cli.command import Command

if TYPE_CHECKING:
    from zoo.embedding_files import Embeddings
    from zoo.embedding_records import EmbeddingRecord
    from zoo.results import Evaluation


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("embeddings", type=Path, help="a row an image: .npy, or .safetensors with embeddings")
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="each row's class: .npy, .csv with the column label, or text with a label a line (default: the tensor "
        "labels beside the embeddings)",
    )
    parser.add_argument(
        "--queries",
        type=Path,
        metavar="FILE",
        help="1 for each row that searches, 0 for the gallery: .npy, .csv with the column query, or a line a row "
        "(default: each row searches all others)",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="refuse rows of any other model, or of none that is known: a name, or a folder"
    )
    parser.add_argument(
        "--dataset", metavar="D", help="instead of labels: the data set whose images these are, in order"
    )
    parser.add_argument("--data", metavar="DIR", help="where the data set lies (default: ZOO_DATA, else downloaded)")
    parser.add_argument("--split", help="train or test (default: test)")
    measurement.configure(parser)


def _run(args: Namespace) -> int:
    from zoo.embedding_files import check_table, read_labels, read_queries
    from zoo.errors import UsageError
    from zoo.evaluation import evaluate
    from zoo.evaluation.groups import groups_of

    metrics = groups_of(args.metrics.split(","))
    if args.dataset is None and (args.data or args.split):
        raise UsageError("--data and --split are of a data set, which --dataset names.")
    rows, labels, record = _rows(args)
    _check_out(args, record)
    if args.labels is not None:
        labels = read_labels(args.labels)
    elif args.dataset is not None:
        labels = None
    elif labels is None:
        beside = args.embeddings.with_suffix(".csv")
        hint = f" {beside} lies beside them: --labels {beside}" if beside.is_file() else ""
        raise UsageError(
            f"of which classes are the rows? Name their labels (--labels FILE) or data set (--dataset D).{hint}"
        )
    if labels is not None and rows.ndim == 2 and labels.ndim == 1 and len(labels) != len(rows):
        where = args.labels or args.embeddings
        raise UsageError(f"{args.embeddings} has {len(rows):,} rows, and {where} {len(labels):,} labels; one a row.")
    queries = None if args.queries is None else read_queries(args.queries)
    if queries is not None and rows.ndim == 2 and queries.ndim == 1 and len(queries) != len(rows):
        raise UsageError(f"{args.embeddings} has {len(rows):,} rows, and {args.queries} {len(queries):,}; one a row.")
    for table in (args.labels, args.queries):
        if record is not None and table is not None:
            check_table(args.embeddings, record, table)
    split = args.split or "test"
    result = evaluate(rows, args.dataset, split, args.data, labels, args.k, metrics=metrics, queries=queries)
    measurement.tell(result if record is None else _of(result, record), args)
    return 0


def _of(result: Evaluation, record: EmbeddingRecord) -> Evaluation:
    """The measurement with the model that made the rows."""
    return replace(
        result,
        model=record.name,
        fingerprint=record.fingerprint,
        runtime=record.runtime,
        precision=record.precision,
    )


def _rows(args: Namespace) -> Embeddings:
    """The rows, of the model that --model names."""
    from zoo.cards import read_card
    from zoo.embedding_files import read_embeddings
    from zoo.errors import UsageError
    from zoo.registry import find

    if args.model is None:
        return read_embeddings(args.embeddings)
    card = read_card(find(args.model))
    found = read_embeddings(args.embeddings)
    if found.record is None:
        raise UsageError(
            f"{args.embeddings} does not say which model made its rows, so they cannot be shown to be of {card.name}. "
            f"Rows that say so are made by: zoo embed {args.model} ..."
        )
    found.record.check_model(args.embeddings, card)
    return found


def _check_out(args: Namespace, record: EmbeddingRecord | None) -> None:
    """Raise `UsageError` where --out is one of the files that are read."""
    from zoo.embedding_files import written_with
    from zoo.errors import UsageError

    rows = [args.embeddings] if record is None else written_with(args.embeddings)
    given = [path.resolve() for path in (*rows, args.labels, args.queries) if path is not None]
    if args.out is not None and args.out.resolve() in given:
        raise UsageError(f"{args.out} is what is measured; name another --out.")


COMMAND = Command(
    summary="measure embeddings of any origin, from files",
    configure=_configure,
    run=_run,
    examples="""\
  zoo score rows.npy --labels labels.txt                   float [n, dim] and a label a line
  zoo score rows.safetensors --metrics all --json          with the tensors embeddings and labels
  zoo score rows.npy --labels l.csv --queries l.csv        its columns label and query: queries search the others
  zoo score rows.npy --labels rows.csv --model mine        what zoo embed wrote: refused where another model made it
  zoo score rows.npy --dataset inshop --data DIR -k 1,10,20,30   its queries search its gallery
Rows that zoo embed wrote know their model: it is told with the scores, and rows that were cut off, exchanged or changed
since are refused. Of rows of other origin no model is known.""",
)
