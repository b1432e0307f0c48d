"""`zoo gallery backup` and `zoo gallery restore`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command
from zoo.console import print_json

if TYPE_CHECKING:
    from serving.backup import Copied


def _configure_backup(parser: ArgumentParser) -> None:
    parser.add_argument("gallery", type=Path, help="gallery folder; it may be in use")
    parser.add_argument("out", type=Path, help="new folder for the copy")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _backup(args: Namespace) -> None:
    from tqdm.auto import tqdm

    from serving.backup import backup

    with tqdm(unit="page", desc="backup", disable=not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        copied = backup(args.gallery, args.out, progress)
    _print(args, copied)


def _configure_restore(parser: ArgumentParser) -> None:
    parser.add_argument("backup", type=Path, help="folder that zoo gallery backup has written")
    parser.add_argument("out", type=Path, help="new gallery folder")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _restore(args: Namespace) -> None:
    from serving.backup import restore

    _print(args, restore(args.backup, args.out))


def _print(args: Namespace, copied: Copied) -> None:
    if args.json:
        print_json({"out": str(args.out), **asdict(copied)})
    else:
        print(f"{args.out}: {copied.items:,} items, at change {copied.change:,}, {copied.bytes / 2**20:,.1f} MiB")


BACKUP = Command(
    "copy a gallery while it is served and written to",
    _configure_backup,
    _backup,
    """  zoo gallery backup gallery/ backups/2026-11-22
The copy is of one moment. It lacks the index, which is derived.""",
)
RESTORE = Command(
    "make a gallery of a backup, and verify it",
    _configure_restore,
    _restore,
    """  zoo gallery restore backups/2026-11-22 gallery-again/
A gallery that is served is not replaced: restore beside it, and serve that.""",
)
