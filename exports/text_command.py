"""`zoo text-tower`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from zoo.cli.command import Command


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument("--graph", type=Path, required=True, metavar="ONNX", help="from tokens to embeddings")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="JSON", help="its tokenizer.json")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a text (default: as tokenizer.json says)")
    parser.add_argument("--padding", metavar="TOKEN", help="token, or its id, that fills a text up (default: likewise)")
    parser.add_argument("--lowercase", action="store_true", help="put texts into small letters first, as for SigLIP 2")
    parser.add_argument("--output", metavar="NAME", help="the graph's output, where several could be the embedding")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _run(args: Namespace) -> None:
    from exports.copies import writable
    from exports.text import attach
    from zoo.console import print_json
    from zoo.registry import find
    from zoo.text import GRAPH

    folder = writable(find(args.model), ["text"], args.model)
    card = attach(folder, args.graph, args.tokenizer, args.length, args.padding, args.lowercase, args.output)
    if args.json:
        print_json({"folder": str(folder), "card": card.to_json()})
    elif card.text is not None:
        print(f"{folder / GRAPH}: texts of up to {card.text.length} tokens to {card.dim} numbers, beside {card.name}")


COMMAND = Command(
    summary="give a model a text tower, so that its images are found by text",
    configure=_configure,
    run=_run,
    examples="""\
  zoo baseline siglip2-b16 --as photos
  hf download onnx-community/siglip2-base-patch16-224-ONNX onnx/text_model.onnx tokenizer.json --local-dir text
  zoo text-tower photos --graph text/onnx/text_model.onnx --tokenizer text/tokenizer.json --lowercase

  zoo baseline clip-b32 --as photos --joint       CLIP's own projection into the space of its texts
  hf download Xenova/clip-vit-base-patch32 onnx/text_model.onnx tokenizer.json --local-dir text
  zoo text-tower photos --graph text/onnx/text_model.onnx --tokenizer text/tokenizer.json \\
      --length 77 --padding '<|endoftext|>'

  zoo export photos && zoo index photos pictures/ --out gallery/ && zoo search gallery/ --text "a red chair"

Where a text tower is published for a public backbone, zoo info NAME says it. The texts' graph must be of the very model
that the images' is of: that its numbers are as many is checked, that they mean the same cannot be.""",
)
