"""One process that answers: uvicorn over the BentoML service's application, at a socket that is bound already.

uvicorn runs it as BentoML's own worker does, without BentoML's supervisor: no control socket, and a gallery that cannot
be served ends the process instead of being tried again for ever. `python -m serving.worker FD PULSE` is a worker of
serving.supervisor; PULSE is the socket at which that one asks whether it still answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette

from zoo.errors import GalleryError, ZooError

QUEUE = 2048
"""Connections that the kernel keeps until they are accepted."""
SWITCH = 0.0005
"""Seconds for which a thread keeps the interpreter from others: Python's ten times as many let decoders wait for the
event loop wherever there is much to refuse."""
SUPERFLUOUS = frozenset({"TimeoutMiddleware", "OpenTelemetryMiddleware"})
LAST_CALL = 0.2
"""Seconds in which those are still accepted once the process is told to stop: with its socket they would be reset."""


def answer(listening: socket.socket, ready: Callable[[str], None], pulse: socket.socket | None = None) -> None:
    """Answer at the sockets until SIGINT or SIGTERM; `ready` is told what is served once queries are answered.

    Raises `GalleryError` where the gallery cannot be served.
    """
    import uvicorn

    from serving import service

    sys.setswitchinterval(SWITCH)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("serving").setLevel(logging.INFO)  # which says that another model was taken over
    service.COLLECTIONS.open()
    config = uvicorn.Config(
        lean(service.ImageSearch.to_asgi()),  # type: ignore[attr-defined]  # the decorator made it a Service
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        http="h11",  # httptools takes a head of any length
        # One connection at a time, so that of several workers the next goes to the one that is free.
        backlog=1,
        timeout_graceful_shutdown=math.ceil(service.CONFIGURATION.drain_seconds),
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                listening.listen(QUEUE)  # uvicorn has just made the kernel's queue as short as its own
                ready(str(service.COLLECTIONS))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await asyncio.sleep(LAST_CALL)
            await super().shutdown(sockets)

    server = Server(config)
    server.run(sockets=[listening, *([pulse] if pulse else [])])
    if not server.started:
        raise GalleryError("the service could not start; the log above says why.")


def lean(app: Starlette) -> Starlette:
    """BentoML's application without two of its layers.

    Its timeout sets an alarm for each request that it never takes back, which keeps the request in memory for that
    minute; ours is `serving.limits.AnswerDeadline`. Its OpenTelemetry writes spans that nobody collects.
    """
    layers = app.user_middleware
    app.user_middleware = [layer for layer in layers if getattr(layer.cls, "__name__", "") not in SUPERFLUOUS]
    return app


def main() -> None:
    """A line of JSON on stdout: what is served, or why nothing can be. It ends when its supervisor does."""
    _on_signals(leave)
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    try:
        listening, pulse = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
        answer(listening, lambda what: _tell({"ready": what}), pulse)
    except ZooError as error:
        _on_signals(signal.SIG_IGN)
        _tell({"error": str(error), "kind": type(error).__name__})
        raise SystemExit(error.exit_code) from None


def leave(number: int, frame: Any) -> Any:
    """uvicorn raises the signal again once it has shut down; either way the process ends well.

    One more, while Python ends, would show as an error of Python's own.
    """
    _on_signals(signal.SIG_IGN)
    raise SystemExit(0)


def _on_signals(do: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, do)


def _tell(what: dict[str, str]) -> None:
    print(json.dumps(what), flush=True)


def _end_with_supervisor() -> None:
    """Standard input is a pipe from the supervisor, which ends when it does, however it does."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
