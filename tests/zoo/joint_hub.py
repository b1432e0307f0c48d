"""CLIP and SigLIP 2 of random weights in their published layouts: timm's image tower, an ONNX text tower, a tokenizer.

The models and tokenizers are transformers' own, so that transformers tells what their vectors must be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load, save
from torch import Tensor, nn

from tests.zoo.hub_server import COMMIT
from tests.zoo.hub_state import Hub, Repository
from tests.zoo.timm_hub import timm_hub
from zoo.models.baselines import baselines
from zoo.models.pretrained.clip import image_tower

WIDTH, SIDE, PATCH, PROJECTION = 24, 32, 16, 16
TOWER = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
MEAN, STD = [0.48, 0.45, 0.40], [0.26, 0.26, 0.27]
VIT = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": 2, "num_heads": 2}
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789,.!?'-"
WORDS = ("red", "chair", "dog", "a", "photo", "of")


@dataclass(frozen=True)
class Published:
    """A public model as its publishers and transformers have it.

    Attributes:
        name: Its short name in the table of baselines.
        model: transformers' model.
        tokenizer: transformers' tokenizer.
        image_files: Files of timm's repository.
        text_files: Files of the repository of the text tower.
    """

    name: str
    model: Any
    tokenizer: Any
    image_files: dict[str, bytes]
    text_files: dict[str, bytes]

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return transformers' unit rows of texts, float64 [n, dim]."""
        tower = baselines()[self.name].text
        assert tower is not None
        inputs = self.tokenizer(
            list(texts), padding="max_length", max_length=tower.length, truncation=True, return_tensors="pt"
        )
        if self.name.startswith("siglip"):
            inputs.pop("attention_mask", None)  # as its model card says, padding is read
        with torch.inference_mode():
            return _unit(self.model.get_text_features(**inputs))

    def images(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """Return transformers' unit rows of pixels, uint8 [n, side, side, 3]."""
        about = json.loads(self.image_files["config.json"])["pretrained_cfg"]
        pixels = (np.stack(list(images)) / 255.0 - about["mean"]) / about["std"]
        with torch.inference_mode():
            planes = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
            return _unit(self.model.get_image_features(pixel_values=planes))


@contextmanager
def joint_hub(cache: Path, monkeypatch: pytest.MonkeyPatch, *models: Published) -> Iterator[Hub]:
    """Run a Hub on loopback that has these models beside the small ones of timm."""
    with timm_hub(cache, monkeypatch) as server:
        for model in models:
            baseline = baselines()[model.name]
            assert baseline.text is not None
            for name, files in ((baseline.repository, model.image_files), (baseline.text.repository, model.text_files)):
                server.repositories[name] = Repository({"main": COMMIT}, {COMMIT: dict(files)})
        yield server


def original_files(model: Published, seed: int | None = None) -> dict[str, bytes]:
    """Return the files of a model as transformers saves it; of other weights with a seed."""
    saved = model.model if seed is None else _with_random_weights(deepcopy(model.model), seed)
    with TemporaryDirectory() as folder:
        saved.save_pretrained(folder)
        model.tokenizer.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def table_row(model: Published) -> str:
    """Return the model's row of the table of baselines, in TOML, with the sizes that it has here."""
    baseline = baselines()[model.name]
    state = load(model.image_files["model.safetensors"])
    trunk = sum(tensor.numel() for name, tensor in state.items() if not name.startswith("head."))
    text = {key: value for key, value in vars(baseline.text).items() if value not in ("", False)}
    inside = ", ".join(f"{key} = {json.dumps(value)}" for key, value in text.items())
    values = {"timm": baseline.timm, "dim": WIDTH, "size": SIDE, "parameters": trunk, "licence": "apache-2.0"}
    values |= {"source": "source", "description": "description"}
    rows = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{model.name}]", *rows, f"text = {{ {inside} }}", ""])


@cache
def clip() -> Published:
    """Return a small CLIP of random weights as OpenAI's is published."""
    tokenizer = clip_tokenizer(WORDS)
    return published_clip(_with_random_weights(new_clip(tokenizer)), tokenizer)


def clip_tokenizer(words: Sequence[str]) -> Any:
    """Return CLIP's tokenizer of letters, in which some words are one token."""
    return transformers.CLIPTokenizer(*_bytes_vocabulary(words))


def new_clip(tokenizer: Any, patch: int = PATCH, **tower: int) -> Any:
    """Return transformers' CLIP with the weights of initialisation; `tower` changes sizes of both towers."""
    sizes = {**TOWER, **tower}
    text = {**sizes, "vocab_size": len(tokenizer), "max_position_embeddings": 77}
    text |= {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    vision = {**sizes, "image_size": SIDE, "patch_size": patch}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=PROJECTION)
    return transformers.CLIPModel(config)


def published_clip(model: Any, tokenizer: Any) -> Published:
    """Return a CLIP in the layout of the repositories that the table of baselines names."""
    vision, state = model.config.vision_config, model.eval().state_dict()
    weights = {**image_tower(state), "head.weight": state["visual_projection.weight"]}
    graph = _graph(_ClipTexts(model), ("input_ids", "attention_mask"), ("text_embeds", "last_hidden_state"), 77)
    sizes = {"patch_size": vision.patch_size, "embed_dim": vision.hidden_size, "depth": vision.num_hidden_layers}
    args = {"pre_norm": True, **VIT, **sizes, "num_heads": vision.num_attention_heads}
    args["mlp_ratio"] = vision.intermediate_size / vision.hidden_size
    return Published(
        "clip-b32",
        model,
        tokenizer,
        _timm_files("vit_base_patch32_clip_224", "openai", args, weights),
        {"onnx/text_model.onnx": graph, "tokenizer.json": _json_of(tokenizer)},
    )


@cache
def siglip() -> Published:
    """Return a small SigLIP 2 as Google's is published."""
    tokenizer = transformers.Siglip2Tokenizer(*_pieces(), padding_side="right", add_eos_token=True, model_max_length=64)
    text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 64, "projection_size": WIDTH}
    vision = {**TOWER, "image_size": SIDE, "patch_size": PATCH}
    model = _with_random_weights(
        transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision))
    )
    weights = _siglip_tower(model.state_dict())
    graph = _graph(_SiglipTexts(model), ("input_ids",), ("last_hidden_state", "pooler_output"), 64)
    return Published(
        "siglip2-b16",
        model,
        tokenizer,
        _timm_files("vit_base_patch16_siglip_224", "v2_webli", VIT, weights, classes=0),
        {"onnx/text_model.onnx": graph, "tokenizer.json": _json_of(tokenizer)},
    )


class _ClipTexts(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower, self.projection = model.text_model, model.text_projection

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        output = self.tower(input_ids=input_ids, attention_mask=attention_mask)
        return self.projection(output.pooler_output), output.last_hidden_state


class _SiglipTexts(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tower = model.text_model

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        output = self.tower(input_ids=input_ids)
        return output.last_hidden_state, output.pooler_output


def _graph(module: nn.Module, inputs: Sequence[str], outputs: Sequence[str], length: int) -> bytes:
    example = tuple(torch.ones(2, length, dtype=torch.int64) for _ in inputs)
    batch = torch.export.Dim.DYNAMIC
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text_model.onnx"
        torch.onnx.export(
            module.eval(),
            example,
            path,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes={name: {0: batch} for name in inputs},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        return path.read_bytes()


def _with_random_weights(model: Any, seed: int = 7) -> Any:
    """Return a model whose weights are far from those of initialisation, of which many are zero."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim < 2:
                is_norm = "norm" in name and name.endswith("weight")
                weight.copy_((0.3 * torch.randn(weight.shape, generator=draw)) + is_norm)
            else:
                spread = 1.0 if "embedding.weight" in name else weight[0].numel() ** -0.5
                weight.copy_(spread * torch.randn(weight.shape, generator=draw))
    return model.eval()


def _timm_files(
    architecture: str, tag: str, args: dict[str, Any], weights: dict[str, Tensor], classes: int = PROJECTION
) -> dict[str, bytes]:
    about = {"tag": tag, "license": "apache-2.0", "input_size": [3, SIDE, SIDE], "crop_pct": 1.0}
    about |= {"interpolation": "bicubic", "mean": MEAN, "std": STD, "num_classes": classes}
    about |= {"classifier": "head"} if classes else {}
    config = {"architecture": architecture, "num_classes": classes, "model_args": args, "pretrained_cfg": about}
    contiguous = {name: tensor.contiguous().clone() for name, tensor in weights.items()}
    return {"config.json": json.dumps(config).encode(), "model.safetensors": save(contiguous)}


def _siglip_tower(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the image tower under timm's names, where the pooling's queries are apart from its keys and values."""
    named = image_tower(state)
    renamed = {name: tensor for name, tensor in named.items() if not name.startswith("head.")}
    head = {name.removeprefix("head."): tensor for name, tensor in named.items() if name.startswith("head.")}
    renamed["attn_pool.latent"] = head["probe"]
    for kind in ("weight", "bias"):
        queries, keys, values = head[f"attention.in_proj_{kind}"].chunk(3)
        renamed[f"attn_pool.q.{kind}"], renamed[f"attn_pool.kv.{kind}"] = queries, torch.cat([keys, values])
        renamed[f"attn_pool.proj.{kind}"] = head[f"attention.out_proj.{kind}"]
        renamed[f"attn_pool.norm.{kind}"] = head[f"layernorm.{kind}"]
        for layer in ("fc1", "fc2"):
            renamed[f"attn_pool.mlp.{layer}.{kind}"] = head[f"mlp.{layer}.{kind}"]
    return renamed


def _bytes_vocabulary(words: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return CLIP's kind of vocabulary: letters within and at the end of a word, and merges into a few words."""
    tokens = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    merges = list(_merges([(*word[:-1], f"{word[-1]}</w>") for word in words]))
    tokens += ["".join(pair) for pair in merges] + ["<|startoftext|>", "<|endoftext|>"]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}, merges


def _pieces() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return Gemma's kind of vocabulary: special tokens, bytes, letters and a few words after a low line."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{number:02X}>" for number in range(256))]
    merges = list(_merges([("▁", *word) for word in WORDS]))
    tokens += ["▁", *LETTERS, *("".join(pair) for pair in merges)]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}, merges


def _merges(words: Sequence[tuple[str, ...]]) -> dict[tuple[str, str], None]:
    pairs: dict[tuple[str, str], None] = {}
    for letters in words:
        left = letters[0]
        for right in letters[1:]:
            pairs[left, right] = None
            left += right
    return pairs


def _json_of(tokenizer: Any) -> bytes:
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return (Path(folder) / "tokenizer.json").read_bytes()


def _unit(output: Any) -> np.ndarray:
    rows = (output if isinstance(output, Tensor) else output.pooler_output).double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
