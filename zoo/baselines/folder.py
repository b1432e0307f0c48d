"""A timm model of the Hub as a model folder, made on its first use: whatever takes a model takes a baseline then."""

from __future__ import annotations

import dataclasses
from importlib.metadata import version
from pathlib import Path

import timm
import torch
from torch import nn

from zoo.baselines import METHOD, baselines, folder_of
from zoo.baselines.config import TimmModel, read_config
from zoo.cards import Card
from zoo.errors import HubError, ModelFolderError, RecipeError, nearest
from zoo.files import atomic_folder, read_json, sha256_of, write_json
from zoo.golden import pictures, write_golden
from zoo.hub.cache import drop_altered
from zoo.network import Network, build_trunk, check_architecture, feature_count, save_network
from zoo.pretrained import CONFIG, WEIGHTS, Weights, fetch, read_state
from zoo.torch_runtime import open_model


def is_timm(repository: str, revision: str | None = None) -> bool:
    """Whether the Hub's cache, or the Hub, has a config.json of timm's kind in that repository."""
    try:
        values = read_json(fetch(repository, revision, CONFIG))
    except (HubError, RecipeError, OSError, ValueError):
        return False
    return (
        isinstance(values, dict)
        and "architecture" in values
        and {"pretrained_cfg", "input_size"} & values.keys() != set()
    )


def make_folder(repository: str, revision: str | None = None) -> Path:
    """The model folder of the Hub's timm model, from weights in the Hub's cache or downloaded into it.

    The embedding is timm's pooled features (what the classifier would get), normalised to unit length. A revision has
    a folder of its own, by its commit. Raises `HubError` where the Hub does not give the files, and
    `ModelFolderError` for files that are no timm model of square images.
    """
    try:
        config = fetch(repository, revision, CONFIG, "")
        folder = folder_of(repository, None if revision is None else config.parent.name)
        if (folder / "card.json").is_file():
            return folder
        config, weights = _files(repository, config.parent.name)
        model = read_config(config)
        check_architecture(model.architecture)
        state = Weights(read_state(weights), {}, f"{repository} ({weights})")
        trunk = build_trunk(model.architecture, model.preprocessing.channels, dict(model.args), state)
        with atomic_folder(folder) as temporary:
            card = _write(temporary, _card(folder.name, repository, model, trunk), trunk)
            made_of = {"repository": repository, "commit": config.parent.name, "weights": sha256_of(weights)}
            record = {"model": card.identity, "baseline": made_of, "versions": _versions()}
            write_json(temporary / "recipe.json", record)
    except HubError as error:
        raise type(error)(f"{error}{_timms_like(repository)}") from None
    except RecipeError as error:
        raise ModelFolderError(f"the Hub's {repository} is no timm model that can be used: {error}") from None
    return folder


def _timms_like(repository: str) -> str:
    """The names that timm has like this one, where it has none of it."""
    owner, _, name = repository.partition("/")
    known = timm.list_pretrained()
    if owner != "timm" or name in known:
        return ""
    tags = [each for each in known if each.partition(".")[0] == name]
    return f" timm has {name} as {', '.join(tags[:5])}." if tags else nearest(name, known)


def _files(repository: str, commit: str) -> tuple[Path, Path]:
    """config.json and the weights of one commit, with the bytes that the Hub announced."""
    for _ in range(2):
        config, weights = (fetch(repository, commit, name, "") for name in (CONFIG, WEIGHTS))
        if not (altered := drop_altered(weights.parent)):
            return config, weights
    raise HubError(
        f"{', '.join(altered)} of {repository} came twice with other bytes than the Hub announced, and was removed "
        "from the cache. Something on the way alters files: check any proxy and HF_ENDPOINT."
    )


def _card(name: str, repository: str, model: TimmModel, trunk: nn.Module) -> Card:
    curated = baselines().get(name)
    about = curated.description if curated else f"timm's {model.architecture} {model.tag}".strip()
    return Card(
        name=name,
        method=METHOD,
        backbone=model.architecture,
        dataset=model.tag or "unknown",
        architecture=model.architecture,
        architecture_args=dict(model.args),
        dim=feature_count(trunk),
        preprocessing=model.preprocessing,
        licence=curated.licence if curated else model.licence,
        sources=(*((curated.source,) if curated else ()), f"https://huggingface.co/{repository}"),
        description=" ".join([f"{about}: pooled features, not trained further.", model.remark]).strip(),
    )


def _write(folder: Path, card: Card, trunk: nn.Module) -> Card:
    files = save_network(Network(trunk, nn.ModuleDict()), card, folder)
    card = dataclasses.replace(card, files={name: sha256_of(folder / name) for name in files})
    card.write(folder)
    write_golden(folder, card, pictures(), open_model(folder, card, device="cpu")[0])
    return card


def _versions() -> dict[str, str]:
    return {"timm": version("timm"), "torch": torch.__version__, "dml-zoo": version("dml-zoo")}
