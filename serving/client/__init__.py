"""A client of the service, in both ways of Python: `Client` waits, `AsyncClient` is awaited. Needs httpx alone."""

from serving.client.answers import (
    Added,
    Answer,
    Collection,
    Differing,
    Evaluation,
    Item,
    Items,
    Mark,
    MarkedImage,
    Marks,
    Match,
    MetadataValue,
    Model,
    Point,
    Refused,
    ServiceStats,
    Thumbnail,
)
from serving.client.asynchronous import AsyncClient
from serving.client.blocking import Client

__all__ = [
    "Added",
    "Answer",
    "AsyncClient",
    "Client",
    "Collection",
    "Differing",
    "Evaluation",
    "Item",
    "Items",
    "Mark",
    "MarkedImage",
    "Marks",
    "Match",
    "MetadataValue",
    "Model",
    "Point",
    "Refused",
    "ServiceStats",
    "Thumbnail",
]
