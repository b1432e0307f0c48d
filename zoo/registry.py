"""Which models there are, by name, and where each one lies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import hub, paths
from zoo.baselines import baselines, place, repository_of
from zoo.baselines import root as baselines_root
from zoo.cards import read_card
from zoo.contents import refusal_in
from zoo.errors import (
    HubError,
    HubUnreachableError,
    ModelFolderError,
    ModelNotFoundError,
    UsageError,
    ZooError,
    check_text,
    missing,
    nearest,
)
from zoo.hub.models import in_cache, name_of

if TYPE_CHECKING:
    from zoo.catalogue import ModelInfo

RECIPES = Path(__file__).parent / "recipes.json"
"""Every recipe's name and key facts, generated from `training.recipes` (a test holds the two equal)."""


def list_models(
    method: str | None = None, backbone: str | None = None, dataset: str | None = None, status: str | None = None
) -> list[ModelInfo]:
    """Every known model, sorted by name: trained here, shipped, on the Hub, or a recipe that waits to be trained.

    Filters are exact. Raises `UsageError`, with the nearest ones, for a value that no model has.
    """
    from zoo.catalogue import STATUSES  # whoever loads a model does not wait for what lists them

    models = _models()
    wanted = {"method": method, "backbone": backbone, "dataset": dataset, "status": status}
    for fact, value in wanted.items():
        known = sorted({getattr(model, fact) for model in models} | (set(STATUSES) if fact == "status" else set()))
        if value is None:
            continue
        check_text(fact, value)
        if value not in known:
            hint = _like(value, known) or f" The nearest is {get_close_matches(value, known, 1, 0)[0]!r}."
            raise UsageError(f"no model has the {fact} {value!r}.{hint} All models: zoo list")
    return [m for m in models if all(v is None or getattr(m, k) == v for k, v in wanted.items())]


def info(name: str) -> ModelInfo:
    """What is known of a model, by name or path; of a timm model on the Hub once it was used here.

    Raises `ModelNotFoundError` with the nearest names, `UsageError` for what no name can be.
    """
    from zoo.catalogue import from_baseline, from_recipe

    name = _text(name)
    if (folder := here(name)) is not None:
        return _described(folder)
    if name in recipes():
        return from_recipe(name, recipes()[name])
    repository = repository_of(name)
    for baseline in baselines().values():
        if baseline.repository == repository:
            return from_baseline(baseline)
    advice = _advice(name, repository) if _is_of_the_hub(name) else ""
    raise ModelNotFoundError(
        f"there is no model {name!r} here.{_of_architecture(name) or _like(name, known_names())}{advice} "
        "All names: zoo list"
    )


def _is_of_the_hub(name: str) -> bool:
    return name.removeprefix("hf-hub:").count("/") == 1 and not _looks_like_path(name)


def _advice(name: str, repository: str | None) -> str:
    """What to do about a name of the Hub of which nothing is on this machine."""
    if repository is not None:
        return f" Nothing of it is here; if timm has a model of that name on the Hub, zoo.load({name!r}) fetches it."
    return f" It is not in the Hub's cache; if the Hub has it, zoo.load({name!r}) fetches it, and then this is known."


def find(name_or_path: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder of a model: a path, the local zoo, the shipped checkpoints, the Hub's cache, the Hub, in this order.

    A public backbone (a short name of `zoo.baselines`, timm/ID, or another of timm's models on the Hub) gets its
    folder on its first use, for which torch and timm must be installed. With `revision` only the Hub is asked.
    Raises `ModelNotFoundError` that says where it looked and what to run, `UsageError` for what no name can be.
    """
    name = _text(name_or_path)
    if revision is not None:
        check_text("revision", revision)
        _check_no_path(name_or_path, name)
    if revision is None and (folder := _local(name)) is not None:
        return folder
    base, _, at = name.partition("@")
    if _looks_like_path(name) or (revision is None and _is_something_else(name)):
        raise ModelNotFoundError(_no_model_at(name))
    if (public := repository_of(base)) is not None:
        return _baseline_folder(public, revision or at or None)
    try:
        return hub.snapshot(hub.repository(name), revision)
    except hub.NoModelFolderError:
        if not _is_timm(hub.repository(base), revision or at or None):
            raise
        return _baseline_folder(hub.repository(base), revision or at or None)
    except (ModelNotFoundError, HubError) as error:
        # A bare name may be a typing error; one with an organisation was meant for the Hub.
        if "/" in name:
            looked = f"there is no folder {name}, and " if revision is None else ""
            raise type(error)(f"{looked}{error}{_like(name, known_names())}") from None
        raise ModelNotFoundError(
            _not_found(name, error) if revision is None else _not_at_hub(name, revision, error)
        ) from None


def here(name: str) -> Path | None:
    """The folder that `find` takes where it need not ask the Hub; None where nothing is on this machine."""
    return _local(name) or _in_the_hubs_cache(name)


def known_names() -> list[str]:
    return [model.name for model in _models()]


@cache
def recipes() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(RECIPES.read_text(encoding="utf-8"))
    return rows


def _models() -> list[ModelInfo]:
    """Every known model by name; what has a folder here comes before what could be had."""
    from zoo.catalogue import from_baseline, from_recipe

    models = {name: from_recipe(name, row) for name, row in recipes().items()}
    models |= {name: from_baseline(baseline) for name, baseline in baselines().items()}
    for folder in _folders():
        try:
            model = _described(folder)
        except ModelFolderError:
            continue  # a damaged folder must not hide the others; `damaged` names it
        models[model.name] = model
    return sorted(models.values(), key=lambda model: model.name)


def damaged() -> dict[Path, str]:
    """The model folders on this machine that cannot be listed, and what is wrong with each."""
    found = {}
    for folder in _folders():
        try:
            _described(folder)
        except ModelFolderError as error:
            found[folder] = str(error)
    return found


def _described(folder: Path) -> ModelInfo:
    from zoo.catalogue import from_folder

    copied_from = _copied_from(folder)
    return from_folder(folder, copied_from or _status(folder), recipes(), name_of(folder), copied_from is not None)


def _folders() -> Iterator[Path]:
    """Model folders on this machine; those that `find` takes first come last."""
    yield from in_cache()
    for root in (baselines_root(), paths.SHIPPED, paths.local_models()):
        # org/name: what was made of a model of the Hub, as `zoo export` does it.
        for card in sorted([*root.glob("*/card.json"), *root.glob("*/*/card.json")]):
            if not any(part.startswith(".") for part in card.relative_to(root).parts):
                yield card.parent  # the others are what a writer that was killed has left behind


def _in_the_hubs_cache(name: str) -> Path | None:
    """The folder that `find` would take from the Hub's cache, without asking the Hub."""
    base, _, revision = name.partition("@")
    if _looks_like_path(name) or repository_of(base) is not None:
        return None
    try:
        return hub.cached(hub.repository(base), revision or None)
    except ModelNotFoundError:  # no name that a repository can have
        return None


def _status(folder: Path) -> str:
    if folder.parent.name == "snapshots":
        return "hub"
    return {paths.SHIPPED: "shipped", baselines_root(): "hub"}.get(folder.parent, "trained")


def _copied_from(folder: Path) -> str | None:
    """The status of the model that a folder of the local zoo is a copy of, as `zoo export` makes it; None of others."""
    if not folder.is_relative_to(paths.local_models()):
        return None
    name = folder.relative_to(paths.local_models()).as_posix()
    if "/" in name:  # org/name; what is trained has no such name
        return "hub"
    if _are_same(folder, paths.SHIPPED / name):
        return "shipped"
    # Models of `hub.organisation()` have bare names, as what is trained here has.
    return "hub" if any(_are_same(folder, cached) for cached in in_cache() if name_of(cached) == name) else None


def _are_same(folder: Path, other: Path) -> bool:
    """Whether both hold the same model; False for a folder that holds none."""
    try:
        return _exists(other / "card.json") and read_card(other).fingerprint == read_card(folder).fingerprint
    except ModelFolderError:
        return False


def _local(name: str) -> Path | None:
    candidates = [paths.expand(name)]
    if not _looks_like_path(name):
        candidates += [paths.local_models() / name.removeprefix("hf-hub:"), paths.SHIPPED / name]
        candidates += [place(name)] if "@" not in name else []
    return next((folder for folder in candidates if _exists(folder / "card.json")), None)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or (os.sep in name and _exists(Path(name)))


def _text(name: str | os.PathLike[str]) -> str:
    if isinstance(name, str | os.PathLike) and isinstance(text := os.fspath(name), str):
        return text
    raise UsageError(
        f"a model is named by text, not by {type(name).__name__}: by a name of zoo list, the path of a model folder, "
        "org/name[@revision] or timm/ID on the Hub."
    )


def _check_no_path(given: str | os.PathLike[str], name: str) -> None:
    """Raise `UsageError` for the path of a model folder, which is asked for at a revision."""
    if (isinstance(given, os.PathLike) or _looks_like_path(name)) and _exists(paths.expand(name) / "card.json"):
        raise UsageError(
            f"{name} is the path of a model folder, and a path has no revisions. Leave the revision out; or, to have "
            "it from the Hub, give hf-hub:org/name."
        )


def _is_something_else(name: str) -> bool:
    """Whether a bare name is that of a folder or file here, and of nothing that the Hub is known to have."""
    return bool(name) and name not in recipes() and repository_of(name) is None and _exists(Path(name))


def _no_model_at(name: str) -> str:
    if not paths.is_folder(name):
        what = "is a file; a model is a folder" if _exists(paths.expand(name)) else "is not there"
        return f"{name} {what}. A model folder holds card.json and model.safetensors, as zoo train writes them."
    return (
        f"{name} is a folder but no model folder: card.json is missing.{refusal_in(paths.expand(name))} "
        "Give the folder that zoo train or zoo finetune has written, or a model's name (zoo list)."
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than the file system takes, a folder that may not be entered
        return False


def _is_timm(repository: str, revision: str | None) -> bool:
    try:
        from zoo.baselines.folder import is_timm
    except ModuleNotFoundError:
        return False
    return is_timm(repository, revision)


def _baseline_folder(repository: str, revision: str | None) -> Path:
    try:
        from zoo.baselines.folder import make_folder
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "timm", "torchvision"):
            raise
        raise missing(error.name, "train") from None
    return make_folder(repository, revision)


def _like(name: str, known: list[str]) -> str:
    """ " It could be ..." for the beginning of several names, else the nearest names."""
    begun = [each for each in known if each.startswith(name.lower())] if name else []
    if not begun:
        return nearest(name, known) or nearest(name.lower(), known)
    more = f" and {len(begun) - 5} more" if len(begun) > 5 else ""
    return f" It is the beginning of {', '.join(begun[:5])}{more}."


def _of_architecture(name: str) -> str:
    """The public backbones of an architecture that is given by timm's name."""
    found = [f"{each.name} ({each.repository})" for each in baselines().values() if each.backbone == name.lower()]
    return f" Public backbones of that architecture: {', '.join(found)}." if found else ""


def _not_at_hub(name: str, revision: str, error: ZooError) -> str:
    """The message for a bare name with a revision, for which nothing but the Hub was looked at."""
    asked = f"It could not be asked ({error.why})." if isinstance(error, HubUnreachableError) else f"There, {error}"
    folder = _local(name)
    here = _like(name, known_names()) if folder is None else f" Without a revision {name!r} loads from {folder}."
    return f"no model {name!r} at revision {revision!r}: with a revision only the Hub is asked. {asked}{here}"


def _not_found(name: str, error: ZooError) -> str:
    advice = f"Train it with: zoo train {name}" if name in recipes() else "All names: zoo list"
    hint = "" if name in recipes() else (_of_architecture(name) or _like(name, known_names()))
    if "." in name:
        hint += f" A model of timm's is loaded as 'timm/{name}'."
    at_hub = f"And {error}"
    if isinstance(error, HubUnreachableError):  # its own advice is for a name that is right
        at_hub = f"The Hub could not be asked ({error.why})."
    return (
        f"no model {name!r}.{hint} Looked for a folder of that path, in the local zoo ({paths.local_models()}) and "
        f"among the shipped models. {at_hub} {advice}"
    )
