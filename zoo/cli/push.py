"""`zoo push`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.cli.command import Command

if TYPE_CHECKING:
    from zoo.hub.publication import Publication


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument("repository", help="org/name on the Hub; a bare name goes under ZOO_HUB_ORG")
    parser.add_argument("--private", action="store_true", default=None, help="make a new repository private")
    parser.add_argument(
        "--branch", "--revision", metavar="NAME", help="the branch to write, made where it is not there"
    )
    parser.add_argument("--pull-request", action="store_true", help="propose it to a repository that is there")
    parser.add_argument("--licence", metavar="ID", help="in place of the card's, as apache-2.0 or cc-by-nc-4.0")
    parser.add_argument("--message", metavar="TEXT", help="the commit's message")
    parser.add_argument("--dry-run", action="store_true", help="check, print what would be sent, and send nothing")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write what would be sent to DIR, and send nothing")
    parser.add_argument("--force", action="store_true", help="also with ONNX graphs below the floor of zoo export")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> int:
    from zoo.console import print_json
    from zoo.hub.publish import push

    dry = args.dry_run or args.out is not None
    done = push(
        args.model,
        args.repository,
        private=args.private,
        branch=args.branch,
        create_pr=args.pull_request,
        licence=args.licence,
        message=args.message,
        dry_run=dry,
        force=args.force,
    )
    if args.out is not None:
        done.write(args.out)
    if args.json:
        print_json({**done.to_json(), **({"readme": done.readme} if dry else {})})
    else:
        _print(done, dry)
    return 0


def _print(done: Publication, dry: bool) -> None:
    from zoo.console import one_line, print_table

    print_table(("file", "bytes"), [(name, str(size)) for name, size in done.sizes.items()], numbers=("bytes",))
    for name in done.left_out:
        print(f"not sent: {one_line(name)}")
    for remark in done.remarks:
        print(f"note: {remark}")
    if dry:
        print(f"\n{done.readme}\nnothing was sent to {done.repository} ({done.revision})")
    else:
        print(f"sent to {done.repository} ({done.revision}): {done.pull_request or done.url}")


COMMAND = Command(
    summary="put a model on the Hugging Face Hub, after checking it",
    configure=_configure,
    run=_run,
    examples="""\
  zoo push margin-conv4-glyphs my-org/margin-conv4-glyphs --dry-run     what would be sent, and the README
  zoo push ./my-model my-org/my-model --private                         logged in before, with: hf auth login
  zoo push ./my-model my-org/my-model --branch v2 --message "longer training"
  zoo push ./my-model other-org/their-model --pull-request""",
)
