"""The models of a service: each is loaded once, however many galleries it embedded."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from weakref import WeakValueDictionary

from serving.gallery import Gallery
from serving.gallery.gallery import model_at
from zoo.errors import ModelNotFoundError, VariantNotFoundError
from zoo.models.card import read_card
from zoo.models.load import Embedder, find_model, load
from zoo.models.onnx_runtime import graph_file

logger = logging.getLogger(__name__)


class Models:
    """Loaded models by their fingerprint; one that no searcher holds any more is let go. Safe to use from several
    threads.
    """

    def __init__(
        self, runtime: str = "onnx", precision: str = "fp32", device: str | None = None, or_fp32: bool = False
    ) -> None:
        """As `zoo.load` takes them. or_fp32: whether a model that has no variant of that precision is loaded in fp32:
        a gallery in use may be given such a model, and a slower answer is better than none.
        """
        self._runtime, self._precision, self._device, self._or_fp32 = runtime, precision, device, or_fp32
        self._lock = threading.Lock()
        self._loaded: WeakValueDictionary[str, Embedder] = WeakValueDictionary()

    @property
    def device(self) -> str:
        """What they run on, as `zoo.load` takes it for ONNX."""
        return self._device or "cpu"

    def of(self, gallery: Gallery, ref: str | None = None) -> Embedder:
        """The gallery's model; `ref`: its name or folder now, if it has moved."""
        try:
            return self.get(gallery.card.fingerprint, ref or gallery.model_ref)
        except ModelNotFoundError as error:
            if ref is not None:
                raise
            raise ModelNotFoundError(
                f"{error} It is the model of {gallery.path}; if it lies elsewhere now, name it: --model MODEL."
            ) from None

    def get(self, fingerprint: str, ref: str) -> Embedder:
        """The model of that fingerprint, where it is loaded; else what `ref` names."""
        with self._lock:
            found = self._loaded.get(fingerprint)
            if found is None:
                found = self._load(ref)
                self._loaded[found.card.fingerprint] = found
            return found

    def _load(self, ref: str) -> Embedder:
        try:
            return load(ref, self._runtime, self._precision, self._device)
        except VariantNotFoundError as error:
            if not self._or_fp32 or self._precision == "fp32":
                raise
            logger.warning("%s Until then it is served in fp32.", str(error))
            return load(ref, self._runtime, "fp32", self._device)


def check_variant(gallery: Path, model: str | None, precision: str) -> None:
    """Raise `VariantNotFoundError` where the model that a gallery has now lacks the ONNX variant.

    model: its name or folder now, if it has moved. Raises `UsageError` for a precision that there is not.
    """
    folder = find_model(model or model_at(gallery)[1])
    graph_file(folder, read_card(folder), precision)
