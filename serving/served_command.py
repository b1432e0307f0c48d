"""`zoo benchmark served`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.cli.command import Command
from zoo.console import note, note_left_out, print_json, print_table

if TYPE_CHECKING:
    from serving.gallery import Gallery
    from zoo.datasets.dataset import Dataset


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder")
    parser.add_argument("--dataset", help="the data set to embed (default: the one that the model was trained for)")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="where it lies; for --dataset folder, the folder or table"
    )
    parser.add_argument("--split", default="test", help="train or test (default: test)")
    parser.add_argument("--model", help="name or folder of the gallery's model, if it has moved")
    parser.add_argument("--queries", type=int, default=2000, metavar="N", help="items that search, default up to 2000")
    parser.add_argument(
        "--torch", choices=("auto", "yes", "no"), default="auto", help="measure the torch model (default: if installed)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _run(args: Namespace) -> None:
    from serving.gallery import Gallery
    from serving.served import measure

    with_torch = {"auto": None, "yes": True, "no": False}[args.torch]
    with Gallery.open(args.gallery) as gallery:
        dataset = _dataset(gallery, args)
        outcome = measure(gallery, args.model or gallery.model_ref, dataset, with_torch, args.queries)
    if args.json:
        print_json(outcome)
    else:
        _print_for_people(outcome)


def _dataset(gallery: Gallery, args: Namespace) -> Dataset | None:
    """The data set asked for; the model's own may be missing, and then the gallery's steps alone are measured."""
    from zoo.datasets import load
    from zoo.datasets.dataset import FOLDER
    from zoo.errors import DatasetError
    from zoo.reading import readable

    if args.dataset or args.data:
        dataset = load(args.dataset or gallery.card.dataset, args.split, args.data)
        dataset, unreadable = readable(dataset) if dataset.name == FOLDER else (dataset, {})
        note_left_out(unreadable.values())
        return dataset
    try:
        return load(gallery.card.dataset, args.split)
    except DatasetError as error:
        note(f"only the gallery is measured; name the images to embed with --dataset: {error}")
        return None


def _print_for_people(outcome: dict[str, Any]) -> None:
    index = outcome["index"]
    print(f"{outcome['gallery']}: {outcome['items']:,} items embedded by {outcome['model']}, {index['kind']} index")
    if (recall := outcome["index_recall_at_10"]) is not None:
        print(f"the index finds {recall:.4f} of the 10 nearest that exact search finds")
    if outcome["dataset"]:
        same = "the gallery's own images" if outcome["same_images"] else "not the gallery's images: apart from it"
        print(f"models are measured on {outcome['dataset']} ({same})")
    columns = ("step", "queries", "R@1", "loss of R@1", "95 %", "MAP@R", "loss of MAP@R", "95 %")
    numbers = [column for column in columns[1:] if column != "95 %"]
    print_table(columns, [_row(step) for step in outcome["steps"]], numbers)


def _row(step: dict[str, Any]) -> list[str]:
    cells = [step["step"], f"{step['queries']:,}"]
    for name in ("recall_at_1", "map_at_r"):
        loss = step["loss"]
        bounds = loss["intervals"].get(name) if loss else None
        cells += [
            f"{step['metrics'][name]:.4f}",
            f"{loss[name]:+.4f}" if loss else "-",
            f"{bounds[0]:+.4f} to {bounds[1]:+.4f}" if bounds else "-",
        ]
    return cells


COMMAND = Command(
    summary="what retrieval loses on its way into service: torch, each ONNX variant, a gallery's index",
    configure=_configure,
    run=_run,
    examples="""\
  zoo benchmark served gallery/                                   the model's data set, then the gallery's items
  zoo benchmark served gallery/ --dataset folder --data photos/   the very images that were indexed: one chain
  zoo benchmark served gallery/ --torch no --json                 without torch, as JSON
Images of a folder or table that cannot be read are left out and listed.
A loss is against the step before; its interval is of paired differences, over classes.""",
)
