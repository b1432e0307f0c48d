"""A gallery folder: SQLite as the truth, a FAISS index derived from it, and the card of the model that made it."""

from serving.gallery.gallery import Gallery
from serving.gallery.hits import Hit
from serving.gallery.items import AS_IT_IS, Added, Item, NewItem, Stats
from serving.gallery.thumbnails import Thumbnail

__all__ = ["AS_IT_IS", "Added", "Gallery", "Hit", "Item", "NewItem", "Stats", "Thumbnail"]
