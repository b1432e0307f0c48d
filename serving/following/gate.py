"""Where queries wait until all is here that the primary had when they came, or it is clear that it cannot be had."""

from __future__ import annotations

import asyncio
import logging
import math

import anyio
from anyio import to_thread

from serving.following.follower import Follower

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds for which a query waits at most; it is answered from what is here then."""


class Gate:
    """Those who wait at one moment share one look; one that had begun before a query came says nothing to it."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._look: asyncio.Future[None] | None = None
        self._began = -math.inf
        self._one: anyio.CapacityLimiter | None = None

    async def passed(self) -> float | None:
        """None where all is here; else for how many seconds it was not, the waiting for it among them."""
        came = asyncio.get_running_loop().time()
        if self._follower.is_fresh and await self._up_to_date(came + PATIENCE):
            return None
        return max(self._follower.behind() or 0.0, asyncio.get_running_loop().time() - came)

    async def _up_to_date(self, end: float) -> bool:
        before = self._look
        if before is not None and not before.done():
            late = asyncio.get_running_loop().time() - self._began > PATIENCE
            if late or not await _ended(before, end):
                return False
        if self._look is before:
            self._began = asyncio.get_running_loop().time()
            self._look = asyncio.ensure_future(self._run())
        assert self._look is not None
        return await _ended(self._look, end) and self._follower.is_fresh

    async def _run(self) -> None:
        # A thread of its own, as those of requests may all be taken by ones that wait for this.
        self._one = self._one or anyio.CapacityLimiter(1)
        try:
            await to_thread.run_sync(self._follower.look, limiter=self._one)
        except Exception:  # the follower is not fresh then
            logger.exception("the look before a query failed")


async def _ended(look: asyncio.Future[None], end: float) -> bool:
    done, _ = await asyncio.wait({look}, timeout=max(0.0, end - asyncio.get_running_loop().time()))
    return bool(done)
