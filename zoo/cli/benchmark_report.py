"""`zoo benchmark report`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli import running, strict
from zoo.cli.command import Command
from zoo.cli.measured_on import images_for, leaving_out


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, or the path of a model folder")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the page to write (.html)")
    parser.add_argument("--dataset", help="the data set (default: the one that the model was trained for)")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="where the data set lies (default: ZOO_DATA, else downloaded); with --dataset folder the folder itself, "
        "or a table (CSV: image,label)",
    )
    parser.add_argument(
        "--split",
        default="test",
        help="train or test (default: test, classes never trained on), of a folder as zoo evaluate has it; all",
    )
    parser.add_argument("--map", dest="mapping", default="pca", help="pca or tsne (needs scikit-learn; default: pca)")
    running.configure(parser)
    strict.configure(parser)


def _run(args: Namespace) -> int:
    from zoo.cards import read_card
    from zoo.console import write_text
    from zoo.datasets import check
    from zoo.errors import UsageError
    from zoo.loading import find
    from zoo.report.report import report

    if any((Path(args.model) / plan).is_file() for plan in ("plan.json", "search.json")):
        raise UsageError(f"{args.model} is a study, which reports itself: zoo benchmark resume {args.model} --report")
    check(args.dataset or read_card(find(args.model)).dataset, args.split, args.data)  # a model takes seconds to load
    model = running.loaded(args)
    dataset = images_for(model, args.dataset, args.split, args.data)
    with leaving_out() as unreadable:
        text = report(model, dataset, args.mapping, args.batch_size, sys.stderr.isatty(), unreadable)
    write_text(args.out, text)
    print(f"report of {model.card.name} on {dataset.name} written to {args.out} ({len(text.encode()) / 1024:,.0f} KiB)")
    return strict.status(args, unreadable)


COMMAND = Command(
    summary="write a model's report: one HTML page that needs nothing beside it",
    configure=_configure,
    run=_run,
    examples="""\
  zoo benchmark report margin-conv4-glyphs --out glyphs.html
  zoo benchmark report margin-conv4-glyphs --runtime onnx --out glyphs.html      without torch
  zoo benchmark report MODEL --dataset folder --data DIR --out pictures.html     one folder of images a class
  zoo benchmark report mine --data DIR --out mine.html    the classes that zoo finetune DIR --as mine held out
Images of a folder or table that cannot be read are left out and counted: the exit status is 0, with --strict 1.""",
)
