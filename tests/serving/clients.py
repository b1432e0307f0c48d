"""An asynchronous client that can be called like the other one."""

from __future__ import annotations

import asyncio
from typing import Any

from serving import AsyncClient

KEY = "write-key-of-the-clients"
"""Of the service `writable`."""


class Awaited:
    """An `AsyncClient` whose methods are awaited at once, so that one test is for both."""

    def __init__(self, *args: Any, **values: Any) -> None:
        self.args, self.values = args, values
        AsyncClient(*args, **values)  # raises what it has to

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **values: Any) -> Any:
            async with AsyncClient(*self.args, **self.values) as client:
                return await getattr(client, name)(*args, **values)

        return lambda *args, **values: asyncio.run(call(*args, **values))

    def close(self) -> None:
        pass
