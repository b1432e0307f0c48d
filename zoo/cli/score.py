"""`zoo score`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli import measurement
from zoo.cli.command import Command


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
        "--dataset", metavar="D", help="instead of labels: the data set whose images these are, in order"
    )
    parser.add_argument("--data", metavar="DIR", help="where the data set lies (default: ZOO_DATA, else downloaded)")
    parser.add_argument("--split", help="train or test (default: test)")
    measurement.configure(parser)


def _run(args: Namespace) -> int:
    from zoo.embedding_files import read_embeddings, read_labels, read_queries
    from zoo.errors import UsageError
    from zoo.evaluation import evaluate
    from zoo.evaluation.groups import groups_of

    given = [path.resolve() for path in (args.embeddings, args.labels, args.queries) if path is not None]
    if args.out is not None and args.out.resolve() in given:
        raise UsageError(f"{args.out} is what is measured; name another --out.")
    metrics = groups_of(args.metrics.split(","))
    if args.dataset is None and (args.data or args.split):
        raise UsageError("--data and --split are of a data set, which --dataset names.")
    rows, labels = read_embeddings(args.embeddings)
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
    split = args.split or "test"
    result = evaluate(rows, args.dataset, split, args.data, labels, args.k, metrics=metrics, queries=queries)
    measurement.tell(result, args)
    return 0


COMMAND = Command(
    summary="measure embeddings of any origin, from files",
    configure=_configure,
    run=_run,
    examples="""\
  zoo score rows.npy --labels labels.txt                   float [n, dim] and a label a line
  zoo score rows.safetensors --metrics all --json          with the tensors embeddings and labels
  zoo score rows.npy --labels l.csv --queries l.csv        its columns label and query: queries search the others
  zoo score rows.npy --dataset inshop --data DIR -k 1,10,20,30   its queries search its gallery""",
)
