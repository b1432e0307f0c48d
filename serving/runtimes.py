"""How a command is told which variant of a model it embeds with."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.embedder import Embedder

PRECISION = "fp32 (default), fp16 or int8, as it was exported; of torch fp32, bf16 or fp16"


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--runtime", choices=("onnx", "torch"), default="onnx", help="default: onnx")
    parser.add_argument("--precision", default="fp32", metavar="P", help=PRECISION)


def loaded(model: str, args: Namespace) -> Embedder:
    """The model as the arguments say. Raises what `zoo.load` raises."""
    from zoo.loading import load

    return load(model, runtime=args.runtime, precision=args.precision)
