"""Loading: from a model's folder to an `Embedder` that runs it. Torch is imported last."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from zoo.console import Progress
from zoo.data.images import ImageLike
from zoo.data.preprocessing import Preprocessing
from zoo.errors import (
    ImageError,
    MissingDependencyError,
    ModelFolderError,
    UsageError,
    check_at_least,
    check_text,
    missing,
    unknown,
)
from zoo.models.card import ORDERED_HEADS, Card, read_card, read_head
from zoo.models.folder import check_config, check_files
from zoo.models.names import find_model
from zoo.models.onnx_runtime import GRAPH_FILES, graph_file, has_nvidia_driver, open_graph
from zoo.models.registry import ModelLike
from zoo.paths import is_folder

if TYPE_CHECKING:
    from zoo.models.network import Network
    from zoo.models.text_tower import TextTower

AUTO = "auto"
RUNTIMES = (AUTO, "torch", "onnx")


@dataclass(frozen=True, repr=False)
class Embedder:
    """Loaded model. `run` maps pixels uint8 [n, crop, crop, channels] to unit rows float32 [n, dim]."""

    card: Card
    folder: Path
    runtime: str
    precision: str
    device: str
    run: Callable[[np.ndarray], np.ndarray]

    def __repr__(self) -> str:
        how = f"{self.runtime} in {self.precision} on {self.device}"
        return f"Embedder({self.card.name!r}: {self.dim} numbers, {how})"

    @property
    def dim(self) -> int:
        return self.card.dim

    @property
    def preprocessing(self) -> Preprocessing:
        return self.card.preprocessing

    @property
    def is_ordered(self) -> bool:
        """True if the numbers of the embedding are in the order of their importance."""
        from zoo.models.baselines import WHITENING_HEAD

        heads = self.card.heads
        return len(heads) == 1 and (heads[0].name == WHITENING_HEAD or read_head(self.folder) in ORDERED_HEADS)

    def shortened(self, dim: int) -> Embedder:
        """Return the model with the first `dim` numbers of its embedding alone, scaled to unit length.

        The numbers of whitening and of PCA and LDA heads are in the order of their importance, so that the first ones
        are an embedding too: one that takes less memory and finds a little less.

        Raises:
            UsageError: `invalid-value` for a dimension outside 1 to the model's, `not-available` for another model.
        """
        if dim == self.dim:
            return self
        if not 1 <= dim <= self.dim:
            raise UsageError(f"{self.card.name} has 1 to {self.dim} numbers, not {dim}.", code="invalid-value")
        if not self.is_ordered:
            raise UsageError(
                f"the numbers of {self.card.name} are in no order of importance, so that {dim} of them are not an "
                "embedding; those of whitened models and of PCA and LDA heads are.",
                code="not-available",
            )
        return replace(self, card=self.card.shortened(dim), run=lambda pixels: prefix(self.run(pixels), dim))

    def matching(self, card: Card) -> Embedder:
        """Return the model in the dimension of a card if that is the card of this model, shortened; else the model."""
        is_prefix = (
            card.dim < self.dim
            and len(self.card.heads) == 1
            and self.card.shortened(card.dim).fingerprint == card.fingerprint
        )
        return self.shortened(card.dim) if is_prefix else self

    def embed(
        self, images: ImageLike | Iterable[ImageLike], batch_size: int = 64, progress: bool = False
    ) -> np.ndarray:
        """Embed images.

        Args:
            images: Paths, file bytes, PIL images, uint8 arrays [H, W] or [H, W, C], or an iterable of these; an array
                of four dimensions is a batch. Iterators are consumed batch by batch.
            batch_size: Images per batch.
            progress: Show a progress bar.

        Returns:
            Unit rows, float32 [n, dim]; one row for a single image.

        Raises:
            ImageError: If an image cannot be used; the message names the first one.
            UsageError: `unreadable-image` or `invalid-value`.
        """
        return self._embed(_as_iterable(images), batch_size, progress, None)

    def embed_readable(
        self, images: Iterable[ImageLike], batch_size: int = 64, progress: bool = False
    ) -> tuple[np.ndarray, dict[int, ImageError]]:
        """Embed the images that can be read.

        Args:
            images: As in `embed`, without arrays of four dimensions.
            batch_size: Images per batch.
            progress: Show a progress bar.

        Returns:
            Unit rows of the images that were read, float32 [n, dim], and index -> error of the others.

        Raises:
            UsageError: `invalid-value` for a batch size below 1.
        """
        unreadable: dict[int, ImageError] = {}
        return self._embed(_as_iterable(images), batch_size, progress, unreadable), unreadable

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embed preprocessed pixels uint8 [n, crop, crop, channels].

        Returns:
            Unit rows, float32 [n, dim].

        Raises:
            UsageError: `unreadable-image` for another shape or type.
            ModelFolderError: `invalid-value` if the network's dimension is not the card's.
        """
        if pixels.dtype != np.uint8 or pixels.shape[1:] != self.preprocessing.shape:
            raise UsageError(
                f"{self.card.name} takes uint8 pixels [n, {', '.join(map(str, self.preprocessing.shape))}], "
                f"not {pixels.dtype} {list(pixels.shape)}.",
                code="unreadable-image",
            )
        rows = self.run(pixels)
        if rows.shape != (len(pixels), self.dim):
            raise ModelFolderError(
                f"{self.card.name} gives {list(rows.shape)} for {len(pixels)} images, but its card says dim "
                f"{self.dim}: it is the card of another network. Download the model folder again.",
                code="invalid-value",
            )
        return rows

    @cached_property
    def module(self) -> Network:
        """Return the trunk and the heads as one `torch.nn.Module`, which can be trained.

        It maps normalised images, float32 [n, channels, crop, crop], to unit rows [n, dim], and is in evaluation mode
        until `train()` is called. With the runtime "torch" it is the network that `embed` runs, on `device`; with
        "onnx" it is read from the model's folder, and `embed` does not see what it learns.

        Raises:
            MissingDependencyError: If torch is not installed.
            ModelFolderError: `not-available` for an ONNX graph without a network for torch.
        """
        try:
            from zoo.models.network import load_network, shortened_network
            from zoo.models.torch_runtime import TorchForward
        except ModuleNotFoundError as error:
            raise _missing_torch(error, self.folder, self.precision) from None
        if isinstance(self.run, TorchForward):
            return self.run.network
        card = read_card(self.folder)
        check_files(self.folder, card)
        return shortened_network(load_network(card, self.folder), self.dim)

    @cached_property
    def text_tower(self) -> TextTower:
        """Return the text tower, opened on its first use. Raises `NoTextTowerError` for a model without one."""
        from zoo.models.text_tower import open_text_tower

        return open_text_tower(self.folder, self.card, self.device if self.runtime == "onnx" else None)

    def embed_text(self, texts: str | Iterable[str], batch_size: int = 64) -> np.ndarray:
        """Embed texts in the space of the images.

        Texts are cut to the tower's length (`card.text.length` tokens); `text_tower.tokens` tells which ones.

        Args:
            texts: One text, or several.
            batch_size: Texts per batch.

        Returns:
            Unit rows, float32 [n, dim]; one row for a single text.

        Raises:
            NoTextTowerError: If the model has no text tower.
            TextError: If a text is empty or not text; the message has the number of the first one.
        """
        from zoo.models.text_tower import embed_texts

        return embed_texts(self.text_tower, texts, batch_size, self.dim)

    def _embed(
        self, images: Iterable[ImageLike], batch_size: int, progress: bool, unreadable: dict[int, ImageError] | None
    ) -> np.ndarray:
        check_at_least("batch_size", batch_size, 1)
        rows = [self.embed_pixels(pixels) for pixels in self._batches(images, batch_size, progress, unreadable)]
        return np.concatenate(rows) if rows else np.empty((0, self.dim), np.float32)

    def _batches(
        self, images: Iterable[ImageLike], batch_size: int, progress: bool, unreadable: dict[int, ImageError] | None
    ) -> Iterable[np.ndarray]:
        from zoo.data.decode import decode_batches  # Pillow is imported while a graph is opened

        total = len(images) if isinstance(images, Sized) else None
        source = decode_batches(images, self.preprocessing, batch_size, unreadable=unreadable)
        if not progress:
            return source
        return _with_progress(source, total)


def _as_iterable(images: ImageLike | Iterable[ImageLike]) -> Iterable[ImageLike]:
    if isinstance(images, str | os.PathLike) and is_folder(images):
        raise UsageError(
            f"{os.fspath(images)!r} is a folder, but embed takes images: paths of image files, bytes, PIL images or "
            "uint8 arrays. To embed all images of a folder: from zoo.data.folder import list_images; "
            f"model.embed(list_images({os.fspath(images)!r}))",
            code="unreadable-image",
        )
    from PIL import Image

    single = isinstance(images, str | bytes | bytearray | os.PathLike | Image.Image)
    if single or (isinstance(images, np.ndarray) and images.ndim < 4):
        return [cast("ImageLike", images)]
    if not isinstance(images, Iterable):
        raise UsageError(
            f"embed takes images or an iterable of images, not {type(images).__name__}.", code="unreadable-image"
        )
    return cast("Iterable[ImageLike]", images)


def prefix(rows: np.ndarray, dim: int) -> np.ndarray:
    """Return the first `dim` numbers of rows [n, d], scaled to unit length; unit rows of `dim` numbers stay."""
    if rows.shape[1] == dim:
        return rows
    short = rows[:, :dim]
    result: np.ndarray = short / np.maximum(np.linalg.norm(short, axis=1, keepdims=True), 1e-12)
    return result


def _with_progress(source: Iterable[np.ndarray], total: int | None) -> Iterable[np.ndarray]:
    with Progress("embed", total) as bar:
        for pixels in source:
            yield pixels
            bar.update(len(pixels))


def load(
    model: ModelLike,
    runtime: str = AUTO,
    precision: str = "fp32",
    device: str | None = None,
    revision: str | None = None,
    images: int | None = None,
    dim: int | None = None,
) -> Embedder:
    """Load a model by name or path.

    A weight file is used only if it is inside the folder and its SHA-256 is the one in the card. Pickles are never
    loaded.

    Args:
        model: A name of `zoo.list_models`, a folder, org/name[@revision] or timm/ID on the Hub; or what
            `zoo.train`, `zoo.finetune` and `zoo.distill` return.
        runtime: "auto": torch on a GPU, elsewhere ONNX Runtime if the folder or the cache has a graph or one is worth
            making, else torch; or "torch", or "onnx", which needs no torch.
        precision: torch: fp32, bf16 or fp16; onnx: fp32, fp16 or int8, as exported.
        device: torch: cpu, cuda or cuda:N, by default the best that torch sees; onnx: cpu (default), cuda, cuda:N or
            tensorrt.
        revision: A branch, tag or commit of the Hub's repository. Without one the Hub's cache is used if it has the
            model; with a branch or tag the Hub is asked for its current commit.
        images: With "auto", the number of images that are to be embedded. If torch would take long for them, a graph
            is made for the cache, which takes some seconds.
        dim: Numbers of the embedding, the most important ones, if fewer than the model's (`Embedder.shortened`).

    Raises:
        ModelNotFoundError: If there is no such model; the message says where it looked and what to run.
        ModelFolderError: If the folder is incomplete, altered or contradicts its card.
        HubError: If the Hub does not provide the model.
        UsageError: `unknown-name`, `device-unavailable` and others.
        MissingDependencyError: If the runtime is not installed.
    """
    for name, value in (("runtime", runtime), ("precision", precision)):
        check_text(name, value)
    if device is not None:
        check_text("device", device)
    if runtime not in RUNTIMES:
        raise unknown("runtime", runtime, RUNTIMES)
    embedder = _load(model, runtime, precision, device, revision, images)
    return embedder if dim is None else embedder.shortened(dim)


def _load(
    model: ModelLike,
    runtime: str,
    precision: str,
    device: str | None,
    revision: str | None,
    images: int | None,
) -> Embedder:
    """Load a model in its own dimension; arguments and errors are those of `load`."""
    folder = find_model(model, revision)
    card = read_card(folder)
    check_config(folder, card)
    if runtime == AUTO:
        runtime = _choose_runtime(folder, card, precision, device)
        if runtime == AUTO:
            from zoo.models.trunk_graph import embed_with, open_trunk_graph

            if (trunk := open_trunk_graph(folder, card, images)) is not None:
                return Embedder(card, folder, "onnx", precision, "cpu", embed_with(trunk, folder, card))
            runtime = "torch"
    open_runtime = _open_torch if runtime == "torch" else _open_onnx
    run, opened_device = open_runtime(folder, card, precision, device)
    return Embedder(card, folder, runtime, precision, opened_device, run)


def _choose_runtime(folder: Path, card: Card, precision: str, device: str | None) -> str:
    """Return "torch" or "onnx"; "auto" for fp32 on the CPU without a graph in the folder, where the cache decides."""
    if precision == "bf16" or uses_gpu(device):
        return "torch"
    graph = GRAPH_FILES.get(precision, "")
    if device == "tensorrt" or precision == "int8" or (graph in card.files and (folder / graph).is_file()):
        return "onnx" if importlib.util.find_spec("onnxruntime") else "torch"
    return AUTO if precision == "fp32" else "torch"


def uses_gpu(device: str | None) -> bool:
    """Return whether torch would run on a GPU; without a driver and a GPU's name, torch is not loaded to find out."""
    if importlib.util.find_spec("torch") is None:
        return False
    if device is not None or not has_nvidia_driver():
        return (device or "cpu").startswith("cuda")
    import torch

    return torch.cuda.is_available()


def _open_torch(folder: Path, card: Card, precision: str, device: str | None):  # type: ignore[no-untyped-def]
    try:
        from zoo.models.torch_runtime import open_model
    except ModuleNotFoundError as error:
        raise _missing_torch(error, folder, precision) from None
    check_files(folder, card)
    return open_model(folder, card, precision, device)


def _missing_torch(error: ModuleNotFoundError, folder: Path, precision: str) -> Exception:
    """Return what to install if torch or a library beside it is missing; the error itself for another module."""
    if error.name not in ("torch", "timm", "torchvision"):
        return error
    return MissingDependencyError(f"{missing('torch', 'train')}.{_graph_hint(folder, precision)}")


def _graph_hint(folder: Path, precision: str) -> str:
    """Return how to load a graph of the model, if possible of this precision; nothing if the folder has none."""
    graphs = [name for name, file in GRAPH_FILES.items() if (folder / file).is_file()]
    if not graphs:
        return ""
    if precision in graphs:
        return " Or use ONNX Runtime, which does not need torch: runtime='onnx' (--runtime onnx)."
    other = f"runtime='onnx', precision='{graphs[0]}' (--runtime onnx --precision {graphs[0]})"
    return f" Or use ONNX Runtime, which does not need torch, and the {graphs[0]} graph: {other}."


def _import_pillow() -> None:
    """Import Pillow and its usual formats, which would otherwise delay the first image."""
    import_module("zoo.data.images")
    import_module("PIL.Image").preinit()


def _open_onnx(folder: Path, card: Card, precision: str, device: str | None):  # type: ignore[no-untyped-def]
    name = graph_file(folder, card, precision)
    # Hashing the file takes about as long as opening it, so both run at once, as does the import of Pillow. The error
    # of the hash takes precedence: `finally` raises it instead of the error of opening a damaged file.
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_files, folder, card, [name])
        pool.submit(_import_pillow)
        try:
            return open_graph(folder / name, card, device, precision)
        finally:
            checked.result()
