"""CLIP in the format of Hugging Face's transformers: its image tower as a ViT of timm.

The tower's features are those before its projection into the space of texts (Radford et al. 2021, section 2.4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

from zoo.data.preprocessing import Preprocessing
from zoo.errors import CardError, RecipeError
from zoo.files import read_object
from zoo.models.baselines import TimmModel
from zoo.models.card import UNKNOWN_LICENCE
from zoo.models.folder import CONFIG_FILE

MODEL_TYPES = ("clip", "clip_vision_model")
"""Values of `model_type` in config.json: both towers, or the image tower alone."""

DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
"""Values of `CLIPVisionConfig`, which a config.json may leave out."""

SIZES = {768: ("base", 12, 12), 1024: ("large", 24, 16), 1280: ("huge", 32, 16)}
"""Width -> timm's name of the size, its number of blocks and of attention heads."""

ACTIVATIONS = {"quick_gelu": "_quickgelu", "gelu": ""}
"""Activation -> its part of timm's name."""

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Statistics of the images that CLIP was trained on."""

RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's numbers of the interpolations."""

NAMES = (
    (r"embeddings\.class_embedding", "cls_token"),
    (r"embeddings\.position_embedding\.weight", "pos_embed"),
    (r"embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"pre_layrnorm\.", "norm_pre."),
    (r"post_layernorm\.", "norm."),
    (r"encoder\.layers\.(\d+)\.layer_norm", r"blocks.\1.norm"),
    (r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.", r"blocks.\1.attn.proj."),
    (r"encoder\.layers\.(\d+)\.", r"blocks.\1."),
)
"""Beginnings of names in transformers and in timm, the first that matches; `pre_layrnorm` is spelt so."""

TOWER = "vision_model."


def is_clip(folder: Path) -> bool:
    """Return whether a folder's config.json is that of a CLIP model of transformers."""
    return read_object(folder / CONFIG_FILE).get("model_type") in MODEL_TYPES


def read_clip_config(folder: Path) -> TimmModel:
    """Read config.json and, if it exists, preprocessor_config.json of a folder of `is_clip`.

    Raises:
        RecipeError: `unsupported-model` for a tower that is not a ViT of timm, or images that cannot be prepared.
    """
    values = read_object(folder / CONFIG_FILE)
    vision = DEFAULTS | values.get("vision_config", {} if values["model_type"] == "clip" else values)
    try:
        activation = ACTIVATIONS[vision["hidden_act"]]
        if vision["layer_norm_eps"] != DEFAULTS["layer_norm_eps"] or vision["num_channels"] != 3:
            raise ValueError(f"layer_norm_eps {vision['layer_norm_eps']}, num_channels {vision['num_channels']}")
        architecture, args = _architecture(vision, activation)
        images = _preprocessing(read_object(folder / "preprocessor_config.json"), int(vision["image_size"]))
    except (KeyError, TypeError, ValueError, CardError) as error:
        raise RecipeError(
            f"{folder} holds a CLIP model whose image tower timm does not have ({error}). Export it to ONNX, from "
            "normalised images to vectors, and give that file: zoo baseline FILE.onnx --mean M,M,M --std S,S,S "
            "--as OWN.",
            code="unsupported-model",
        ) from None
    return TimmModel(architecture, args, images, "", UNKNOWN_LICENCE)


def _architecture(vision: Mapping[str, Any], activation: str) -> tuple[str, dict[str, Any]]:
    """Return timm's architecture, and the arguments in which the tower differs from it."""
    width, patch, side = (int(vision[key]) for key in ("hidden_size", "patch_size", "image_size"))
    size, depth, heads = SIZES.get(width, SIZES[768])
    name = f"vit_{size}_patch{patch}_clip{activation}_{side}"
    usual = {"img_size": side, "patch_size": patch, "embed_dim": width, "depth": depth, "num_heads": heads}
    if not timm.is_model(name):
        name = f"vit_base_patch32_clip{activation}_224"
        usual = {"img_size": 224, "patch_size": 32, "embed_dim": 768, "depth": 12, "num_heads": 12}
    own = {
        "img_size": side,
        "patch_size": patch,
        "embed_dim": width,
        "depth": int(vision["num_hidden_layers"]),
        "num_heads": int(vision["num_attention_heads"]),
        "mlp_ratio": vision["intermediate_size"] / width,
    }
    return name, {key: value for key, value in own.items() if value != {**usual, "mlp_ratio": 4}[key]}


def _preprocessing(values: Mapping[str, Any], side: int) -> Preprocessing:
    resize, crop = (_side(values.get(key, side)) for key in ("size", "crop_size"))
    return Preprocessing(
        max(resize, crop),
        crop,
        "RGB",
        RESAMPLING[values.get("resample", 3)],
        tuple(values.get("image_mean", MEAN)),
        tuple(values.get("image_std", STD)),
    )


def _side(size: int | Mapping[str, int]) -> int:
    """Return the side of a size, which has several forms."""
    return int(size.get("shortest_edge") or size["height"]) if isinstance(size, Mapping) else int(size)


def image_tower(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the image tower under timm's names; queries, keys and values are one matrix there."""
    named: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(TOWER) and not name.endswith("position_ids"):
            named[_timm_name(name.removeprefix(TOWER))] = tensor
    for name in [name for name in named if ".self_attn.q_proj." in name]:
        parts = [name.replace("q_proj", f"{part}_proj") for part in "qkv"]
        if all(part in named for part in parts):
            joined = name.replace("self_attn.q_proj", "attn.qkv")
            named[joined] = torch.cat([named.pop(part) for part in parts])
    if "cls_token" in named:
        named["cls_token"] = named["cls_token"].reshape(1, 1, -1)
    if "pos_embed" in named:
        named["pos_embed"] = named["pos_embed"][None]
    return named


def _timm_name(name: str) -> str:
    for pattern, new in NAMES:
        changed, count = re.subn(f"^{pattern}", new, name)
        if count:
            return changed
    return name
