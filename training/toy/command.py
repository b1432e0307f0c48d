"""`zoo toy`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command

if TYPE_CHECKING:
    from training.toy.study import Outcome

PICTURES = (".png", ".pdf", ".svg")

COLUMNS = {
    "train R@1": "train_recall_at_1",
    "test R@1": "test_recall_at_1",
    "test between": "test_between_lines",
    "test within": "test_within_lines",
    "test ratio": "test_separation",
    "train rho": "train_spectral_decay",
}


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the picture: .png, .pdf or .svg")
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="runs of each form, at least 2 (default: 8)")
    parser.add_argument("--steps", type=int, metavar="N", help="batches of each run (default: 200, as published)")
    parser.add_argument(
        "--probability", type=float, nargs="+", metavar="P", help="how often to exchange (default: 0.001 0.1 0.4)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every seed's figures to a JSON file as well")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _run(args: Namespace) -> int:
    from training.toy.lines import STEPS
    from training.toy.picture import draw
    from training.toy.study import PROBABILITIES, run, settings_of
    from zoo.files import write_json

    args.steps = STEPS if args.steps is None else args.steps
    args.probability = list(PROBABILITIES) if args.probability is None else args.probability
    _check(args)
    outcomes = run(settings_of(args.probability), args.seeds, args.steps, progress=not args.quiet)
    draw(outcomes, args.out)
    if args.json:
        write_json(args.json, _record(args, outcomes))
    _print_table(outcomes, args.seeds)
    print(f"\nThe picture: {args.out}")
    return 0


def _check(args: Namespace) -> None:
    """Before the training, so that its minutes are not lost. Raises `UsageError`, `OSError` for a folder."""
    from zoo.errors import UsageError

    if args.seeds < 2:
        raise UsageError(f"--seeds {args.seeds}: a standard deviation needs at least 2 seeds.")
    if args.steps < 1:
        raise UsageError(f"--steps {args.steps}: a run has at least 1 step.")
    if args.out.suffix.lower() not in PICTURES:
        raise UsageError(f"--out {args.out}: the picture's name ends in one of {', '.join(PICTURES)}.")
    for file in filter(None, (args.out, args.json)):
        if file.is_dir():
            raise UsageError(f"{file} is a folder; name a file in it.")
        file.parent.mkdir(parents=True, exist_ok=True)


def _record(args: Namespace, outcomes: list[Outcome]) -> dict[str, object]:
    from datetime import UTC, datetime

    from training.output import provenance

    probabilities = " ".join(f"{p:g}" for p in args.probability)
    command = f"zoo toy --out {args.out} --seeds {args.seeds} --steps {args.steps} --probability {probabilities}"
    return {
        "command": f"{command} --json {args.json}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": args.steps,
        "settings": [outcome.to_json() for outcome in outcomes],
        **provenance(),
    }


def _print_table(outcomes: list[Outcome], seeds: int) -> None:
    from zoo.console import print_table

    rows = [
        [outcome.setting.title, *(f"{outcome.mean(m):.3f} +- {outcome.deviation(m):.3f}" for m in COLUMNS.values())]
        for outcome in outcomes
    ]
    print(f"mean and standard deviation over {seeds} seeds; between and within: distances of and in lines; rho: decay")
    print_table(("form", *COLUMNS), rows, numbers=COLUMNS)


COMMAND = Command(
    summary="the toy of Revisiting: what rho-regularisation does to lines embedded on a circle, as a picture",
    configure=_configure,
    run=_run,
    examples="""\
  zoo toy --out toy.png                                 every form over 8 seeds, about a minute
  zoo toy --out toy.png --seeds 16 --json toy.json
  zoo toy --out toy.png --probability 0.4 --steps 1000

Forms (Roth et al. 2020, Revisiting, section 5.1 and appendix E): no regularisation; an exchanged triplet becomes
(a, p, p), as in the paper, or (a, a, p), as in the published miner; and, as in the published script of this figure,
(a, p, p) with the positive term of the loss left out, which is also run without exchange to tell the two apart.""",
)
