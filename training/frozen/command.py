"""`zoo features`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command

if TYPE_CHECKING:
    from training.frozen.extract import Model
    from training.frozen.views import Views


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name, or the path of a model folder")
    parser.add_argument("folder", nargs="?", metavar="DIR", help="a folder of images, a subfolder a class")
    parser.add_argument("--dataset", help="a data set by name, instead of a folder")
    parser.add_argument("--data", metavar="DIR", help="where that data set lies (default: ZOO_DATA, else downloaded)")
    parser.add_argument("--split", default="train", help="train or test (default: train)")
    parser.add_argument("-o", "--out", required=True, type=Path, metavar="FILE", help="the .safetensors file to write")
    parser.add_argument("--views", type=int, default=8, metavar="N", help="augmented views of each image (default: 8)")
    parser.add_argument(
        "--recipe", metavar="NAME", help="the recipe whose augmentation makes the views (default: the model's own)"
    )
    parser.add_argument("--dtype", default="float16", choices=("float16", "float32"), help="default: float16")
    parser.add_argument("--seed", type=int, default=0, help="of the views (default: 0)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images a step (default: 64)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _run(args: Namespace) -> int:
    from zoo import datasets
    from zoo.console import print_json
    from zoo.errors import UsageError
    from zoo.loading import find

    if (args.folder is None) == (args.dataset is None):
        raise UsageError("name a folder of images, or a data set with --dataset; one of the two.")
    if args.batch_size < 1:
        raise UsageError(f"--batch-size is 1 or more, not {args.batch_size}.")
    name, root = ("folder", args.folder) if args.dataset is None else (args.dataset, args.data)
    datasets.check(name, args.split, root)
    find(args.model)
    from training.frozen.extract import extract  # torch, not before the arguments were looked at
    from training.run import Place
    from zoo.torch_runtime import choose_device

    model = _model(args.model)
    views = _views(model, args)
    dataset = datasets.load(name, args.split, root)
    place = Place(choose_device(args.device))
    extract(model, dataset, args.out, views, args.dtype, place, args.batch_size, not args.quiet)
    size = args.out.stat().st_size
    if args.json:
        print_json({"file": str(args.out), "images": len(dataset), "views": views.count, "bytes": size})
    else:
        print(
            f"{len(dataset):,} images of {len(dataset.classes):,} classes, {views.count} views of each: {args.out} "
            f"({size / 2**20:,.0f} MiB)\nTrain on them with: zoo train RECIPE --features {args.out}"
        )
    return 0


def _model(name: str) -> Model:
    from training.frozen.extract import Model
    from zoo.cards import read_card
    from zoo.loading import find
    from zoo.paths import expand
    from zoo.references import reference

    folder = find(name)
    # A path is remembered as what is found from anywhere.
    return Model(folder, read_card(folder), reference(folder) if expand(name).resolve() == folder.resolve() else name)


def _views(model: Model, args: Namespace) -> Views:
    from training.frozen.views import usual_views, views_of

    if args.recipe is not None:
        from training.resolving import resolve

        return views_of(resolve(args.recipe), args.views, args.seed)
    return usual_views(model.folder, model.card.preprocessing, args.views, args.seed)


COMMAND = Command(
    summary="keep what a model's trunk makes of every image, to train heads on in minutes",
    configure=_configure,
    run=_run,
    examples="""\
  zoo features softmax-conv4-cifar100 --dataset cifar100 --data DIR -o f.safetensors
  zoo features margin-conv4-glyphs pictures/ -o f.safetensors --views 16 --dtype float32
  zoo train diva-conv4-cifar100 --features f.safetensors --as mine        heads of a recipe on them

The file holds the trunk's pooled features (before any heads) of each image as it is and of N random views of it, by the
augmentation of the recipe that made the model, else by random resized crops and mirror images. It is of that one model:
training with another, or with changed weights, is refused.""",
)
