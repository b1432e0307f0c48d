"""`zoo.load`: from a name to a model that embeds."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from zoo import hub, paths
from zoo.baselines import repository_of
from zoo.cards import Card, read_card
from zoo.config import check_config
from zoo.contents import check_files, refusal_in
from zoo.embedder import Embedder
from zoo.errors import (
    HubError,
    HubUnreachableError,
    ModelNotFoundError,
    UsageError,
    ZooError,
    check_text,
    missing,
    nearest,
)
from zoo.registry import exists, local_folder, looks_like_path, model_text, recipes

RUNTIMES = ("torch", "onnx")


def load(
    name_or_path: str | os.PathLike[str],
    runtime: str = "torch",
    precision: str = "fp32",
    device: str | None = None,
    revision: str | None = None,
) -> Embedder:
    """Load a model by name or path.

    runtime: "torch" (precision fp32, bf16, fp16) or "onnx" (fp32, fp16, int8, as exported), which needs no torch.
    device: torch: cpu, cuda, cuda:N; onnx: cpu, cuda, tensorrt; by default the best that torch sees, or cpu for onnx.
    revision: a branch, tag or commit of the Hub's repository. Without one a model that is in the Hub's cache is taken
    from there; with a branch or tag the Hub is asked what it holds now.

    A weight file is used only where the card lists it, its SHA-256 is the card's and it lies in the folder; pickles
    never. Raises `ModelNotFoundError`, `ModelFolderError`, `HubError`, `UsageError` or `MissingDependencyError`.
    """
    for name, value in (("runtime", runtime), ("precision", precision)):
        check_text(name, value)
    if runtime not in RUNTIMES:
        raise UsageError(f"runtime is 'torch' or 'onnx', not {runtime!r}.{nearest(runtime, RUNTIMES)}")
    folder = find(name_or_path, revision)
    card = read_card(folder)
    check_config(folder, card)
    run, where = (
        _open_torch(folder, card, precision, device)
        if runtime == "torch"
        else _open_onnx(folder, card, precision, device)
    )
    return Embedder(card, folder, runtime, precision, where, run)


def _open_torch(folder: Path, card: Card, precision: str, device: str | None):  # type: ignore[no-untyped-def]
    try:
        from zoo.torch_runtime import open_model
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "timm", "torchvision"):
            raise
        hint = ". Or use ONNX Runtime, which needs none: runtime='onnx' (--runtime onnx)."
        raise type(missing("torch", "train"))(f"{missing('torch', 'train')}{hint}") from None
    check_files(folder, card)
    return open_model(folder, card, precision, device)


def _read_pillow() -> None:
    """What turns images into pixels, and the usual formats, which Pillow reads at its first image otherwise."""
    import_module("zoo.data.images")
    import_module("PIL.Image").preinit()


def _open_onnx(folder: Path, card: Card, precision: str, device: str | None):  # type: ignore[no-untyped-def]
    from zoo.onnx_runtime import graph_file, open_file

    name = graph_file(folder, card, precision)
    # The file's hash takes about as long as opening it, and neither waits for the other; nor does Pillow, which embeds
    # the first image. What is wrong with a file that is not the card's is that.
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_files, folder, card, [name])
        pool.submit(_read_pillow)
        try:
            return open_file(folder / name, card, device, precision)
        finally:
            checked.result()


def find(name_or_path: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Return the folder of a model: a path, the local zoo, the shipped checkpoints, the Hub's cache or the Hub.

    It looks in this order. A public backbone (a short name of `zoo.baselines`, timm/ID, or another of timm's models on
    the Hub) gets its folder on its first use, for which torch and timm must be installed. With `revision` only the Hub
    is asked.

    Raises `ModelNotFoundError` that says where it looked and what to run, `UsageError` for what no name can be.
    """
    name = model_text(name_or_path)
    if revision is not None:
        check_text("revision", revision)
        _check_no_path(name_or_path, name)
    if revision is None and (folder := local_folder(name)) is not None:
        return folder
    base, _, at = name.partition("@")
    if looks_like_path(name) or (revision is None and _is_something_else(name)):
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
            raise type(error)(f"{looked}{error}{_nearest_model(name)}") from None
        raise ModelNotFoundError(
            _not_found(name, error) if revision is None else _not_at_hub(name, revision, error)
        ) from None


def _check_no_path(given: str | os.PathLike[str], name: str) -> None:
    """Raise `UsageError` for the path of a model folder, which is asked for at a revision."""
    if (isinstance(given, os.PathLike) or looks_like_path(name)) and exists(paths.expand(name) / "card.json"):
        raise UsageError(
            f"{name} is the path of a model folder, and a path has no revisions. Leave the revision out; or, to have "
            "it from the Hub, give hf-hub:org/name."
        )


def _is_something_else(name: str) -> bool:
    """Whether a bare name is that of a folder or file here, and of nothing that the Hub is known to have."""
    return bool(name) and name not in recipes() and repository_of(name) is None and exists(Path(name))


def _no_model_at(name: str) -> str:
    if not paths.is_folder(name):
        what = "is a file; a model is a folder" if exists(paths.expand(name)) else "is not there"
        return f"{name} {what}. A model folder holds card.json and model.safetensors, as zoo train writes them."
    return (
        f"{name} is a folder but no model folder: card.json is missing.{refusal_in(paths.expand(name))} "
        "Give the folder that zoo train or zoo finetune has written, or a model's name (zoo list)."
    )


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


def _not_at_hub(name: str, revision: str, error: ZooError) -> str:
    """The message for a bare name with a revision, for which nothing but the Hub was looked at."""
    asked = f"It could not be asked ({error.why})." if isinstance(error, HubUnreachableError) else f"There, {error}"
    folder = local_folder(name)
    here = _nearest_model(name) if folder is None else f" Without a revision {name!r} loads from {folder}."
    return f"no model {name!r} at revision {revision!r}: with a revision only the Hub is asked. {asked}{here}"


def _nearest_model(name: str) -> str:
    """Return the hint that names the known models nearest to a name."""
    from zoo.catalogue import known_names, name_hint  # loading a model does not need the list of all models

    return name_hint(name, known_names())


def _not_found(name: str, error: ZooError) -> str:
    from zoo.catalogue import architecture_hint

    advice = f"Train it with: zoo train {name}" if name in recipes() else "All names: zoo list"
    hint = "" if name in recipes() else (architecture_hint(name) or _nearest_model(name))
    if "." in name:
        hint += f" A model of timm's is loaded as 'timm/{name}'."
    at_hub = f"And {error}"
    if isinstance(error, HubUnreachableError):  # its own advice is for a name that is right
        at_hub = f"The Hub could not be asked ({error.why})."
    return (
        f"no model {name!r}.{hint} Looked for a folder of that path, in the local zoo ({paths.local_models()}) and "
        f"among the shipped models. {at_hub} {advice}"
    )
