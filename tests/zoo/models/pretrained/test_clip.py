"""CLIP folders of transformers: the image tower equals CLIP's equations in float64, on small random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import zoo
from tests.raising import raises
from zoo.cli.main import main, run
from zoo.data.preprocessing import to_pixels
from zoo.errors import RecipeError
from zoo.models.golden import draw_images
from zoo.models.pretrained.clip import read_clip_config

WIDTH, LAYERS, HEADS, PATCH, SIDE, INNER = 16, 2, 4, 8, 32, 40
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def write_clip(folder: Path, activation: str = "quick_gelu") -> dict[str, np.ndarray]:
    """Write a folder as transformers saves a CLIPModel of this size; return its weights."""
    draw = np.random.default_rng(0)
    shapes = {
        "logit_scale": (),
        "text_projection.weight": (8, 12),
        "text_model.embeddings.token_embedding.weight": (5, 12),
        "visual_projection.weight": (8, WIDTH),
        "vision_model.embeddings.class_embedding": (WIDTH,),
        "vision_model.embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        "vision_model.embeddings.position_embedding.weight": ((SIDE // PATCH) ** 2 + 1, WIDTH),
    }
    norms = ["vision_model.pre_layrnorm", "vision_model.post_layernorm"]
    for i in range(LAYERS):
        layer = f"vision_model.encoder.layers.{i}"
        norms += [f"{layer}.layer_norm1", f"{layer}.layer_norm2"]
        linear = {f"self_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
        for name, shape in {**linear, "mlp.fc1": (INNER, WIDTH), "mlp.fc2": (WIDTH, INNER)}.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    weights = {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    vision = {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": SIDE,
        "patch_size": PATCH,
        "hidden_act": activation,
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "clip", "vision_config": vision}))
    images = {"size": {"shortest_edge": 36}, "crop_size": {"height": SIDE, "width": SIDE}, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps({**images, "image_mean": MEAN, "image_std": STD}))
    return weights


def image_features(weights: dict[str, np.ndarray], pixels: np.ndarray, activation: str) -> np.ndarray:
    """CLIP's image tower (Radford et al. 2021) for one normalised image [3, side, side], in float64."""
    w = {name.removeprefix("vision_model."): value.astype(np.float64) for name, value in weights.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    kernel, tokens = w["embeddings.patch_embedding.weight"], [w["embeddings.class_embedding"]]
    for top in range(0, SIDE, PATCH):
        for left in range(0, SIDE, PATCH):
            patch = pixels[:, top : top + PATCH, left : left + PATCH]
            tokens.append(np.array([(patch * one).sum() for one in kernel]))
    x = norm(np.array(tokens) + w["embeddings.position_embedding.weight"], "pre_layrnorm")
    for i in range(LAYERS):
        layer, size = f"encoder.layers.{i}", WIDTH // HEADS
        y, heads = norm(x, f"{layer}.layer_norm1"), []
        q, k, v = (linear(y, f"{layer}.self_attn.{part}_proj") for part in "qkv")
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(size))
            heads.append(scores / scores.sum(1, keepdims=True) @ v[:, part])
        x = x + linear(np.concatenate(heads, axis=1), f"{layer}.self_attn.out_proj")
        inner = linear(norm(x, f"{layer}.layer_norm2"), f"{layer}.mlp.fc1")
        if activation == "quick_gelu":
            inner = inner / (1 + np.exp(-1.702 * inner))
        else:
            inner = inner * (1 + torch.erf(torch.from_numpy(inner / np.sqrt(2))).numpy()) / 2
        x = x + linear(inner, f"{layer}.mlp.fc2")
    return norm(x, "post_layernorm")[0]


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
@pytest.mark.parametrize("kind", ["transformers", "sentence-transformers"])
def test_the_image_tower_is_clips(activation: str, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "clip"
    inner = folder if kind == "transformers" else folder / "0_CLIPModel"
    if inner != folder:
        folder.mkdir()
        modules = [{"path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
        (folder / "modules.json").write_text(json.dumps(modules))
    weights = write_clip(inner, activation)
    assert main(["baseline", str(folder), "--as", "mine"]) == 0
    model = zoo.load("mine")
    images = draw_images(3)
    assert (model.dim, model.preprocessing.resize, model.preprocessing.crop) == (WIDTH, 36, SIDE)
    assert model.preprocessing.mean == pytest.approx(MEAN)
    pixels = [(to_pixels(image, model.preprocessing) / 255 - MEAN) / STD for image in images]
    rows = np.array([image_features(weights, one.transpose(2, 0, 1), activation) for one in pixels])
    np.testing.assert_allclose(model.embed(images), rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_array_equal(zoo.load(folder).embed(images), model.embed(images))


@pytest.mark.parametrize(
    ("vision", "architecture"),
    [
        ({}, "vit_base_patch32_clip_quickgelu_224"),  # transformers leaves out its defaults
        ({"patch_size": 16, "hidden_act": "gelu"}, "vit_base_patch16_clip_224"),
        (
            {
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
                "patch_size": 14,
                "image_size": 336,
            },
            "vit_large_patch14_clip_quickgelu_336",
        ),
    ],
)
def test_published_sizes_have_timms_names(vision: dict[str, object], architecture: str, tmp_path: Path) -> None:
    for text in ({"model_type": "clip", "vision_config": vision}, {"model_type": "clip_vision_model", **vision}):
        (tmp_path / "config.json").write_text(json.dumps(text))
        model = read_clip_config(tmp_path)
        assert (model.architecture, dict(model.args)) == (architecture, {})
        assert model.preprocessing.crop == vision.get("image_size", 224)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "clip", "vision_config": {"hidden_act": "relu"}},
        {"model_type": "clip", "vision_config": {"num_channels": 1}},
        {"model_type": "siglip"},
    ],
)
def test_other_towers_are_refused_with_what_works(config: dict[str, object], tmp_path: Path) -> None:
    write_clip(tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with raises(RecipeError, "unsupported-model", "zoo baseline", ".onnx"):
        run(["baseline", str(tmp_path / "other"), "--as", "mine"])
