"""From a trained network to a model folder: card, weights, recipe, log, golden images."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from training.recipe import Recipe
from zoo.files import atomic_folder, sha256_of, write_bytes, write_json
from zoo.models.card import Card
from zoo.models.golden import write_golden
from zoo.models.network import Network, feature_count, save_network
from zoo.models.torch_runtime import open_model

LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pillow", "dml-zoo")


def write_model_folder(
    folder: Path,
    recipe: Recipe,
    network: Network,
    log: list[dict[str, Any]],
    facts: dict[str, Any],
    golden: list[Any],
    base: Card | None = None,
    teacher: Card | None = None,
) -> Card:
    """Write the model folder whole, in place of an older one of that name; its card.

    base: the model whose weights it started from, teacher: the one whose embeddings it learnt; they give the licence
    and their sources.
    """
    with atomic_folder(folder) as temporary:
        card = _after(_taught(recipe_card(recipe, network), teacher), base)
        weights = save_network(network, card, temporary)
        card = dataclasses.replace(card, files={name: sha256_of(temporary / name) for name in weights})
        card.write(temporary)
        record = {"model": card.identity, "recipe": recipe.to_json(), **facts, **provenance()}
        write_json(temporary / "recipe.json", record)
        write_bytes(temporary / "log.jsonl", "".join(json.dumps(record) + "\n" for record in log).encode())
        run, _ = open_model(temporary, card, device="cpu")
        write_golden(temporary, card, golden, run)
    return card


def recipe_card(recipe: Recipe, network: Network, files: dict[str, str] | None = None) -> Card:
    return Card(
        name=recipe.name,
        method=recipe.method,
        backbone=recipe.backbone.name,
        dataset=recipe.data.dataset,
        architecture=recipe.backbone.architecture,
        architecture_args=dict(recipe.backbone.args),
        dim=recipe.dim or feature_count(network.trunk),
        preprocessing=recipe.preprocessing,
        heads=recipe.heads,
        files=files or {},
        sources=recipe.sources,
    )


def _after(card: Card, base: Card | None) -> Card:
    if base is None:
        return card
    described = " ".join(filter(None, (f"Trained from {base.name}.", card.description)))
    return dataclasses.replace(_under(card, base), description=described)


def _taught(card: Card, teacher: Card | None) -> Card:
    if teacher is None:
        return card
    learnt = f"Distilled from {teacher.name} (fingerprint {teacher.fingerprint[:12]})."
    return dataclasses.replace(_under(card, teacher), description=learnt)


def _under(card: Card, other: Card) -> Card:
    """The card with the licence and the sources of what it was made from; two licences hold both."""
    own = Card.licence  # of a network that began with random weights
    licence = other.licence if card.licence in (own, other.licence) else f"{other.licence} AND {card.licence}"
    return dataclasses.replace(card, licence=licence, sources=tuple(dict.fromkeys((*other.sources, *card.sources))))


def provenance() -> dict[str, Any]:
    """Versions, commit and hardware: what one must know to make the same again."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}},
        "commit": _commit(),
        "hardware": {
            "machine": platform.machine(),
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this runs from, marked where files differ from it; None for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
