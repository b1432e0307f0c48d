"""`zoo finetune`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from zoo.cli import strict
from zoo.cli.command import Command, always

if TYPE_CHECKING:
    from pathlib import Path

    from training.finetuning.finetune import Fitted

COLUMNS = ("metric", "before", "95 % over classes", "after", "95 %", "difference", "95 %, paired")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="DIR", help="a folder with a subfolder a class, or a table (CSV: image,label)"
    )
    parser.add_argument("--from", dest="base", required=True, metavar="NAME", help="the model to start from")
    parser.add_argument("--method", default="margin", help="margin (default), ms, pa, diva, ...: see zoo list")
    parser.add_argument("--head-only", action="store_true", help="leave the trunk as it is: minutes on a CPU")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="change the recipe; repeatable"
    )
    parser.add_argument("--as", dest="rename", metavar="NAME", help="the new model's name (default: NAME-finetuned)")
    parser.add_argument("--replace", action="store_true", help="the new model takes the place of one of its name")
    parser.add_argument(
        "--test-share", type=float, default=0.3, metavar="S", help="the share of classes to measure on (default: 0.3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split and of the training (default: 0)")
    parser.add_argument(
        "--views", type=int, default=8, metavar="N", help="with --head-only: augmented views of each image (default: 8)"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    strict.configure(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def _run(args: Namespace) -> int:
    from training.derived import derived_name
    from training.finetuning.history import check_name
    from training.finetuning.pictures import check_share
    from training.twins import twin_of
    from zoo.console import print_json
    from zoo.errors import DatasetError, UsageError
    from zoo.loading import find
    from zoo.paths import expand

    name = derived_name(args.rename, args.base, "finetuned")
    if not expand(args.source).exists():
        raise DatasetError(f"there is no folder or file {args.source}; name your pictures.")
    twin_of(args.method)
    if args.seed < 0:
        raise UsageError(f"--seed is 0 or more, not {args.seed}.")
    if args.views < 0:
        raise UsageError(f"--views is 0 or more, not {args.views}.")
    check_share(args.test_share)
    check_name(name, find(args.base), args.replace)
    from training.finetuning.finetune import Wish, finetune  # torch, not before the arguments were looked at

    wish = Wish(
        args.base,
        name,
        args.method,
        args.head_only,
        args.settings,
        args.test_share,
        args.seed,
        args.views,
        args.device,
        args.replace,
    )
    fitted = finetune(args.source, wish, not args.quiet)
    if args.json:
        print_json(fitted.to_json())
    else:
        _print(fitted)
    return strict.status(args, fitted.pictures.unreadable)


def _print(fitted: Fitted) -> None:
    from training.derived import say_what_next
    from zoo.console import note, print_table

    for said in fitted.pictures.notes():
        note(said)
    split = fitted.split
    print(
        f"trained on {len(split.train):,} images of {len(split.train.classes)} classes in "
        f"{fitted.outcome.seconds:.0f} s; measured on {len(split.test):,} images of {len(split.test.classes)} classes "
        f"{_known(fitted.seen, fitted.unread)}"
    )
    rows = [
        [
            row.metric,
            f"{row.before:.4f}",
            _interval(row.before_interval),
            f"{row.after:.4f}",
            _interval(row.after_interval),
            f"{row.difference:+.4f}",
            _interval(row.difference_interval, "+"),
        ]
        for row in fitted.rows
    ]
    print_table(COLUMNS, rows, numbers=("before", "after", "difference"))
    say_what_next(fitted.outcome.name, fitted.outcome.folder)


def _known(seen: tuple[str, ...], unread: Path | None = None) -> str:
    if not seen and unread is None:
        return "that it never saw"
    said = ["that were left out"]
    if seen:
        names = ", ".join(seen[:5]) + (", ..." if len(seen) > 5 else "")
        said.append(
            f", but {len(seen)} of them the model that it starts from was finetuned on ({names}): the scores flatter "
            "both. Classes that neither saw come from the --seed and --test-share in that one's recipe.json"
        )
    if unread is not None:
        said.append(
            f". Whether the model that it starts from has seen {'more of them' if seen else 'them'} is not known, "
            f"because {unread} cannot be read: the scores may flatter both"
        )
    return "".join(said)


def _interval(bounds: tuple[float, float], sign: str = "") -> str:
    low, high = bounds
    return f"{low:{sign}.4f} to {high:{sign}.4f}"


COMMAND = Command(
    summary="make a model fit your own pictures, and measure it on classes that it never saw",
    configure=_configure,
    run=_run,
    examples="""\
  zoo finetune pictures/ --from dinov2-s14 --head-only --as mine       heads on a frozen trunk: minutes on a CPU
  zoo finetune pictures/ --from margin-conv4-glyphs --method ms        trunk and head
  zoo finetune shoes.csv --from timm/resnet50.a1_in1k --head-only      a table with the columns image,label
  zoo finetune pictures/ --from MODEL --set schedule.epochs=5 --json

Some of the classes (--test-share, drawn by --seed) are kept out of training, and the table shows R@1 and MAP@R on them
before and after. Which ones is written into the new model's recipe.json. A name that is taken is refused; the same
command goes on where it was stopped. At least four classes of two images are needed; what cannot be read and classes of
one image are left out and named: the exit status is 0, with --strict 1 where an image could not be read.""",
    resumes=always,
)
