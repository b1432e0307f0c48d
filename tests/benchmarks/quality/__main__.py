"""Quality of training beside other libraries: the same trunk, images, steps and measurement for every arm.

    python -m tests.benchmarks.quality run FOLDER --trial-rates          all arms: hours; again to continue
    python -m tests.benchmarks.quality run FOLDER --arms ms pml-ms --data cub2010
    python -m tests.benchmarks.quality run FOLDER --set backbone.frozen_stages=6    the last two stages learn: faster
    python -m tests.benchmarks.quality run FOLDER --steps 20             20 steps of each arm, to check that it runs
    python -m tests.benchmarks.quality table FOLDER                      Markdown of the finished runs

Arms of ours are recipes on EfficientNet-Lite0, by their method; peers are criteria of other libraries in the same loop
(`arms.ARMS`). Each run writes one JSON file into the folder. A killed queue continues after the last epoch of its run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from tests.benchmarks.quality import peers, tables
from tests.benchmarks.quality.arms import ARMS, SEEDS, find_arms
from tests.benchmarks.quality.study import Queue
from training.distributed import keep_freed_memory
from training.studies.runner import create_study_context
from zoo.errors import ZooError


def run(args: argparse.Namespace) -> int:
    """Perform the queue that the arguments describe; return 1 if a run failed."""
    arms = find_arms(args.arms)
    peers.check_installed([arm.name for arm in arms])
    peers.register()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    seeds = {dataset: args.seeds or SEEDS[dataset] for dataset in args.data}
    context = create_study_context(torch.device("cpu"), args.root)
    queue = Queue(arms, seeds, args.folder, args.trial_rates, args.steps, args.set)
    return int(queue.perform(context) > 0)


def table(args: argparse.Namespace) -> int:
    """Print the page of the finished runs."""
    sys.stdout.write(tables.markdown(args.folder))
    return 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.benchmarks.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    queue = commands.add_parser("run", help="train and measure the arms that have no file yet")
    queue.set_defaults(command=run)
    queue.add_argument("folder", type=Path)
    queue.add_argument("--arms", nargs="+", metavar="ARM", help=f"default: {' '.join(arm.name for arm in ARMS)}")
    queue.add_argument("--data", nargs="+", choices=SEEDS, default=list(SEEDS))
    queue.add_argument("--seeds", type=int, help=f"on each data set (default: {SEEDS})")
    queue.add_argument("--trial-rates", action="store_true", help="choose each arm's rate on held-out training classes")
    queue.add_argument("--steps", type=int, help="train only this many steps")
    queue.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change every recipe")
    queue.add_argument("--threads", type=int, default=1)
    queue.add_argument("--root", type=Path, help="the folder of the data sets (default: ZOO_DATA)")
    page = commands.add_parser("table", help="print the finished runs as Markdown")
    page.set_defaults(command=table)
    page.add_argument("folder", type=Path)
    args = parser.parse_args(words)
    try:
        return int(args.command(args))
    except ZooError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
