"""Image search: a gallery on disk, an HTTP service over it and a web page.

Needs the extra `serve` for the service; the gallery itself needs only FAISS. No module here loads torch.
`serving.Client` and `serving.AsyncClient` talk to a service and need neither of the two.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]

# BentoML reports usage to its makers unless told not to, and reads this when it starts to serve.
os.environ["BENTOML_DO_NOT_TRACK"] = "True"


def __getattr__(name: str) -> Any:
    """The clients, loaded when they are asked for: nothing else needs httpx."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from serving import client

    return getattr(client, name)
