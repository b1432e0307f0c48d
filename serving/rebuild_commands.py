"""`zoo gallery rebuild` and `zoo gallery rollback`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving import runtimes
from zoo.cli.command import Command, always
from zoo.console import print_json, print_table
from zoo.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serving.gallery.rebuilding import Missing
    from serving.upgrading import Compared, Upgrade
    from zoo.embedder import Embedder

NAMED = 20
"""How many of the items that cannot be embedded are shown."""


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder; it may be in use")
    parser.add_argument(
        "--images",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="folder where images lie by the items' sources, besides the folders that were indexed; may be repeated",
    )
    parser.add_argument(
        "--missing",
        choices=("refuse", "thumbnail", "drop"),
        default="refuse",
        help="what becomes of items whose image is not found: nothing is exchanged (default), their thumbnail is "
        "embedded, or they are removed for good at the exchange",
    )
    runtimes.configure(parser)
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images embedded at once, default 64")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _configure_rebuild(parser: ArgumentParser) -> None:
    _configure(parser)
    parser.add_argument("--model", required=True, help="name or folder of the new model")
    swap = parser.add_mutually_exclusive_group()
    swap.add_argument("--swap", action="store_true", help="give the gallery the new model, whatever was measured")
    swap.add_argument(
        "--swap-if-not-worse",
        action="store_true",
        help="give it the new model if the 95 %% intervals of new - old lie above -MARGIN for R@1 and MAP@R",
    )
    parser.add_argument("--margin", type=float, default=0.01, help="see --swap-if-not-worse; a fraction, default 0.01")
    parser.add_argument("--queries", type=int, default=2000, metavar="N", help="items that search, default 2000")


def _rebuild(args: Namespace) -> int:
    from serving.commands import model_ref

    if args.queries < 1 or not 0 <= args.margin < 1:
        raise UsageError("--queries is at least 1, and --margin a fraction from 0 to below 1.")
    _check_folders(args.images)
    embedder, ref = runtimes.loaded(args.model, args), model_ref(args.model)
    with _upgrading(args, embedder, ref) as upgrade:
        missing = upgrade.embed()
        if missing and args.missing == "refuse":
            return _refused(args, upgrade, missing)
        told = _told(upgrade, missing)
        with upgrade.announced() if args.swap or args.swap_if_not_worse else nullcontext():
            compared = upgrade.compare(args.queries)
            not_worse = compared.not_worse(args.margin)
            swapped = args.swap or (args.swap_if_not_worse and not_worse)
            if swapped:
                upgrade.swap()
        told |= {
            "compared": compared.rows or None,
            "not_compared": compared.reason,
            "not_worse": not_worse,
            "index": asdict(compared.index),
            "swapped": swapped,
        }
    if args.json:
        print_json(told)
    else:
        _show_made(told)
        _show_compared(compared)
        _show_decision(args, compared, not_worse, swapped)
    return 1 if args.swap_if_not_worse and not swapped else 0


def _upgrading(args: Namespace, embedder: Embedder, ref: str) -> AbstractContextManager[Upgrade]:
    from serving.upgrading import upgrading

    return upgrading(args.gallery, embedder, ref, args.images, args.missing, args.batch_size, sys.stderr.isatty())


def _check_folders(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--images {folder}: there is no such folder.")


def _refused(args: Namespace, upgrade: Upgrade, missing: Sequence[Missing]) -> int:
    told = {**_told(upgrade, missing), "swapped": False}
    if args.json:
        print_json(told)
    else:
        _show_made(told)
        print(
            "Nothing is exchanged. Name the folders where the images lie with --images, or choose --missing thumbnail "
            "or --missing drop; what was embedded is kept for the next call."
        )
    return 1


def _told(upgrade: Upgrade, missing: Sequence[Missing]) -> dict[str, Any]:
    return {
        "gallery": str(upgrade.path),
        "model": upgrade.embedder.card.name,
        "embedded": upgrade.made,
        "from_thumbnails": upgrade.from_thumbnails(),
        "rule": upgrade.rule,
        "missing": [asdict(one) for one in missing],
    }


def _show_made(told: dict[str, Any]) -> None:
    print(f"{told['embedded']:,} items embedded by {told['model']} now")
    if told["from_thumbnails"]:
        print(f"{told['from_thumbnails']:,} of all are embedded by their thumbnails, as their images were not found")
    for one in told["missing"][:NAMED]:
        print(f"not embedded: {one['item']} {one['source']}: {one['reason']}")
    if len(told["missing"]) > NAMED:
        print(f"... and {len(told['missing']) - NAMED:,} more; --json names all")


def _show_compared(compared: Compared) -> None:
    if compared.reason is not None:
        print(f"not compared: {compared.reason}")
        return
    rows = [
        (
            when,
            one["step"],
            *(f"{one['metrics'][name]:.4f}" for name in ("recall_at_1", "map_at_r")),
            *(_difference(one["loss"], name) for name in ("recall_at_1", "map_at_r")),
        )
        for when, one in zip(("before", "after"), compared.rows, strict=True)
    ]
    columns = ("", "model", "R@1", "MAP@R", "R@1, new - old", "MAP@R, new - old")
    print_table(columns, rows, numbers=columns[2:])
    print(
        f"{compared.rows[1]['queries']:,} labelled items search; 95 % intervals of the paired differences, over labels"
    )
    if compared.index.recall is not None:
        print(f"index of the new model: {compared.index.kind}, finds {compared.index.recall:.4f} of the nearest")


def _difference(loss: dict[str, Any] | None, name: str) -> str:
    if loss is None:
        return ""
    interval = loss["intervals"].get(name)
    return f"{0 - loss[name]:+.4f}" + (f" [{0 - interval[1]:+.4f}, {0 - interval[0]:+.4f}]" if interval else "")


def _show_decision(args: Namespace, compared: Compared, not_worse: bool, swapped: bool) -> None:
    if swapped:
        print(f"The gallery has the new model. To go back: zoo gallery rollback {args.gallery}")
    elif (unknown := compared.undecided()) is not None:
        kept = ": the gallery keeps its model" if args.swap_if_not_worse else ""
        print(
            f"Whether the new model is worse is not known, as {unknown}{kept}. Label items of the gallery and call "
            "this again, or give it the new model whatever it does, with --swap."
        )
    elif args.swap_if_not_worse:
        print(f"It is not shown that no score falls by more than {args.margin:g}: the gallery keeps its model.")
    else:
        verdict = "not worse" if not_worse else "not shown to be no worse"
        print(f"The new model is {verdict}. To give it to the gallery, call this again with --swap.")


def _configure_rollback(parser: ArgumentParser) -> None:
    _configure(parser)
    parser.add_argument("--model", help="name or folder of the model before, if it has moved")
    parser.add_argument(
        "--discard",
        action="store_true",
        help="let go of the embeddings that are kept; there is no way back then",
    )


def _rollback(args: Namespace) -> int:
    from serving.upgrading import discard, load_replaced

    _check_folders(args.images)
    if args.discard:
        discard(args.gallery)
        print_json({"discarded": True}) if args.json else print("what was kept is gone")
        return 0
    embedder, ref = load_replaced(args.gallery, args.model, args.runtime, args.precision)
    with _upgrading(args, embedder, ref) as upgrade:
        missing = upgrade.embed()
        if missing and args.missing == "refuse":
            return _refused(args, upgrade, missing)
        told = {**_told(upgrade, missing), "swapped": True}
        with upgrade.announced():
            upgrade.swap()
    if args.json:
        print_json(told)
    else:
        _show_made(told)
        print(f"The gallery has {told['model']} again.")
    return 0


REBUILD = Command(
    "embed a gallery anew by another model, compare the two, and exchange them, while it is in use",
    _configure_rebuild,
    _rebuild,
    """  zoo gallery rebuild gallery/ --model better                     embeds and compares; the gallery stays as it is
  zoo gallery rebuild gallery/ --model better --swap-if-not-worse  the exit status is 1 where it keeps its model
  zoo gallery rebuild gallery/ --model better --swap --images photos/ --missing thumbnail
Broken off, it goes on where it was when it is called again. What is added, removed and labelled meanwhile is taken up;
services that run take the new model over by themselves. Images of at most 128 pixels need no file: their thumbnails
are the images. What was found out with the old model goes with it; a calibration is made anew. There is room for one
other model: a rebuild lets go of what an earlier one has left.""",
    resumes=always,
)
ROLLBACK = Command(
    "give a gallery the model again that it had before a rebuild",
    _configure_rollback,
    _rollback,
    """  zoo gallery rollback gallery/               items that were added since are embedded by the model before
  zoo gallery rollback gallery/ --discard     free the space; there is no way back then
Called again it goes forward again, to the model that was gone back from.""",
)
