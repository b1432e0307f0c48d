"""How commands that embed images run the model."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.embedder import Embedder


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--runtime", default="torch", help="torch or onnx (default: torch)")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16, fp16 or int8, as the runtime has them")
    parser.add_argument("--device", help="cpu, cuda, cuda:N (default: the best there is)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images a step (default: 64)")


def loaded(args: Namespace) -> Embedder:
    """The model that the arguments name, on the runtime that they ask for."""
    from zoo.loading import load

    return load(args.model, args.runtime, args.precision, args.device)
