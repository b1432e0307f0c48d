"""Gallery folders: items and embeddings in SQLite, a FAISS index derived from them, and the card of the model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.gallery.gallery import Gallery
    from serving.gallery.types import UNCHANGED, AddResult, Hit, Item, NewItem, Stats, Thumbnail

__all__ = ["UNCHANGED", "AddResult", "Gallery", "Hit", "Item", "NewItem", "Stats", "Thumbnail"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: the client needs the types, and neither FAISS nor SQLite."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("serving.gallery.gallery" if name == "Gallery" else "serving.gallery.types"), name)
