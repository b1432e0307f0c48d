"""Zoo.load and Embedder.

What `zoo.load` returns: images in, unit vectors out, the same for every runtime.

`zoo.load`: from a name to a model that embeds.

`zoo.baseline`: a public backbone under a name of one's own, from Python. Torch is loaded last.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from zoo import paths
from zoo.data.folder import list_unlabelled
from zoo.data.images import ImageLike
from zoo.data.preprocessing import Preprocessing
from zoo.errors import (
    HubError,
    HubUnreachableError,
    ImageError,
    ModelFolderError,
    ModelNotFoundError,
    UsageError,
    ZooError,
    check_text,
    missing,
    nearest,
)
from zoo.hub import download
from zoo.models.baselines import repository_of
from zoo.models.card import Card, read_card
from zoo.models.folder import check_config, check_files, pickle_warning_in
from zoo.models.registry import exists, local_folder, looks_like_path, model_text, recipes
from zoo.paths import is_folder

if TYPE_CHECKING:
    from zoo.models.text_tower import TextTower


@dataclass(frozen=True)
class Embedder:
    """A loaded model. `run` maps pixels uint8 [n, crop, crop, channels] to unit rows float32 [n, dim]."""

    card: Card
    folder: Path
    runtime: str
    precision: str
    device: str
    run: Callable[[np.ndarray], np.ndarray]

    @property
    def dim(self) -> int:
        return self.card.dim

    @property
    def preprocessing(self) -> Preprocessing:
        return self.card.preprocessing

    def embed(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = 64, progress: bool = False
    ) -> np.ndarray:
        """Unit embeddings, float32 [n, dim], of paths, file bytes, PIL images or uint8 arrays [H, W(, C)].

        A single image gives one row; an array of four dimensions is a batch of images. Iterators are consumed batch
        by batch. Raises `ImageError` naming the first image that cannot be used.
        """
        return self._embed(_as_iterable(images), batch_size, progress, None)

    def embed_readable(
        self, images: Iterable[ImageLike], batch_size: int = 64, progress: bool = False
    ) -> tuple[np.ndarray, dict[int, ImageError]]:
        """As `embed`, of the images that can be read; and what is wrong with each of the others, by its place."""
        unreadable: dict[int, ImageError] = {}
        return self._embed(_as_iterable(images), batch_size, progress, unreadable), unreadable

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Unit embeddings, float32 [n, dim], of preprocessed pixels, uint8 [n, crop, crop, channels].

        Raises `ModelFolderError` where the network gives others than the card says.
        """
        if pixels.dtype != np.uint8 or pixels.shape[1:] != self.preprocessing.shape:
            raise UsageError(
                f"{self.card.name} takes uint8 pixels [n, {', '.join(map(str, self.preprocessing.shape))}], "
                f"not {pixels.dtype} {list(pixels.shape)}."
            )
        rows = self.run(pixels)
        if rows.shape != (len(pixels), self.dim):
            raise ModelFolderError(
                f"{self.card.name} gives {list(rows.shape)} for {len(pixels)} images, and its card says dim "
                f"{self.dim}: it is of another network. Get the model folder anew from where it came from."
            )
        return rows

    @cached_property
    def text_tower(self) -> TextTower:
        """Read on its first use. Raises `NoTextTowerError`, a `TextError`, where the model has none."""
        from zoo.models.text_tower import open_text_tower

        return open_text_tower(self.folder, self.card, self.device if self.runtime == "onnx" else None)

    def embed_text(self, texts: str | Iterable[str], batch_size: int = 64) -> np.ndarray:
        """Unit embeddings, float32 [n, dim], of texts, in the space of the images'; one text gives one row.

        What a text has beyond the tower's length (`card.text.length` tokens) is left out; `text_tower.tokens` says of
        which. Raises `NoTextTowerError` where the model has no text tower, and `TextError` naming the first text that
        is empty or no text.
        """
        from zoo.models.text_tower import embed_texts

        return embed_texts(self.text_tower, texts, batch_size, self.dim)

    def _embed(
        self, images: Iterable[ImageLike], batch_size: int, progress: bool, unreadable: dict[int, ImageError] | None
    ) -> np.ndarray:
        if batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, not {batch_size}.")
        rows = [self.embed_pixels(pixels) for pixels in self._batches(images, batch_size, progress, unreadable)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def _batches(
        self, images: Iterable[ImageLike], batch_size: int, progress: bool, unreadable: dict[int, ImageError] | None
    ) -> Iterable[np.ndarray]:
        from zoo.data.decode import decode_batches  # Pillow is read while a graph is opened (zoo.models.load)

        total = len(images) if isinstance(images, Sized) else None
        source = decode_batches(images, self.preprocessing, batch_size, unreadable=unreadable)
        if not progress:
            return source
        return _with_progress(source, total)


def _as_iterable(images: ImageLike | Iterable[ImageLike]) -> Iterable[ImageLike]:
    if isinstance(images, str | os.PathLike) and is_folder(images):
        raise UsageError(
            f"{os.fspath(images)!r} is a folder, and embed takes images: paths of image files, bytes, PIL images or "
            "uint8 arrays. All images of a folder are embedded by: from zoo.data.folder import list_images; "
            f"model.embed(list_images({os.fspath(images)!r}))"
        )
    from PIL import Image

    single = isinstance(images, str | bytes | bytearray | os.PathLike | Image.Image)
    if single or (isinstance(images, np.ndarray) and images.ndim < 4):
        return [cast("ImageLike", images)]
    if not isinstance(images, Iterable):
        raise UsageError(f"embed takes images or an iterable of images, not {type(images).__name__}.")
    return cast("Iterable[ImageLike]", images)


def _with_progress(source: Iterable[np.ndarray], total: int | None) -> Iterable[np.ndarray]:
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="image", desc="embed") as bar:
        for pixels in source:
            yield pixels
            bar.update(len(pixels))


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
    folder = find_model(name_or_path, revision)
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
        from zoo.models.torch_runtime import open_model
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
    from zoo.models.onnx_runtime import graph_file, open_graph

    name = graph_file(folder, card, precision)
    # The file's hash takes about as long as opening it, and neither waits for the other; nor does Pillow, which embeds
    # the first image. What is wrong with a file that is not the card's is that.
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_files, folder, card, [name])
        pool.submit(_read_pillow)
        try:
            return open_graph(folder / name, card, device, precision)
        finally:
            checked.result()


def find_model(name_or_path: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Return the folder of a model: a path, the local zoo, the shipped checkpoints, the Hub's cache or the Hub.

    It looks in this order. A public backbone (a short name of `zoo.models.baselines`, timm/ID, or another of timm's
    models on the Hub) gets its folder on its first use, for which torch and timm must be installed. With `revision`
    only the Hub is asked.

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
        return download.snapshot(download.repository_id(name), revision)
    except download.NoModelFolderError:
        if not _is_timm(download.repository_id(base), revision or at or None):
            raise
        return _baseline_folder(download.repository_id(base), revision or at or None)
    except (ModelNotFoundError, HubError) as error:
        # A bare name may be a typing error; one with an organisation was meant for the Hub.
        if "/" in name:
            looked = f"there is no folder {name}, and " if revision is None else ""
            raise type(error)(f"{looked}{error}{_nearest_model(name)}", code=error.code) from None
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
        f"{name} is a folder but no model folder: card.json is missing.{pickle_warning_in(paths.expand(name))} "
        "Give the folder that zoo train or zoo finetune has written, or a model's name (zoo list)."
    )


def _is_timm(repository: str, revision: str | None) -> bool:
    try:
        from zoo.models.baseline_folder import is_timm_repository
    except ModuleNotFoundError:
        return False
    return is_timm_repository(repository, revision)


def _baseline_folder(repository: str, revision: str | None) -> Path:
    try:
        from zoo.models.baseline_folder import make_baseline_folder
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "timm", "torchvision"):
            raise
        raise missing(error.name, "train") from None
    return make_baseline_folder(repository, revision)


def _not_at_hub(name: str, revision: str, error: ZooError) -> str:
    """The message for a bare name with a revision, for which nothing but the Hub was looked at."""
    asked = f"It could not be asked ({error.why})." if isinstance(error, HubUnreachableError) else f"There, {error}"
    folder = local_folder(name)
    here = _nearest_model(name) if folder is None else f" Without a revision {name!r} loads from {folder}."
    return f"no model {name!r} at revision {revision!r}: with a revision only the Hub is asked. {asked}{here}"


def _nearest_model(name: str) -> str:
    """Return the hint that names the known models nearest to a name."""
    from zoo.models.catalogue import known_names, name_hint  # loading a model does not need the list of all models

    return name_hint(name, known_names())


def _not_found(name: str, error: ZooError) -> str:
    from zoo.models.catalogue import architecture_hint

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


def baseline(
    name: str | os.PathLike[str],
    own: str,
    whiten: str | os.PathLike[str] | Sequence[ImageLike] | None = None,
    dim: int | None = None,
    size: int | None = None,
    joint: bool = False,
    limit: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    progress: bool = False,
) -> Embedder:
    """Save a public backbone, or a folder of one, in the local zoo as `own`, and load it from there.

    whiten: a folder, a table (`zoo.data.table`; of one with the column split the images to train on) or images
    (paths, bytes, PIL images, uint8 arrays) on whose pooled features PCA whitening is fitted; it becomes the model's
    head. Of a folder or table what cannot be read is left out, with a warning. dim: the dimensions that it keeps
    (default: all). size: pixels of the input (default: the backbone's own). joint: keep CLIP's
    projection into the space of its texts. limit: fit on so many of the images, drawn evenly.

    Raises what `zoo.load` does, `UsageError` for a name that is taken and for arguments that do not go together,
    `DatasetError` for a folder or table without images and `ImageError` for a given image that cannot be read.
    """
    images = whitening_images(whiten, limit, batch_size)
    folder = find_model(name)
    try:
        from zoo.models.baseline_folder import save_baseline
    except ModuleNotFoundError as error:
        raise missing(error.name or "torch", "train") from None
    unreadable: dict[int, ImageError] | None = {} if isinstance(whiten, str | os.PathLike) else None
    save_baseline(folder, own, images, dim, size, batch_size, progress, device, joint, unreadable)
    for reason in (unreadable or {}).values():
        warnings.warn(f"left out of whitening: {reason}", stacklevel=2)
    return load(own, device=device)


def whitening_images(
    whiten: str | os.PathLike[str] | Sequence[ImageLike] | None, limit: int | None, batch_size: int
) -> Sequence[ImageLike] | None:
    """The images to fit whitening on, at most `limit` of them, evenly drawn; None where it is not wanted."""
    if limit is not None and limit < 2:
        raise UsageError(f"--limit (limit) is 2 or more, not {limit}.")
    if batch_size < 1:
        raise UsageError(f"--batch-size (batch_size) is 1 or more, not {batch_size}.")
    images: Sequence[ImageLike] | None
    images = list_unlabelled(Path(whiten)) if isinstance(whiten, str | os.PathLike) else whiten
    if images is None or limit is None or limit >= len(images):
        return images
    return [images[i * len(images) // limit] for i in range(limit)]
