"""Conversion of a public PyTorch file of ImageNet weights to a folder that timm and `backbone.pretrained` read.

This is the only place where a pickle is read: by torch's reader of plain tensors, after a check of its SHA-256.
"""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from zoo.data.preprocessing import Preprocessing
from zoo.errors import UsageError
from zoo.files import atomic_folder, write_json
from zoo.models.folder import CONFIG_FILE, WEIGHTS_FILE
from zoo.models.network import build_trunk, check_architecture, cpu_state, timm_config
from zoo.models.weights import PUBLIC_WEIGHTS, Weights


def convert(file: Path, architecture: str, out: Path, sha256: str | None = None) -> Path:
    """Convert a PyTorch file to model.safetensors, without the classifier, and timm's config.json.

    Args:
        file: The PyTorch file; nothing is downloaded.
        architecture: timm's name.
        out: A new or empty folder.
        sha256: The file's, 64 hexadecimal digits; not needed for the file that `PUBLIC_WEIGHTS` has for the
            architecture. Only a prefix of 8 or 9 digits of that file is known, from its name: it detects a mix-up or a
            cut file, but not a file that was forged to have this prefix.

    Returns:
        `out`.

    Raises:
        UsageError: `folder-not-empty`, `unreadable-file`, `bad-sha256`, `unknown-public-file`, `hash-mismatch`,
            `unsafe-file` (not a PyTorch file of plain tensors) or `no-state-dict`.
        RecipeError: If timm does not know the architecture, or its entries are not exactly the file's.
    """
    check_architecture(architecture)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(
            f"{out} already exists and is not an empty folder. Choose another --out, or remove this one.",
            code="folder-not-empty",
        )
    data = _read(file)
    digest = _check_hash(data, file, architecture, sha256)
    state = _read_state_dict(data, file)
    if public := PUBLIC_WEIGHTS.get(architecture):
        state = public.convert(state)
    trunk = build_trunk(architecture, 3, {}, Weights(state, {}, str(file)))
    with atomic_folder(out) as folder:
        metadata = {"format": "pt", "source": file.name, "sha256": digest}
        save_file(cpu_state(trunk), folder / WEIGHTS_FILE, metadata=metadata)
        write_json(folder / CONFIG_FILE, timm_config(architecture, {}, trunk, _preprocessing(trunk)))
    return out


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.", code="unreadable-file") from None


def _check_hash(data: bytes, file: Path, architecture: str, sha256: str | None) -> str:
    """Return the data's SHA-256 if it is the expected one."""
    expected, source = _expected_hash(architecture, sha256)
    digest = hashlib.sha256(data).hexdigest()
    if not digest.startswith(expected):
        wanted = expected if len(expected) == len(digest) else f"one with the prefix {expected}"
        raise UsageError(
            f"{file} was not opened: its SHA-256 is {digest}, expected {wanted} ({source}). Download the file again.",
            code="hash-mismatch",
        )
    return digest


def _expected_hash(architecture: str, sha256: str | None) -> tuple[str, str]:
    """Return the expected prefix of the SHA-256, and its source."""
    if sha256 is not None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
            raise UsageError(f"--sha256 has 64 hexadecimal digits, not {sha256!r}.", code="bad-sha256")
        return sha256.lower(), "--sha256"
    if public := PUBLIC_WEIGHTS.get(architecture):
        return public.sha256, f"the public file is {public.url}; for another one give --sha256 HEX"
    raise UsageError(
        f"dml-zoo knows no public file of {architecture!r}, so it needs the SHA-256 that the publisher states: "
        "--sha256 HEX.",
        code="unknown-public-file",
    )


def _read_state_dict(data: bytes, file: Path) -> dict[str, Tensor]:
    try:
        state: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling errors, zip errors, EOFError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{file} is not a PyTorch file of plain tensors: {reason}", code="unsafe-file") from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UsageError(f"{file} does not hold a state dict: expected tensors by name.", code="no-state-dict")
    return {str(name): tensor for name, tensor in state.items()}


def _preprocessing(trunk: nn.Module) -> Preprocessing:
    cfg: Any = trunk.pretrained_cfg
    crop = int(cfg["input_size"][-1])
    return Preprocessing(
        resize=round(crop / cfg["crop_pct"]),
        crop=crop,
        interpolation=cfg["interpolation"],
        mean=tuple(cfg["mean"]),
        std=tuple(cfg["std"]),
    )
