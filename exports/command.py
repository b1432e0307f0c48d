"""`zoo export`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from zoo.cli.command import Command


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument("--json", action="store_true", help="print the proof of parity as JSON")


def _run(args: Namespace) -> int:
    from exports.export import export
    from zoo.cli.output import print_json
    from zoo.registry import find

    folder = find(args.model)
    parity = export(folder)
    if args.json:
        print_json({"folder": str(folder), "parity": {parity.variant: parity.to_json()}})
    else:
        print(
            f"{folder / 'onnx' / 'model.onnx'}: cosine to torch at least {parity.min_cosine:.7f} "
            f"on {parity.images} images (floor {parity.floor}), largest difference {parity.max_difference:.1e}"
        )
    return 0


COMMAND = Command(
    summary="export a model to ONNX and prove it equal to the torch model",
    configure=_configure,
    run=_run,
    examples="""\
  zoo export margin-conv4-omniglot          writes onnx/model.onnx into the model's folder
  zoo export ./my-model --json""",
)
