"""Registry: from a model's name to its folder on this machine, and back, without network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from zoo import paths
from zoo.errors import ModelNotFoundError, UsageError
from zoo.hub import download
from zoo.hub.download import cached_model_name, cached_models, pinned_name
from zoo.models.baselines import baselines_root, folder_by_name, repository_of
from zoo.models.card import MODEL_NAME
from zoo.models.pretrained.packages import installed_package


class HasFolder(Protocol):
    """A loaded model, or the result of a training, a finetune, a distillation or an export."""

    @property
    def folder(self) -> Path:
        """The model's folder."""


ModelLike = str | os.PathLike[str] | HasFolder
"""What stands for a model in a call: its name, the path of its folder, or an object that knows the folder."""


@dataclass(frozen=True)
class ModelName:
    """Text that stands for a model, and the revision that the caller gives beside it."""

    text: str
    revision: str | None = None

    @property
    def base(self) -> str:
        """Return the text without the revision in it."""
        return self.text.partition("@")[0]

    @property
    def commit(self) -> str | None:
        """Return the branch, tag or commit that the caller or the text gives."""
        return self.revision or self.text.partition("@")[2] or None

    @property
    def path(self) -> Path:
        return paths.expand(self.text)

    @property
    def repository(self) -> str:
        """Return the repository on the Hub, org/name."""
        return download.repository_id(self.base)


@dataclass(frozen=True)
class Kind:
    """Kind of thing that a model's name may be.

    Attributes:
        matches: Function that tells whether a name is of this kind.
        folder: Function from such a name to the model folder, which it makes or fetches on the first use.
    """

    matches: Callable[[ModelName], bool]
    folder: Callable[[ModelName], Path]


def _folder_at(place: Callable[[ModelName], Path]) -> Kind:
    """Return the kind of names that have a model folder at a place of this machine."""
    return Kind(lambda name: name.revision is None and exists(place(name) / "card.json"), place)


def _folder_named(place: Callable[[str], Path]) -> Kind:
    """Return the kind of names, but not paths, that have a model folder at a place of this machine."""
    kind = _folder_at(lambda name: place(name.text))
    return Kind(lambda name: not looks_like_path(name.text) and kind.matches(name), kind.folder)


_USED_BEFORE = _folder_named(folder_by_name)

HERE = (
    _folder_at(lambda name: name.path),
    _folder_named(lambda text: paths.local_models() / text.removeprefix("hf-hub:")),
    _folder_named(lambda text: paths.SHIPPED / text),
    # A package, public backbone or timm model that was used before; a revision of it is another folder.
    Kind(lambda name: "@" not in name.text and _USED_BEFORE.matches(name), _USED_BEFORE.folder),
)
"""Kinds of names that need neither network nor torch, in the order in which they are tried."""


def cached_folder(text: str) -> Path | None:
    """Return the folder that `find_model` takes without asking the Hub; None if this machine has none."""
    if (folder := local_folder(text)) is not None:
        return folder
    name = ModelName(text)
    if looks_like_path(text) or repository_of(name.base) is not None or installed_package(text) is not None:
        return None
    try:
        return download.cached_snapshot(name.repository, name.commit)
    except ModelNotFoundError:  # no repository can have this name
        return None


def local_folder(text: str) -> Path | None:
    """Return a model's folder outside the Hub's cache; None without one."""
    name = ModelName(text)
    return next((kind.folder(name) for kind in HERE if kind.matches(name)), None)


def model_folders() -> Iterator[Path]:
    """Iterate over the model folders on this machine, in the reverse of the order in which `find_model` looks."""
    yield from cached_models()
    for root in (baselines_root(), paths.SHIPPED, paths.local_models()):
        # org/name: made of a model of the Hub, for example by `zoo export`.
        for card in sorted([*root.glob("*/card.json"), *root.glob("*/*/card.json")]):
            if not any(part.startswith(".") for part in card.relative_to(root).parts):  # left by a killed writer
                yield card.parent


def folder_name(folder: Path) -> str | None:
    """Return the name that loads a model folder of this machine; None if only its path does."""
    for root in (paths.SHIPPED, paths.local_models(), baselines_root()):
        if folder.is_relative_to(root):
            return folder.relative_to(root).as_posix()
    return cached_model_name(folder)


def reference(folder: Path) -> str:
    """Return the name that finds a model folder, with the commit for the Hub's cache; else its full path.

    A name is preferred because a path discloses how a person arranges files and means nothing on another machine.
    """
    return next((name for name in _candidate_names(folder) if _finds(name, folder)), str(folder.resolve()))


def _candidate_names(folder: Path) -> Iterator[str]:
    if folder.parent in (paths.local_models(), paths.SHIPPED, baselines_root()):
        yield folder.name
    if (name := pinned_name(folder)) is not None:
        yield name


def _finds(name: str, folder: Path) -> bool:
    """Return whether the name finds this folder, and not another one of the same name that takes precedence."""
    match = cached_folder(name)
    return match is not None and match.resolve() == folder.resolve()


def looks_like_path(name: str) -> bool:
    """Return whether a text is a path rather than a model's name or a repository of the Hub."""
    return name.startswith((".", "/", "~")) or (os.sep in name and exists(Path(name)))


def model_reference(model: ModelLike) -> str:
    """Return the text by which a gallery remembers its model: for a folder its absolute path, else the name."""
    if isinstance(folder := getattr(model, "folder", None), Path):
        return reference(folder)
    text = model_text(model)
    folder = paths.expand(text)
    return str(folder.resolve()) if (folder / "card.json").is_file() else text


def model_text(name: ModelLike) -> str:
    """Return a model's name or path as text. Raises `UsageError` (`invalid-value`) for other types."""
    if isinstance(folder := getattr(name, "folder", None), Path):
        return str(folder)
    if isinstance(name, str | os.PathLike) and isinstance(text := os.fspath(name), str):
        return text
    raise UsageError(
        f"a model's name is text, not {type(name).__name__}: a name of zoo list, the path of a model folder, "
        "org/name[@revision] or timm/ID on the Hub.",
        code="invalid-value",
    )


def exists(path: Path) -> bool:
    """Return whether something is at a path; False if the path cannot be looked up."""
    try:
        return path.exists()
    except OSError:  # a name longer than the file system allows, a folder without permission
        return False


def check_new_name(name: str, replace: bool = False, resume: bool = False) -> str:
    """Return the name of a new model in the local zoo.

    Args:
        name: The name.
        replace: A model of that name may be replaced.
        resume: A training of that name may be continued, if it is not finished.

    Raises:
        UsageError: `invalid-value`, or `already-exists`.
    """
    if not MODEL_NAME.fullmatch(name):
        raise UsageError(
            f"the name {name!r} may hold lower-case letters, digits, '.', '_' and '-' only; give --as NAME (name= in "
            "Python).",
            code="invalid-value",
        )
    folder = paths.local_models() / name
    if not replace and exists(folder / "card.json" if resume else folder):
        raise UsageError(
            f"the local zoo ({folder.parent}) has a model {name} already. Give the new one another name (--as, in "
            "Python name=), or replace that one (--replace, replace=True) where that is offered.",
            code="already-exists",
        )
    return name
