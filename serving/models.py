"""The models of a service: each is loaded once, however many galleries it embedded."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from serving.gallery import Gallery
from zoo.embedder import Embedder
from zoo.loading import load


class Models:
    """Loaded models by their fingerprint; one that no searcher holds any more is let go. Safe to use from several
    threads.
    """

    def __init__(self, runtime: str = "onnx", device: str | None = None) -> None:
        """As `zoo.load` takes them."""
        self._runtime, self._device = runtime, device
        self._lock = threading.Lock()
        self._loaded: WeakValueDictionary[str, Embedder] = WeakValueDictionary()

    def of(self, gallery: Gallery, ref: str | None = None) -> Embedder:
        """The gallery's model; `ref`: its name or folder now, if it has moved."""
        return self.get(gallery.card.fingerprint, ref or gallery.model_ref)

    def get(self, fingerprint: str, ref: str) -> Embedder:
        """The model of that fingerprint, where it is loaded; else what `ref` names."""
        with self._lock:
            found = self._loaded.get(fingerprint)
            if found is None:
                found = load(ref, runtime=self._runtime, device=self._device)
                self._loaded[found.card.fingerprint] = found
            return found
