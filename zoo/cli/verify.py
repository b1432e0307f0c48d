"""`zoo verify`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from zoo.cli.command import Command

MARKS = {True: "ok", False: "FAILED", None: "not checked"}


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def _run(args: Namespace) -> int:
    from dataclasses import asdict

    from zoo.cli.output import print_json
    from zoo.registry import find
    from zoo.verify import verify

    checks = list(verify(find(args.model)))
    if args.json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            print(f"{MARKS[check.ok]:<12}{check.name:<34}{check.detail}")
    return 1 if any(check.ok is False for check in checks) else 0


COMMAND = Command(
    summary="check a model folder's hashes and golden embeddings",
    configure=_configure,
    run=_run,
    examples="  zoo verify margin-conv4-glyphs        one line a check; the exit status is 1 when any fails",
)
