"""`zoo evaluate`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from zoo.cli import measurement, running, strict
from zoo.cli.command import Command
from zoo.cli.output import naming, note

if TYPE_CHECKING:
    from zoo.embedder import Embedder
    from zoo.errors import ImageError
    from zoo.results import Evaluation

SEEN = """\
{name} was trained on a folder of images. If it was this one, it has seen these classes, and the scores say little of \
new ones: zoo train and zoo evaluate part a folder that has the folders train and test, zoo finetune any other."""


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
        help="train or test (default: test, classes never trained on); all of a folder that is not parted. Where zoo "
        "finetune parted one, test are the classes that it held out",
    )
    running.configure(parser)
    strict.configure(parser)
    measurement.configure(parser)
    parser.add_argument("--save", action="store_true", help="add the measurement to the model folder's results.json")


def _run(args: Namespace) -> int:
    from zoo.cards import read_card
    from zoo.datasets import check
    from zoo.datasets.dataset import WHOLE
    from zoo.evaluation.groups import groups_of
    from zoo.registry import find
    from zoo.results import add_result

    groups_of(args.metrics.split(","))
    check(args.dataset or read_card(find(args.model)).dataset, args.split, args.data)  # a model takes seconds to load
    model = running.loaded(args)
    result = _measured(model, args)
    if result.split == WHOLE and model.card.dataset == result.dataset:
        note(SEEN.format(name=model.card.name))
    measurement.tell(result, args)
    if args.save:
        with naming(model.folder):
            add_result(model.folder, result)
    return strict.status(args, result.unreadable)


def _measured(model: Embedder, args: Namespace) -> Evaluation:
    from zoo.evaluation import evaluate
    from zoo.held_out import split_for

    found = split_for(model.folder, model.card, args.dataset or model.card.dataset, args.split, args.data)
    for said in found.notes:
        note(said)
    unreadable: dict[str, ImageError] = {}
    try:
        return evaluate(
            model,
            found.dataset,
            k=args.k,
            batch_size=args.batch_size,
            progress=sys.stderr.isatty(),
            metrics=args.metrics.split(","),
            unreadable=unreadable,
        )
    finally:  # where nothing is left to measure, these say why
        for error in unreadable.values():  # which name their images
            note(f"left out: {error}")


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
