"""`zoo baseline`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from zoo.cli import strict
from zoo.cli.command import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zoo.errors import ImageError
    from zoo.images import ImageLike


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="a public backbone (zoo list --status hub), timm/ID, or a folder of one")
    parser.add_argument("--as", dest="own", required=True, metavar="OWN", help="the name it gets in the local zoo")
    parser.add_argument(
        "--whiten",
        metavar="DIR",
        help="fit PCA whitening on all images in this folder, or of a table (CSV with the column image; where there is "
        "a column split, on those to train on)",
    )
    parser.add_argument("--whiten-on", metavar="DATASET", help="or on the training split of this data set")
    parser.add_argument("--data", metavar="DIR", help="where that data set lies (default: ZOO_DATA, else downloaded)")
    parser.add_argument("--dim", type=int, metavar="N", help="dimensions that whitening keeps (default: all)")
    parser.add_argument("--size", type=int, metavar="N", help="pixels of the input (default: the backbone's own)")
    parser.add_argument("--joint", action="store_true", help="keep CLIP's projection into the space of its texts")
    parser.add_argument("--limit", type=int, metavar="N", help="fit on so many of the images, drawn evenly")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images a step (default: 64)")
    parser.add_argument("--device", help="cpu, cuda, cuda:N (default: the best there is)")
    strict.configure(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> int:
    from zoo import paths
    from zoo.console import note_left_out, print_json
    from zoo.registry import find

    images = _images(args)
    folder = find(args.name)
    from zoo.baselines.own import save_as  # torch, not before the arguments were looked at

    bar, joint = sys.stderr.isatty(), args.joint
    # One picture that is none does not spoil a folder; a data set of a name is whole or it is an error.
    unreadable: dict[int, ImageError] | None = {} if args.whiten else None
    how = (args.dim, args.size, args.batch_size, bar, args.device, joint, unreadable)
    card = save_as(folder, args.own, images, *how)
    out = paths.local_models() / args.own
    note_left_out((unreadable or {}).values())
    if args.json:
        print_json({"folder": str(out), "card": card.to_json()})
    else:
        fitted = f", whitened on {len(images) - len(unreadable or {}):,} images" if images is not None else ""
        print(f"{args.own}: {card.dim} numbers of {card.architecture}{fitted}, written to {out}")
    return strict.status(args, unreadable)


def _images(args: Namespace) -> Sequence[ImageLike] | None:
    """The images to fit whitening on; None where it isn't wanted."""
    from zoo.baselines.saving import images_of
    from zoo.datasets import load
    from zoo.errors import UsageError

    if args.whiten and args.whiten_on:
        raise UsageError(
            "whitening is fitted on a folder or table (--whiten) or on a data set (--whiten-on), not on both."
        )
    if args.whiten_on:
        return images_of(load(args.whiten_on, "train", args.data).images, args.limit, args.batch_size)
    return images_of(args.whiten or None, args.limit, args.batch_size)


COMMAND = Command(
    summary="save a public backbone as a model of one's own, whitened on one's own images if wanted",
    configure=_configure,
    run=_run,
    examples="""\
  zoo baseline dinov2-s14 --as photos --size 224 --whiten ~/Pictures --dim 128
  zoo baseline dinov2-s14 --as birds --whiten birds.csv  the images of a table; it needs no labels
  zoo baseline timm/resnet50.a1_in1k --as r50-plain
  zoo baseline clip-b16 --as clip-cub --whiten-on cub --dim 256 --limit 5000
  zoo baseline clip-b32 --as clip-texts --joint          for text queries: then zoo text-tower clip-texts ...
  zoo evaluate photos --dataset folder --data DIR        as any model: zoo index, zoo export, zoo verify
Images of --whiten that cannot be read are left out and listed: the exit status is 0, with --strict 1.""",
)
