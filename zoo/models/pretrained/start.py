"""Starts of `zoo baseline`: weights of any kind, found by what a user names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import timm

from zoo.errors import UsageError
from zoo.models.baselines import repository_of
from zoo.models.names import find_model
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
