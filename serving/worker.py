"""One process that answers: uvicorn over the BentoML service's application, at a socket that is bound already.

uvicorn runs it as BentoML's own worker does, without BentoML's supervisor: no control socket, and a gallery that cannot
be served ends the process instead of being tried again for ever. `python -m serving.worker FD PULSE NUMBER COUNTS` is a
worker of serving.supervisor, its NUMBER from 1; PULSE is the socket at which it is asked whether it still answers,
COUNTS the file by which workers share connections (serving.turns).
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from serving.turns import Turns
from zoo.errors import GalleryError, ZooError

QUEUE = 2048
"""Connections that the kernel keeps until they are accepted."""
SWITCH = 0.0005
"""Seconds for which a thread keeps the interpreter from others: Python's ten times as many let decoders wait for the
event loop wherever there is much to refuse."""
MOST_FILES = 65_536
"""Open at once; each connection is one. Shells allow 1,024, which idle connections would soon have taken."""
SUPERFLUOUS = frozenset({"TimeoutMiddleware", "OpenTelemetryMiddleware"})


@dataclass(frozen=True)
class One:
    """What a process has that is one of several. pulse: a listening socket of its own."""

    pulse: socket.socket
    turns: Turns


def answer(listening: socket.socket, ready: Callable[[str], None], one: One | None = None) -> None:
    """Answer at the socket until SIGINT or SIGTERM; `ready` is told what is served once queries are answered.

    one: where other processes answer at it, too. Raises `GalleryError` where the gallery cannot be served.
    """
    import uvicorn

    from serving import service
    from serving.answering import Server

    sys.setswitchinterval(SWITCH)
    _allow_files()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("serving").setLevel(logging.INFO)  # which says that another model was taken over
    service.COLLECTIONS.open()
    config = uvicorn.Config(
        lean(service.ImageSearch.to_asgi()),  # type: ignore[attr-defined]  # the decorator made it a Service
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        backlog=QUEUE,
        timeout_graceful_shutdown=math.ceil(service.CONFIGURATION.drain_seconds),
    )
    turns = one.turns if one else None
    server = Server(config, listening, lambda: ready(str(service.COLLECTIONS)), turns)
    server.run(sockets=[one.pulse if one else listening])
    if not server.started:
        raise GalleryError("the service could not start; the log above says why.")


def _allow_files() -> None:
    """As many as the system lets this process have without being asked, where that is more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < MOST_FILES:
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
        listening, pulse = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
        one = One(pulse, Turns(Path(sys.argv[4]), int(sys.argv[3])))
        answer(listening, lambda what: _tell({"ready": what}), one)
    except (ZooError, OSError) as error:
        _on_signals(signal.SIG_IGN)
        # The machine's state, as a disk that is full: said as `zoo` says it, without a traceback.
        known = error if isinstance(error, ZooError) else GalleryError(str(error))
        _tell({"error": str(known), "kind": type(known).__name__})
        raise SystemExit(known.exit_code) from None


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
