"""Pairs that imagededup finds in a folder of images, for bench_duplicates.py: run where imagededup is installed.

    VENV/bin/python tests/benchmarks/imagededup_worker.py IMAGES OUT.json

OUT.json has the pairs of each method with their score, up to loose thresholds: PHash, of 64 bits, with their distance,
CNN with the cosine. The weights of CNN's own network come from a server that not every machine reaches; the network
here is the ImageNet-trained EfficientNet-Lite0 that `photos` is made of, through CNN's interface for custom models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from imagededup.methods import CNN, PHash
from imagededup.utils import CustomModel

PHOTOS = Path(__file__).resolve().parents[2] / "zoo" / "checkpoints" / "photos"
PHASH_LOOSE, CNN_LOOSE = 24, 0.6


def lite0() -> CustomModel:
    """Return the trunk with its preprocessing."""
    import timm
    import torch
    from safetensors.torch import load_file
    from torchvision import transforms

    trunk = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    trunk.load_state_dict(load_file(PHOTOS / "model.safetensors"), strict=False)
    how = json.loads((PHOTOS / "card.json").read_text(encoding="utf-8"))["preprocessing"]
    torch.set_num_threads(1)
    steps = [
        transforms.Resize(how["resize"]),
        transforms.CenterCrop(how["crop"]),
        transforms.ToTensor(),
        transforms.Normalize(how["mean"], how["std"]),
    ]
    return CustomModel("lite0", trunk.eval(), transforms.Compose(steps))


def unique(found: dict[str, list[tuple[str, Any]]]) -> list[tuple[str, str, float]]:
    """Return each pair once, in the order of its names."""
    return [(name, other, float(score)) for name, others in found.items() for other, score in others if name < other]


def main() -> None:
    images, out = map(Path, sys.argv[1:])
    phash, cnn = PHash(verbose=False), CNN(verbose=False, model_config=lite0())
    hashes = phash.encode_images(images, num_enc_workers=0)
    near = phash.find_duplicates(
        encoding_map=hashes, max_distance_threshold=PHASH_LOOSE, scores=True, num_dist_workers=0
    )
    features = cnn.encode_images(images, num_enc_workers=0)
    similar = cnn.find_duplicates(
        encoding_map=features, min_similarity_threshold=CNN_LOOSE, scores=True, num_sim_workers=0
    )
    out.write_text(json.dumps({"PHash": unique(near), "CNN": unique(similar)}), encoding="utf-8")


if __name__ == "__main__":
    main()
