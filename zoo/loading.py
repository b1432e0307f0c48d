"""`zoo.load`: from a name to a model that embeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from zoo.cards import Card, read_card
from zoo.config import check_config
from zoo.contents import check_inside, refusal_in
from zoo.embedder import Embedder
from zoo.errors import ModelFolderError, UsageError, check_text, missing, nearest
from zoo.files import sha256_of
from zoo.registry import find

RUNTIMES = ("torch", "onnx")


def load(
    name_or_path: str | os.PathLike[str],
    runtime: str = "torch",
    precision: str = "fp32",
    device: str | None = None,
    revision: str | None = None,
) -> Embedder:
    """Load a model by name or path.

    runtime: "torch" (precision fp32, bf16, fp16) or "onnx" (fp32, fp16, int8, as exported), which needs no torch.
    device: torch: cpu, cuda, cuda:N; onnx: cpu, cuda, tensorrt; by default the best that torch sees, or cpu for onnx.
    revision: a branch, tag or commit of the Hub's repository. Without one a model that is in the Hub's cache is taken
    from there; with a branch or tag the Hub is asked what it holds now.

    A weight file is used only where the card lists it, its SHA-256 is the card's and it lies in the folder; pickles
    never. Raises `ModelNotFoundError`, `ModelFolderError`, `HubError`, `UsageError` or `MissingDependencyError`.
    """
    for name, value in (("runtime", runtime), ("precision", precision)):
        check_text(name, value)
    if runtime not in RUNTIMES:
        raise UsageError(f"runtime is 'torch' or 'onnx', not {runtime!r}.{nearest(runtime, RUNTIMES)}")
    folder = find(name_or_path, revision)
    card = read_card(folder)
    check_config(folder, card)
    run, where = (
        _open_torch(folder, card, precision, device)
        if runtime == "torch"
        else _open_onnx(folder, card, precision, device)
    )
    return Embedder(card, folder, runtime, precision, where, run)


def weight_files(card: Card) -> tuple[str, ...]:
    """The files that the card's torch network is read from."""
    return ("model.safetensors", "heads.safetensors") if card.heads else ("model.safetensors",)


def check_files(folder: Path, card: Card, files: Sequence[str] | None = None) -> None:
    """Raise `ModelFolderError` unless the card lists `files` (default: torch's weights) and their SHA-256 is its."""
    for name in weight_files(card) if files is None else files:
        path = check_inside(folder, name)
        if not path.is_file():
            raise ModelFolderError(
                f"{path} is missing; the model folder of {card.name} is incomplete.{refusal_in(folder)}"
            )
        if name not in card.files:
            raise ModelFolderError(
                f"{path} is not used, because the card of {card.name} does not list it and so cannot vouch for it. "
                "Get the model folder anew from where it came from, or make the file again (zoo train, zoo export)."
            )
        if sha256_of(path) != card.files[name]:
            exported = name.startswith("onnx/model")
            again = f"Make it again with: zoo export {card.name}. Or get" if exported else "Get"
            raise ModelFolderError(
                f"{path} is not the file that the card of {card.name} describes (SHA-256 differs). {again} the model "
                "folder anew from where it came from; from the Hub with revision='main'."
            )


def _open_torch(folder: Path, card: Card, precision: str, device: str | None):  # type: ignore[no-untyped-def]
    try:
        from zoo.torch_runtime import open_model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "timm", "torchvision"):
            raise
        hint = ". Or use ONNX Runtime, which needs none: runtime='onnx' (--runtime onnx)."
        raise type(missing("torch", "train"))(f"{missing('torch', 'train')}{hint}") from None
    check_files(folder, card)
    return open_model(folder, card, precision, device)


def _read_pillow() -> None:
    """What turns images into pixels, and the usual formats, which Pillow reads at its first image otherwise."""
    import_module("zoo.preprocessing")
    import_module("PIL.Image").preinit()


def _open_onnx(folder: Path, card: Card, precision: str, device: str | None):  # type: ignore[no-untyped-def]
    from zoo.onnx_runtime import graph_file, open_file

    name = graph_file(folder, card, precision)
    # The file's hash takes about as long as opening it, and neither waits for the other; nor does Pillow, which embeds
    # the first image. What is wrong with a file that is not the card's is that.
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_files, folder, card, [name])
        pool.submit(_read_pillow)
        try:
            return open_file(folder / name, card, device, precision)
        finally:
            checked.result()
