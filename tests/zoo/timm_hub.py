"""Small timm models with random weights, as timm publishes them, on a Hub on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save

from tests.zoo.hub_server import COMMIT, running
from tests.zoo.hub_state import Hub, Repository
from zoo.models.backbones import register

VIT = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 2}
RESNET = {"channels": [4, 4, 4, 8], "layers": [1, 1, 1, 1]}
CONV4 = {"widths": [4, 4, 8, 8]}

register()


def of_timm(architecture: str, args: dict[str, Any], seed: int = 3, **cfg: Any) -> tuple[bytes, bytes]:
    """Return config.json and model.safetensors of a timm model with random weights."""
    torch.manual_seed(seed)
    model = timm.create_model(architecture, num_classes=7, **args)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var") or (name.endswith("weight") and tensor.ndim == 1):
                tensor.uniform_(0.5, 1.5)  # timm's residual branches begin at zero
    about = {"tag": "toy_in1k", "license": "mit", "input_size": [3, 32, 32], "crop_pct": 0.9, "crop_mode": "center"}
    about |= {"interpolation": "bicubic", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3], "num_classes": 7}
    config = {"architecture": architecture, "num_classes": 7, "model_args": args, "pretrained_cfg": {**about, **cfg}}
    return json.dumps(config).encode(), save(model.state_dict())


def files() -> dict[str, bytes]:
    contents = {}
    for repository, files_of_model in {
        "timm/vit_small_patch14_dinov2.lvd142m": of_timm("vit_tiny_patch16_224", VIT),
        "timm/resnet10t.toy_in1k": of_timm("resnet18", RESNET),
        "org/conv4": of_timm("conv4", CONV4),
        "Some-Org/Birds": of_timm("resnet18", RESNET, tag="birds", crop_mode="squash", crop_pct=1.0),
        "org/long": of_timm("resnet18", RESNET, input_size=[3, 64, 32]),
        "org/evil": of_timm("resnet18", {**RESNET, "channels": [4, 4, 4, 4]}, tag=""),
        "org/wrong": of_timm("resnet18", RESNET),
        "org/unknown": of_timm("resnet18", RESNET),
    }.items():
        contents[f"{repository}/config.json"], contents[f"{repository}/model.safetensors"] = files_of_model
    evil = json.loads(contents["org/evil/config.json"])
    contents["org/evil/config.json"] = json.dumps({**evil, "model_args": {"checkpoint_path": "/tmp/x.pth"}}).encode()
    contents["org/wrong/model.safetensors"] = contents["org/evil/model.safetensors"]
    unknown = json.loads(contents["org/unknown/config.json"])
    contents["org/unknown/config.json"] = json.dumps({**unknown, "architecture": "resnet18x"}).encode()
    contents["org/bert/config.json"] = b'{"model_type": "bert"}'
    contents["org/pickled/config.json"] = contents["org/long/config.json"].replace(b"64, 32", b"32, 32")
    contents["org/pickled/pytorch_model.bin"] = b"never read"
    return contents


FILES = files()


@contextmanager
def timm_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a Hub with the small timm models, and point huggingface_hub and a new cache to it."""
    with running() as server:
        for path, data in FILES.items():
            name, _, file = path.rpartition("/")
            server.repositories.setdefault(name, Repository({"main": COMMIT}, {COMMIT: {}})).files()[file] = data
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        yield server
