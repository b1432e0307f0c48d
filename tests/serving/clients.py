"""`AsyncClient` with methods that wait, and the key of the service that tests change."""

from __future__ import annotations

import asyncio
from typing import Any

from serving import AsyncClient

KEY = "write-key-of-the-clients"
"""Write key of the service `writable`."""


class Awaited:
    """`AsyncClient` with methods that wait for the result, so that each test is for both clients."""

    def __init__(self, *args: Any, **values: Any) -> None:
        self.args, self.values = args, values
        AsyncClient(*args, **values)  # raises the errors of wrong arguments

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **values: Any) -> Any:
            async with AsyncClient(*self.args, **self.values) as client:
                return await getattr(client, name)(*args, **values)

        return lambda *args, **values: asyncio.run(call(*args, **values))

    def close(self) -> None:
        pass
