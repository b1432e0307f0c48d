"""A public PyTorch file of ImageNet weights to a folder that timm and `backbone.pretrained` read.

The only place where something is unpickled: by torch's reader of plain tensors, after the file's SHA-256 was checked.
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
from zoo.models.network import build_trunk, check_architecture, cpu_state, timm_config
from zoo.models.weights import CONFIG_FILE, PUBLIC_WEIGHTS, WEIGHTS_FILE, Weights


def convert(file: Path, architecture: str, out: Path, sha256: str | None = None) -> Path:
    """Write model.safetensors, without the classifier, and timm's config.json to a new or empty folder; its path.

    sha256: the file's, 64 hexadecimal digits; not needed for the file that `PUBLISHED` names for the architecture. Of
    that only a prefix of 8 or 9 digits is known, the one in its name: it shows a mix-up or a cut file, and does not
    stop somebody who sets out to make another file with that prefix. Nothing is downloaded here.

    Raises `UsageError` where the file is not the one expected, and `RecipeError` where timm does not know the
    architecture or its entries are not exactly the file's.
    """
    check_architecture(architecture)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} is already there and not an empty folder. Give --out another, or remove this one.")
    data = _read(file)
    digest = _checked(data, file, architecture, sha256)
    state = _state(data, file)
    if public := PUBLIC_WEIGHTS.get(architecture):
        state = public.convert(state)
    trunk = build_trunk(architecture, 3, {}, Weights(state, {}, str(file)))
    with atomic_folder(out) as folder:
        about = {"format": "pt", "source": file.name, "sha256": digest}
        save_file(cpu_state(trunk), folder / WEIGHTS_FILE, metadata=about)
        write_json(folder / CONFIG_FILE, timm_config(architecture, {}, trunk, _preprocessing(trunk)))
    return out


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from None


def _checked(data: bytes, file: Path, architecture: str, sha256: str | None) -> str:
    """The data's SHA-256, if it is the expected one."""
    expected, source = _expected(architecture, sha256)
    digest = hashlib.sha256(data).hexdigest()
    if not digest.startswith(expected):
        wanted = expected if len(expected) == len(digest) else f"one with the prefix {expected}"
        raise UsageError(
            f"{file} was not opened: its SHA-256 is {digest}, expected {wanted} ({source}). Get the file anew."
        )
    return digest


def _expected(architecture: str, sha256: str | None) -> tuple[str, str]:
    """How the SHA-256 must begin, and who says so."""
    if sha256 is not None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
            raise UsageError(f"--sha256 has 64 hexadecimal digits, not {sha256!r}.")
        return sha256.lower(), "--sha256"
    if public := PUBLIC_WEIGHTS.get(architecture):
        return public.sha256, f"the public file is {public.url}; for another one give --sha256 HEX"
    raise UsageError(
        f"no public file of {architecture!r} is known here, so its SHA-256 is needed as its publisher states it: "
        "--sha256 HEX."
    )


def _state(data: bytes, file: Path) -> dict[str, Tensor]:
    try:
        state: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling errors, zip errors, EOFError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{file} is no PyTorch file of plain tensors: {reason}") from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UsageError(f"{file} holds no state dict: expected tensors by name.")
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
