"""Image search: a gallery on disk, an HTTP service over it, its clients and a web page.

`serving.Client` and `serving.AsyncClient` talk to a service. No module here loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    """Load a client when it is used: nothing else needs httpx."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from serving import client

    return getattr(client, name)
