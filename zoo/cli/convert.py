"""`zoo convert`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli.command import Command


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the published file: a PyTorch state dict (.pth)")
    parser.add_argument("--architecture", required=True, metavar="NAME", help="bn_inception, googlenet or timm's name")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the folder to write")
    parser.add_argument("--sha256", metavar="HEX", help="the file's SHA-256 (not needed for the known public files)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> int:
    from zoo.console import print_json
    from zoo.errors import UsageError

    if not args.file.is_file():
        raise UsageError(f"there is no file {args.file}.")
    from zoo.convert import convert  # torch, not for nothing

    folder = convert(args.file, args.architecture, args.out, args.sha256)
    if args.json:
        print_json({"folder": str(folder), "architecture": args.architecture})
    else:
        print(f"weights of {args.architecture} written to {folder}; train from them with backbone.pretrained={folder}")
    return 0


COMMAND = Command(
    summary="make a published .pth file of pretrained weights a folder that training can start from",
    configure=_configure,
    run=_run,
    examples="""\
  zoo convert bn_inception-52deb4733.pth --architecture bn_inception --out weights/bn_inception
  zoo convert googlenet-1378be20.pth --architecture googlenet --out weights/googlenet
  zoo convert FILE.pth --architecture resnet50 --sha256 HEX --out weights/resnet50""",
)
