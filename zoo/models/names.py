"""Names of models: a table of the kinds of thing that a name may be, each with its folder, and hints to other names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo import paths
from zoo.errors import (
    HubError,
    HubUnreachableError,
    ModelNotFoundError,
    UsageError,
    ZooError,
    check_text,
    command,
    missing,
    nearest,
)
from zoo.hub import download
from zoo.models import recipes
from zoo.models.baselines import baselines, repository_of
from zoo.models.card import Card, holds_other_modules, read_card
from zoo.models.folder import HEADS_FILE, PICKLES, PYTORCH_SUFFIXES
from zoo.models.pretrained.packages import PACKAGES, install_hint, installed_package
from zoo.models.registry import (
    HERE,
    Kind,
    ModelLike,
    ModelName,
    exists,
    folder_name,
    local_folder,
    looks_like_path,
    model_folders,
    model_text,
)

PHOTOS = "photos"
"""Name of the shipped model for any photographs."""


def _is_path_of_weights(name: ModelName) -> bool:
    """Return whether a name is the path of something else than a model folder.

    A bare name is one if a folder or file has it, but no recipe and no public backbone; or if it ends like a file of
    weights, so that the Hub is not asked for a file with a typing error.
    """
    if looks_like_path(name.text):
        return True
    suffixes = (*PICKLES, ".tar", ".safetensors", ".onnx")
    is_file = name.text.lower().endswith(suffixes) and Path(name.text).parent.is_dir()
    known = not name.text or name.text in recipes() or repository_of(name.text) is not None
    return name.revision is None and ((not known and exists(Path(name.text))) or is_file)


def _is_folder_of_weights(name: ModelName) -> bool:
    """Return whether a name is the path of a folder of timm's, of CLIP or of sentence-transformers."""
    plain = all(exists(name.path / file) for file in ("config.json", "model.safetensors"))
    return _is_path_of_weights(name) and (plain or holds_other_modules(name.path))


@contextmanager
def _with_torch() -> Iterator[None]:
    """Say how to install torch or timm if the block cannot import them."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "timm", "torchvision"):
            raise
        raise missing(error.name, "train") from None


def _make_from_weights(name: ModelName) -> Path:
    """Return the model folder of an installed package, or of a folder of weights that says all about itself."""
    with _with_torch():
        from zoo.models.baseline_folder import make_source_folder
        from zoo.models.pretrained.weights import find_source
    package = installed_package(name.text)
    return make_source_folder(find_source(name.text), package.name if package else name.path.resolve().name)


def _refuse_path(name: ModelName) -> Path:
    if not exists(name.path):
        problem = f"does not exist. Check the path ({name.path.absolute()}), or give a model's name (zoo list)."
    elif not paths.is_folder(name.text):
        problem = f"is a file; make it a model first: {command('baseline', name.text, '--as', 'NAME')}"
    elif file := _file_of_weights(name.path):
        options = () if file.endswith(".onnx") else ("--architecture", "NAME")
        make = command("baseline", Path(name.text) / file, "--as", "NAME", *options)
        problem = f"is not a model folder: card.json is missing. To make a model of a file in it: {make}"
    else:
        problem = "is not a model folder: card.json is missing. Give one that zoo train wrote, or a name (zoo list)."
    raise ModelNotFoundError(f"{name.text} {problem}")


def _make_baseline(repository: str, revision: str | None) -> Path:
    with _with_torch():
        from zoo.models.baseline_folder import make_baseline_folder
    return make_baseline_folder(repository, revision)


def _fetch(name: ModelName) -> Path:
    """Return the folder of a model on the Hub; one of timm's without a card is made a model folder."""
    try:
        return download.snapshot(download.repository_id(name.text), name.revision)
    except download.NoModelFolderError:
        if not _is_timm(name.repository, name.commit):
            raise
        return _make_baseline(name.repository, name.commit)
    except (ModelNotFoundError, HubError) as error:
        # A bare name may be a typing error; a name with an organisation is a repository of the Hub.
        if "/" in name.text:
            looked = f"there is no folder {name.text}, and " if name.revision is None else ""
            message = f"{looked}{error}{_nearest_known(name.text)}"
            raise type(error)(message, code=error.code) from None
        raise _not_found(name, error) from None


def _is_timm(repository: str, revision: str | None) -> bool:
    try:
        from zoo.models.baseline_folder import is_timm_repository
    except ModuleNotFoundError:
        return False
    return is_timm_repository(repository, revision)


KINDS = (
    *HERE,
    Kind(lambda name: name.revision is None and installed_package(name.text) is not None, _make_from_weights),
    Kind(_is_folder_of_weights, _make_from_weights),
    Kind(_is_path_of_weights, _refuse_path),
    Kind(
        lambda name: repository_of(name.base) is not None,
        lambda name: _make_baseline(repository_of(name.base) or "", name.commit),
    ),
    Kind(lambda name: True, _fetch),  # the Hub's cache, then the Hub
)
"""Kinds of names in order; the first that matches has the model."""


def find_model(model: ModelLike, revision: str | None = None) -> Path:
    """Return the folder of a model.

    Looks in this order (`KINDS`): a path, the local zoo, the shipped checkpoints, an installed package of weights, the
    Hub's cache, the Hub. A folder of timm's, a package, or a public backbone (a short name of `zoo.models.baselines`,
    timm/ID, or another timm model on the Hub) gets its model folder on the first use, which needs torch and timm.

    Args:
        model: Name, path, org/name[@revision] or timm/ID, or an object with the attribute `folder`.
        revision: A branch, tag or commit; then only the Hub is asked.

    Raises:
        ModelNotFoundError: `model-not-found` for a path, `model-not-found` for a name; the message says where it looked
            and what to run.
        HubError: If the Hub does not provide a model with an organisation in its name.
        UsageError: `invalid-value`, or `conflicting-options`.
    """
    name = ModelName(model_text(model), revision)
    if revision is not None:
        check_text("revision", revision)
        is_path = isinstance(model, os.PathLike) or looks_like_path(name.text)
        if is_path and exists(name.path / "card.json"):
            raise UsageError(
                f"{name.text} is the path of a model folder, and a path has no revisions. Omit the revision; or, to "
                "load from the Hub, give hf-hub:org/name.",
                code="conflicting-options",
            )
    return next(kind for kind in KINDS if kind.matches(name)).folder(name)


def _file_of_weights(folder: Path) -> str | None:
    """Return the name of a file of weights at the top of a folder, PyTorch's first; None without any."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return None
    kinds = (PYTORCH_SUFFIXES, (".onnx",), (".safetensors",))
    return next((name for kind in kinds for name in names if name.lower().endswith(kind) and name != HEADS_FILE), None)


def _not_found(name: ModelName, error: ZooError) -> ModelNotFoundError:
    """Return the error for a bare name that neither this machine nor the Hub has; `error` is the Hub's."""
    hub = f"At the Hub: {error}"
    if isinstance(error, HubUnreachableError):  # its own advice assumes a correct name
        hub = f"The Hub could not be asked ({error.why})."
    looked = f"Looked in the local zoo ({paths.local_models()}) and among the shipped models."
    advice = "All models: zoo list"
    if name.revision is not None:
        folder = local_folder(name.text)
        hint = f" Without a revision {name.text!r} loads from {folder}." if folder else _nearest_known(name.text)
        looked = f"Looked for the revision {name.revision!r}, which only the Hub can have."
    elif name.text in recipes():
        hint, advice = _nearest_shipped(name.text), f"Train it with: zoo train {name.text}"
    else:
        hint = similar_names(name.text)
    timm = f" For a model of timm, give 'timm/{name.text}'." if "." in name.text else ""
    return ModelNotFoundError(f"no model {name.text!r}.{hint}{timm} {looked} {hub} {advice}")


def known_names() -> list[str]:
    """Return the names of all known models, sorted: recipes, public backbones, packages, and models on this machine."""
    folders = (name for folder in model_folders() if (name := folder_name(folder)))
    return sorted({*recipes(), *baselines(), *(package.name for package in PACKAGES if package.path), *folders})


def similar_names(name: str) -> str:
    """Return the package, public backbones or known models that a wrong name may mean, as a sentence."""
    matches = [f"{b.name} ({b.repository})" for b in baselines().values() if b.backbone == name.lower()]
    backbones = f" Public backbones of that architecture: {', '.join(matches)}." if matches else ""
    return install_hint(name) or backbones or _nearest_known(name)


def _nearest_known(name: str) -> str:
    return name_hint(name, known_names())


def name_hint(name: str, names: list[str]) -> str:
    """Return the known names that begin with `name`, else the nearest ones, as a sentence; "" without any."""
    matches = [candidate for candidate in names if candidate.startswith(name.lower())] if name else []
    if not matches:
        return nearest(name, names)
    more = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
    return f" It is the beginning of {', '.join(matches[:5])}{more}."


def _nearest_shipped(recipe: str) -> str:
    """Return the shipped models that can stand in for a recipe's model, as a sentence; "" without any.

    They are one of its data set, else of its subjects (birds, cars), else of its method, and the model for any
    photographs unless it is of the data set itself.
    """
    from zoo.data.dataset import LARGER_EDITIONS  # of images, which only a wrong name needs

    row, shipped = recipes()[recipe], [read_card(path.parent) for path in sorted(paths.SHIPPED.glob("*/card.json"))]

    def likeness(card: Card) -> tuple[bool, bool, bool]:
        subject = LARGER_EDITIONS.get(card.dataset, card.dataset)
        return card.dataset == row["dataset"], subject == row["dataset"], card.method == row["method"]

    cards = [card for card in shipped if card.name == PHOTOS]
    similar = max(shipped, key=likeness, default=None)
    if similar is not None and any(likeness(similar)):
        cards = [similar, *(cards if similar.dataset != row["dataset"] else [])]
    texts = [f"{card.name} ({card.method} on {card.dataset})" for card in cards]
    return f" The nearest shipped model: {' or '.join(texts)}." if texts else ""
