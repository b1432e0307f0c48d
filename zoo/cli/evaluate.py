"""`zoo evaluate`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from zoo.cli import measurement, running, strict
from zoo.cli.command import Command
from zoo.cli.measured_on import images_for, leaving_out
from zoo.console import write_errors


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, or the path of a model folder")
    parser.add_argument("--dataset", help="the data set (default: the one that the model was trained for)")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="where the data set lies (default: ZOO_DATA, else downloaded); with --dataset folder the folder itself, "
        "or a table (CSV: image,label). Its folders train and test, or a column split, part it by what to train and to "
        "measure on",
    )
    parser.add_argument(
        "--split",
        default="test",
        help="train or test (default: test, classes never trained on), or all of a folder that is not parted. Of one "
        "that zoo finetune or zoo distill parted, test are the classes that were held out",
    )
    running.configure(parser)
    strict.configure(parser)
    measurement.configure(parser)
    parser.add_argument("--save", action="store_true", help="add the measurement to the model folder's results.json")


def _run(args: Namespace) -> int:
    from zoo.cards import read_card
    from zoo.datasets import check
    from zoo.evaluation import evaluate
    from zoo.evaluation.groups import groups_of
    from zoo.registry import find
    from zoo.results import add_result

    groups_of(args.metrics.split(","))
    check(args.dataset or read_card(find(args.model)).dataset, args.split, args.data)  # a model takes seconds to load
    model = running.loaded(args)
    dataset = images_for(model, args.dataset, args.split, args.data)
    with leaving_out() as unreadable:
        result = evaluate(
            model,
            dataset,
            k=args.k,
            batch_size=args.batch_size,
            progress=sys.stderr.isatty(),
            metrics=args.metrics.split(","),
            unreadable=unreadable,
        )
    measurement.tell(result, args)
    if args.save:
        with write_errors(model.folder):
            add_result(model.folder, result)
    return strict.status(args, result.unreadable)


COMMAND = Command(
    summary="measure a model's retrieval on classes it never saw",
    configure=_configure,
    run=_run,
    examples="""\
  zoo evaluate margin-conv4-glyphs                            needs no data and no network
  zoo evaluate margin-conv4-omniglot --data DIR               from the two zip files in DIR
  zoo evaluate margin-conv4-glyphs --runtime onnx --json      without torch, as JSON
  zoo evaluate margin-conv4-glyphs --dataset folder --data DIR   one folder of images a class
  zoo evaluate margin-conv4-glyphs --dataset folder --data birds.csv   a table: image,label and, where parted, split
  zoo evaluate mine --data DIR                                the classes that zoo finetune DIR --as mine held out
  zoo evaluate margin-conv4-glyphs --metrics all              clusters, structure and verification as well
Images of a folder or table that cannot be read are left out, listed and counted: the exit status is 0, with --strict 1.
Of any other data set none may be.""",
)
