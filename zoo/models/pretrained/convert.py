"""Conversion of a file or folder of weights to a model folder: `zoo.convert`. Torch is loaded if the source exists."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import UsageError
from zoo.models.card import Card
from zoo.models.registry import exists
from zoo.paths import expand


@dataclass(frozen=True, repr=False)
class ConvertedModel:
    """The result of a conversion.

    Attributes:
        folder: The model folder.
        card: Its card.
        notes: Remarks on what was assumed and fitted.
    """

    folder: Path
    card: Card
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"ConvertedModel({str(self.folder)!r}: {self.card.dim} numbers of {self.card.architecture})"


def convert(
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | None = None,
    sha256: str | None = None,
    head: str | None = None,
) -> ConvertedModel:
    """Write a file or a folder of weights, without its classifier, as a model folder.

    `zoo.load`, `zoo.index` and `zoo.finetune` take the result.

    Args:
        file: A .safetensors file, a PyTorch file of plain tensors, or a folder of timm's; nothing is downloaded.
        out: A new or empty folder.
        architecture: timm's name (default: the one that the weights state).
        mean: Mean of each channel on the scale 0 to 1 (default: the weights', else timm's).
        std: Standard deviation in the same form.
        size: Side of the input in pixels (default: timm's).
        sha256: The file's hash (default: not checked, unless it is known).
        head: The linear layer that makes the embedding (default: none, the pooled features).

    Raises:
        UsageError: If the file is missing, altered or holds other objects than plain tensors or numbers that are not
            finite, if the folder is not empty, or if the architecture is neither stated nor given.
        RecipeError: If timm does not know the architecture, or its entries are not the file's (`weights-mismatch`).
    """
    file, out = expand(file), expand(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(
            f"{out} already exists and is not an empty folder. Choose another --out, or remove this one.",
            code="already-exists",
        )
    if not exists(file):
        raise UsageError(f"there is no file {file}.", code="not-found")
    from zoo.models.baseline_folder import model_name_of, save_plain
    from zoo.models.network import check_architecture
    from zoo.models.pretrained.weights import describe_file, local_source

    if architecture is not None:
        check_architecture(architecture)
    source = local_source(file)
    assert source is not None  # it is a folder or a file
    described, remark = describe_file(source, architecture, mean, std, size, sha256)
    card, notes = save_plain(described, out, model_name_of(out.resolve().name), head=head)
    return ConvertedModel(out, card, tuple(text for text in (remark, *notes) if text))
