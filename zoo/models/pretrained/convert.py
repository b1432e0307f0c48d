"""Weights of any kind as a model: what `zoo baseline` starts from, and `zoo convert` to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import timm

from zoo.errors import UsageError
from zoo.models.baseline_folder import model_name_of, save_plain
from zoo.models.baselines import repository_of
from zoo.models.card import Card
from zoo.models.names import find_model
from zoo.models.network import check_architecture
from zoo.models.pretrained.packages import installed_package
from zoo.models.pretrained.weights import Source, describe_file, local_source
from zoo.models.registry import cached_folder
from zoo.paths import expand


def find_start(
    name: str,
    architecture: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    sha256: str | None = None,
    size: int | None = None,
) -> tuple[Path | Source, str]:
    """Return what `save_baseline` starts from: a model's folder, or a file of weights.

    Args:
        name: A file or folder of weights, a model's name, an installed package, a timm name, or org/name on the Hub.
        architecture: As in `describe_file`, as are `mean`, `std` and `sha256`.
        mean: Mean of the pixels.
        std: Standard deviation of the pixels.
        sha256: The file's.
        size: Side of the input that the caller will give to `save_baseline`, so that no other is remarked on.

    Returns:
        The start, in its own size, and a remark on what was assumed.

    Raises:
        UsageError: What `describe_file` raises; `option-without-effect` for settings of a model that states them.
        ZooError: What `find_model` raises.
    """
    path = expand(name)
    if path.is_file() or (path.is_dir() and architecture and not (path / "card.json").is_file()):
        source = local_source(path)
        assert source is not None
        described, remark = describe_file(source, architecture, mean, std, None, sha256)
        if size is not None:
            remark = describe_file(source, architecture, mean, std, size, sha256)[1]
        return described, remark
    folder = find_model(_full_timm_name(name))
    given = {"--architecture": architecture, "--mean": mean, "--std": std, "--sha256": sha256}
    if stated := [option for option, value in given.items() if value is not None]:
        raise UsageError(
            f"{name} states its architecture and images itself; leave out {', '.join(stated)}.",
            code="option-without-effect",
        )
    return folder, ""


def _full_timm_name(name: str) -> str:
    """Return the Hub's repository of a bare name of timm, as resnet50.a1_in1k; other names unchanged."""
    if "/" in name or cached_folder(name) is not None or installed_package(name) or repository_of(name):
        return name
    try:
        config = timm.models.get_pretrained_cfg(name) if timm.is_model(name) else None
    except RuntimeError:  # an unknown tag
        return name
    return str(config.hf_hub_id) if config and config.hf_hub_id else name


def convert(
    file: Path,
    architecture: str | None,
    out: Path,
    sha256: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | None = None,
    head: str | None = None,
) -> tuple[Card, list[str]]:
    """Write a file or a folder of weights, without its classifier, as a model folder.

    Args:
        file: A .safetensors file, a PyTorch file of plain tensors, or a folder of timm's; nothing is downloaded.
        architecture: timm's name; None if the source says it.
        out: A new or empty folder.
        sha256: As in `describe_file`, as are `mean`, `std` and `size`.
        mean: Mean of the pixels.
        std: Standard deviation of the pixels.
        size: Side of the input.
        head: As in `save_plain`.

    Returns:
        The card, and remarks on what was assumed and fitted.

    Raises:
        UsageError: `already-exists`, `not-found`, or what `describe_file` and `read_state` raise.
        RecipeError: If timm does not know the architecture, or its entries are not the file's (`weights-mismatch`).
    """
    if architecture is not None:
        check_architecture(architecture)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(
            f"{out} already exists and is not an empty folder. Choose another --out, or remove this one.",
            code="already-exists",
        )
    if (found := local_source(file)) is None:
        raise UsageError(f"there is no file {file}.", code="not-found")
    source, remark = describe_file(found, architecture, mean, std, size, sha256)
    card, notes = save_plain(source, out, model_name_of(out.resolve().name), head=head)
    return card, [text for text in (remark, *notes) if text]
