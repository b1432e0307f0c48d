"""Gallery folders: items and embeddings in SQLite, a FAISS index derived from them, and the card of the model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.gallery.gallery import VectorGallery
    from serving.gallery.types import UNCHANGED, AddResult, Hit, Item, NewItem, Stats, Thumbnail

__all__ = ["UNCHANGED", "AddResult", "Hit", "Item", "NewItem", "Stats", "Thumbnail", "VectorGallery"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: the client needs the types, and neither FAISS nor SQLite."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{'gallery' if name == 'VectorGallery' else 'types'}"), name)
