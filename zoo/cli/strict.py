"""`--strict` of commands that do their work without the images that cannot be read."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 where an image could not be read")


def status(args: Namespace, unreadable: object) -> int:
    """The exit status of work that is done; unreadable: what could not be read, or how many."""
    return 1 if args.strict and unreadable else 0
