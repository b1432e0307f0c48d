"""A Hub on loopback: just what huggingface_hub asks for to fetch single files of repositories."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve `files` ("org/name/file" to content) as repositories; the address, and the paths asked for as they come."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            asked.append(self.path)
            repository, _, rest = self.path.strip("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            data = files.get(f"{repository}/{file}")
            if not any(name.startswith(f"{repository}/") for name in files):
                return self.refuse("RepoNotFound")
            if revision not in ("main", COMMIT):
                return self.refuse("RevisionNotFound")
            if data is None:
                return self.refuse("EntryNotFound")
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)
            return None

        def refuse(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
