"""A Hub on loopback: the routes with which huggingface_hub reads and writes repositories, with faults on request."""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SO_LINGER, SOL_SOCKET
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.zoo.hub_state import Fault, Hub, Repository, Request, git_sha1, is_lfs, sha256

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Server(ThreadingHTTPServer):
    request_queue_size = 64  # otherwise concurrent connections are refused and repeated a second later


@contextmanager
def running() -> Iterator[Hub]:
    """Run an empty Hub that listens at its `url`."""
    hub = Hub()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve `files` ("org/name/file" to content) as repositories; yield the address and the growing list of paths."""
    with running() as hub:
        for path, data in files.items():
            name, file = re.fullmatch(r"([^/]+/[^/]+)/(.+)", path).groups()  # type: ignore[union-attr]
            repository = hub.repositories.setdefault(name, Repository({"main": COMMIT}, {COMMIT: {}}))
            repository.commits[COMMIT][file] = data
        yield hub.url, hub.paths


class RefusalError(Exception):
    """An answer with an error status, its code and its message."""

    def __init__(self, status: int, code: str | None = None, message: str | None = None) -> None:
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    body: bytes

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        parts = urlsplit(self.path)
        self.body = self.read()
        bearer = self.headers.get("Authorization")
        self.token = bearer.removeprefix("Bearer ") if bearer else None
        self.hub.requests.append(Request(self.command, self.path, self.headers.get("Range"), self.token, self.body))
        self.hub.paths.append(parts.path)
        self.fault = self.hub.fault(self.command, self.path) or Fault(self.path)
        self.query = parse_qs(parts.query)
        try:
            if self.fault.status:
                return self.reply(self.fault.status, self.fault.body or b"", self.refusal(self.fault.code))
            self.route(parts.path)
        except RefusalError as error:
            self.reply(error.status, (error.message or "").encode(), self.refusal(error.code, error.message))

    def read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        return b"".join(chunks)

    def route(self, path: str) -> None:
        for method, pattern, function in ROUTES:
            if self.command in method and (found := re.fullmatch(pattern, path)):
                return function(self, *(unquote(group) for group in found.groups("")))
        raise RefusalError(404, "NoSuchRoute")

    def refusal(self, code: str | None, message: str | None = None) -> dict[str, str]:
        named = {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": COMMIT}
        return {key: value for key, value in named.items() if value} | self.fault.headers

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.send(body)

    def send(self, body: bytes) -> None:
        if self.fault.drop is None:
            self.drip(body) if self.fault.drip else self.wfile.write(body)
            return
        self.wfile.write(body[: self.fault.drop])
        self.wfile.flush()
        time.sleep(self.fault.stall)
        if self.fault.reset:
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True

    def drip(self, body: bytes) -> None:
        piece = len(body) // 8 + 1
        for start in range(0, len(body), piece):
            time.sleep(self.fault.drip)
            self.wfile.write(body[start : start + piece])
            self.wfile.flush()

    def json(self, value: Any) -> None:
        self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    # Reading

    def repository(self, name: str, file: bool = False) -> Repository:
        """Return a repository that the token may read; as on the real Hub, a hidden one seems not to exist."""
        if self.token not in (None, self.hub.token, self.hub.reader):
            raise RefusalError(401, message="Invalid credentials in Authorization header")
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and self.token != self.hub.token):
            raise RefusalError(404 if self.token else 401, "RepoNotFound")
        if file and repository.gated and self.token != self.hub.token:
            raise RefusalError(403 if self.token else 401, "GatedRepo")
        return repository

    def revision(self, name: str, revision: str, file: bool = False) -> tuple[str, dict[str, bytes]]:
        repository = self.repository(name, file)
        sha = repository.sha(revision or "main")
        if sha is None:
            raise RefusalError(404, "RevisionNotFound")
        return sha, repository.files(sha)

    def info(self, name: str, revision: str) -> None:
        sha, files = self.revision(name, revision)
        private = self.hub.repositories[name].private
        self.json(
            {"id": name, "modelId": name, "sha": sha, "private": private, "siblings": [{"rfilename": f} for f in files]}
        )

    def tree(self, name: str, revision: str, folder: str = "") -> None:
        _, files = self.revision(name, revision)
        below = {path: data for path, data in files.items() if path.startswith(f"{folder}/" if folder else "")}
        if self.query.get("recursive", [""])[0].lower() == "true":
            return self.json([self.entry(path, data) for path, data in below.items()])
        depth = folder.count("/") + bool(folder)
        folders = {"/".join(path.split("/")[: depth + 1]) for path in below if path.count("/") > depth}
        rows = [self.entry(path, data) for path, data in below.items() if path.count("/") == depth]
        return self.json([*rows, *({"type": "directory", "path": path, "oid": "0" * 40} for path in folders)])

    def paths_info(self, name: str, revision: str) -> None:
        _, files = self.revision(name, revision)
        asked = parse_qs(self.body.decode()).get("paths", []) if b"=" in self.body else json.loads(self.body)["paths"]
        folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
        rows = [self.entry(path, files[path]) for path in asked if path in files]
        self.json([*rows, *({"type": "directory", "path": path, "oid": "0" * 40} for path in asked if path in folders)])

    def entry(self, path: str, data: bytes) -> dict[str, Any]:
        facts: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
        if is_lfs(path):
            facts["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
        return facts

    def resolve(self, name: str, revision: str, file: str) -> None:
        sha, files = self.revision(name, revision, file=True)
        if file not in files:
            raise RefusalError(404, "EntryNotFound")
        data = files[file]
        if not is_lfs(file):
            return self.content(data, {"X-Repo-Commit": sha, "ETag": f'"{git_sha1(data)}"'})
        self.hub.objects[sha256(data)] = data
        linked = {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": sha}
        if self.hub.xet:
            route = f"{self.hub.url}/api/models/{name}/xet-read-token/{sha}"
            linked |= {"X-Xet-Hash": sha256(data), "Link": f'<{route}>; rel="xet-auth"'}
        # Large files are on another host, which must not get a token.
        cdn = self.hub.url.replace("127.0.0.1", "localhost")
        return self.reply(302, b"", {**linked, "Location": f"{cdn}/cdn/{sha256(data)}/{file}"})

    def cdn(self, oid: str, _: str) -> None:
        self.content(self.hub.objects[oid], {"ETag": f'"{oid}"'})

    def content(self, data: bytes, headers: dict[str, str]) -> None:
        if self.fault.flip:
            data = bytes([data[0] ^ 1]) + data[1:]
        data = data[: len(data) - self.fault.short]
        asked = self.headers.get("Range")
        if not asked:
            return self.reply(200, data, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)), len(data) - 1)
        part = data[start : end + 1]
        return self.reply(206, part, {**headers, "Content-Range": f"bytes {start}-{end}/{len(data)}"})

    # Writing

    def writable(self, name: str | None = None) -> None:
        if self.token not in (self.hub.token, self.hub.reader):
            raise RefusalError(401, message="Invalid credentials in Authorization header" if self.token else "Log in")
        if name is not None and name not in self.hub.repositories:
            raise RefusalError(404, "RepoNotFound")
        if self.token == self.hub.reader:
            raise RefusalError(403, message="this token may not write")

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        self.writable()
        if name in self.hub.repositories:
            answer = {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}
            return self.reply(409, json.dumps(answer).encode())
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.hub.add(name, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=private)
        return self.json({"url": f"{self.hub.url}/{name}"})

    def branch(self, name: str, branch: str) -> None:
        self.writable(name)
        repository = self.hub.repositories[name]
        if branch in repository.branches:
            raise RefusalError(409, message="Reference already exists")
        repository.branches[branch] = repository.branches["main"]
        self.json({})

    def validate(self) -> None:
        head = re.match(r"---\n(.*?)\n---\n", json.loads(self.body)["content"], re.DOTALL)
        values = yaml.safe_load(head[1]) if head else None
        errors = [] if isinstance(values, dict) and values.get("license") else [{"message": "no metadata"}]
        self.reply(400 if errors else 200, json.dumps({"errors": errors, "warnings": []}).encode())

    def preupload(self, name: str, revision: str) -> None:
        self.repository(name)
        files = self.hub.repositories[name].files(revision)
        rows = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            row = {"path": path, "uploadMode": "lfs" if is_lfs(path) else "regular", "shouldIgnore": False}
            if path in files:
                row["oid"] = sha256(files[path]) if is_lfs(path) else git_sha1(files[path])
            rows.append(row)
        self.json({"files": rows})

    def batch(self, name: str) -> None:
        self.writable(name)
        objects = []
        for asked in json.loads(self.body)["objects"]:
            link = {"href": f"{self.hub.url}/lfs/{asked['oid']}"}
            known = asked["oid"] in self.hub.objects
            objects.append(asked if known else {**asked, "actions": {"upload": link}})
        self.json({"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        if sha256(self.body) != oid:
            raise RefusalError(400, message="not the object that was announced")
        self.hub.objects[oid] = self.body
        self.reply(200, b"")

    def xet_token(self, name: str, _: str) -> None:
        self.writable(name)
        self.json({"casUrl": f"{self.hub.url}/cas", "exp": int(time.time()) + 3600, "accessToken": "xet_token"})

    def xorb(self, name: str) -> None:
        self.hub.xorbs[name] = self.body
        self.json({"was_inserted": True})

    def shards(self) -> None:
        self.json({"result": 1})

    def commit(self, name: str, revision: str) -> None:
        self.writable(name)
        repository = self.hub.repositories[name]
        files, head = dict(repository.files(revision)), repository.sha(revision)
        for line in self.body.splitlines():
            row = json.loads(line)
            if row["key"] == "header" and row["value"].get("parentCommit", head) != head:
                raise RefusalError(412, message="A commit has happened since. Please refresh and try again.")
            self.apply(files, **row)
        answer = {"commitUrl": f"{self.hub.url}/{name}/commit/", "pullRequestUrl": None}
        if "create_pr" in self.query:
            self.hub.pull_requests.append(files)
            number = len(self.hub.pull_requests)
            return self.json(
                {**answer, "commitOid": "f" * 40, "pullRequestUrl": f"{self.hub.url}/{name}/discussions/{number}"}
            )
        sha = repository.commit(revision, files)
        return self.json({**answer, "commitUrl": f"{answer['commitUrl']}{sha}", "commitOid": sha})

    def apply(self, files: dict[str, bytes], key: str, value: dict[str, Any]) -> None:
        if key == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            # Files that came by Xet exist only as their names.
            named = {value["oid"]: value["oid"].encode()} if self.hub.xorbs else {}
            files[value["path"]] = {**named, **self.hub.objects}[value["oid"]]
        elif key == "deletedFile":
            del files[value["path"]]

    def log_message(self, *_: object) -> None:
        pass


NAME, KIND = r"([^/]+/[^/]+)", r"(?:models|datasets)"
ROUTES: tuple[tuple[tuple[str, ...], str, Callable[..., None]], ...] = (
    (("GET",), rf"/api/{KIND}/{NAME}()", _Handler.info),
    (("GET",), rf"/api/{KIND}/{NAME}/revision/([^/]+)", _Handler.info),
    (("GET",), rf"/api/{KIND}/{NAME}/tree/([^/]+)(?:/(.*))?", _Handler.tree),
    (("POST",), rf"/api/{KIND}/{NAME}/paths-info/([^/]+)", _Handler.paths_info),
    (("GET", "HEAD"), rf"(?:/datasets)?/{NAME}/resolve/([^/]+)/(.+)", _Handler.resolve),
    (("GET", "HEAD"), r"/cdn/(\w+)/(.+)", _Handler.cdn),
    (("POST",), r"/api/repos/create", _Handler.create),
    (("POST",), rf"/api/models/{NAME}/branch/([^/]+)", _Handler.branch),
    (("POST",), r"/api/validate-yaml", _Handler.validate),
    (("POST",), rf"/api/models/{NAME}/preupload/([^/]+)", _Handler.preupload),
    (("POST",), rf"/{NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    (("PUT",), r"/lfs/(\w+)", _Handler.upload),
    (("GET",), rf"/api/models/{NAME}/xet-write-token/([^/]+)", _Handler.xet_token),
    (("POST",), r"/cas/v1/xorbs/default/(\w+)", _Handler.xorb),
    (("POST",), r"/cas/v1/shards", _Handler.shards),
    (("POST",), rf"/api/models/{NAME}/commit/([^/]+)", _Handler.commit),
)
