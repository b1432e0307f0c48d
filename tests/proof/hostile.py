"""Hostile requests: wrong paths, names, numbers and texts, and bytes that are hardly HTTP."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.proof.fuzz import check_refused
from tests.proof.service import KEY, Service
from tests.serving import toys

HALF = "\\ud800"
"""Half of a surrogate pair, in JSON."""
NAMES = (
    "../../etc/passwd", "..\\..\\boot.ini", "/etc/passwd", "a\0b.png", "x" * 5000, "a\nb.png", 'a";b.png', "\u202eg",
    "<img src=x onerror=alert(1)>.png", "\U0001f600.png", "CON", "", ".", "%00", "${jndi:ldap://x}", "' OR 1=1--",
)  # fmt: skip
IDS = (
    "1e3", "%00", "..%2f..%2fetc%2fpasswd", "1%0d%0a", "-1", "+1", "1.0", "%d9%a3", "9" * 4000, "%f0%9f%98%80", "0x1",
    "1;drop%20table%20items", "'%20OR%201=1--", "%c0%ae%c0%ae", "..%5c..", "1%20", "%ff", "NaN", "null", "[]",
)  # fmt: skip
FILTERS = (
    f'{{"a": {10**30}}}', f'{{"a": {-(10**30)}}}', f'{{"{HALF}": 1}}', f'{{"a": "{HALF}"}}', '{"a": [[1]]}',
    '{"a": []}', json.dumps({"a": [1] * 2000}), json.dumps({f"k{i}": 1 for i in range(1200)}),
    '{"a\\"b": 1}', '{"a\\u0000": 1}', '{"a": ' + "9" * 5000 + "}", "[" * 50_000,
    '{"a":' * 2000 + "1" + "}" * 2000, "null", "1", '"a"', "{", "\x00",
)  # fmt: skip
BODIES = (
    f'{{"label": "{HALF}"}}', '{"label": "\\u0000"}', '{"metadata": {"a": 1e999}}', f'{{"metadata": {{"{HALF}": 1}}}}',
    '{"metadata": {"a": NaN}}', '{"label": ["a"]}', "1e5", '"x"', "", "{}", '{"id": 7}', '{"label": "a", "id": 7}',
    '{"metadata":' + '{"a":' * 5000 + "1" + "}" * 5001, json.dumps({"label": "x" * 70_000}),
)  # fmt: skip
METADATA = (
    *('{"a":' * levels + "1" + "}" * levels for levels in (33, 480, 500, 900)),
    '{"a": ' + "9" * 400 + "}",
    '{"a": NaN}',
    '{"a": 1e999}',
    f'{{"{HALF}": 1}}',
    "[1]",
    "{",
    '"a"',
    json.dumps({"a": "x" * 17_000}),
)
PICTURES = (
    "http://169.254.169.254/latest/meta-data", "https://localhost/x.png", "file:///etc/passwd", "ftp://a/b.png",
    "data:image/png;base64,", "data:;base64,!!!!", "data:text/html,<script>", "data:" + "," * 300, "QUJD", "A" * 999,
    "=" * 8, "\U0001f600", "/etc/passwd", "..", "\0", "data:image/png;base64," + "A" * 400_000,
)  # fmt: skip
"""What is no picture, as JSON holds one."""
JSONS = (
    "", "null", "[]", '"a"', "{", "[" * 50_000, '{"a":' * 5000 + "1" + "}" * 5000, '{"input": ' + "[" * 5000,
    '{"input": [' + "1," * 300_000 + "1]}", '{"input": [' + "{}," * 300_000 + "{}]}", f'{{"input": "{HALF}"}}',
    f'{{"image": "{HALF}"}}', '{"input": "a", "input": 1}', '{"image": ' + "9" * 5000 + "}", '{"input": 1e999}',
    '{"image": [' + '"",' * 5000 + '""]}', '{"input": [' + '"",' * 5000 + '""]}', '{"messages": [{}]}',
    '{"messages": [{"role": "user", "content": [{"type": "audio"}]}]}', '{"input": {"type": {"a": 1}}}',
    '{"input": {"type": ["text"], "text": "a"}}', '{"input": {"image": {"image": {"image": 1}}}}',
    '{"input": [{"type": "image_url", "image_url": {"url": 1}}]}', '{"input": "a", "dimensions": 1e3}',
    '{"input": "a", "dimensions": 99999999999999999999}', '{"input": "a", "model": {}}', '{"input": "a", "model": "' +
    "x" * 70_000 + '"}', "\ufeff{}",
)  # fmt: skip
"""Bodies of POST /v1/embeddings, /search and /embed."""
QUERIES = (
    "[]", "{}", "[[]]", "[null]", "[{}]", "[" * 5000, '[{"text": ' + "[" * 5000, '[{"id": 1, "weight": NaN}]',
    '[{"id": 1, "weight": 1e308}]', '[{"id": 1, "weight": -Infinity}]', '[{"id": 1, "weight": ' + "9" * 400 + "}]",
    '[{"id": 1}, {"id": 1, "weight": -1}]', f'[{{"text": "{HALF}"}}]', f'[{{"key": "{HALF}"}}]', f'[{{"{HALF}": 1}}]',
    '[{"key": "a\\u0000"}]', '[{"id": "../1"}]', '[{"id": -1}]', '[{"id": ' + "9" * 400 + "}]", '[{"image": 0}]',
    '[{"image": -1}]', '[{"image": 1e3}]', '[{"image": {"image": 0}}]', '[{"image": "file:///etc/passwd"}]',
    '[{"image": "QUJD", "crop": [0, 0, ' + "9" * 400 + ", 1]}]", '[{"image": "QUJD", "crop": [0, 0, NaN, 1]}]',
    '[{"id": 1, "text": "a"}]', "[" + '{"id": 1},' * 16 + '{"id": 1}]', "[" + "{}," * 100_000 + "{}]",
    "[{" + ",".join(f'"{number}":1' for number in range(50_000)) + "}]", '[{"text": "' + "x" * 70_000 + '"}]',
)  # fmt: skip
"""What is no query in parts: in JSON, in its text, and as a field of a form."""
PICTURE_MEMBERS = (("/search", "image"), ("/embed", "image"), ("/v1/embeddings", "input"), ("/items", "image"))
READERS = ("/v1/embeddings", "/search", "/embed")
PATHS = (
    "/page/%2e%2e%2fapp.py", "/page//etc/passwd", "/page/..%5capp.py", "/page/%00", "/page/" + "a" * 5000, "/%00",
    "/x%0ay", "/collections/%00/search", "/collections/..%2fitems", "/docs/../app", "/items?limit=%d9%a3",
    "/items?limit=1e3", "/items?offset=-1", "/items?sample=2&offset=x", "/labels?limit=-1", "/.git/config",
)  # fmt: skip
NUMBERS = ("", " ", "-", ".", "1e", "nan", "inf", "-inf", "1e999", "0x10", "1_0", "٣", "1,0", "9" * 400, "\x00", "--1")


def refused(service: Service) -> int:
    """Send hostile requests; check that each is refused with its reason, and return their number."""
    image, as_json = toys.query(0), {"content-type": "application/json"}
    with service.client() as client:
        answers = [
            *(client.post("/search", files={"image": (name, b"junk")}) for name in NAMES),
            *(client.request(method, f"/items/{one}") for one in IDS for method in ("GET", "DELETE", "TRACE")),
            *(client.patch(f"/items/{one}", json={"label": "x"}) for one in IDS),
            *(client.get(f"/items/{one}/thumbnail") for one in IDS),
            *(client.post(f"/search?id={one}") for one in ("%ff", "%00", "x", "-1", "1.5", "", "1%20")),
            *(client.post("/search", files={"id": (None, b"1"), "where": (None, text.encode())}) for text in FILTERS),
            *(client.patch("/items/1", content=body.encode()) for body in BODIES),
            *(client.get(path) for path in PATHS),
            *(
                client.post("/search", params={name: number}, content=image)
                for name in ("k", "offset", "min_similarity", "min_p", "crop")
                for number in NUMBERS
            ),
            *(client.post("/items", params={"metadata": text}, content=image) for text in METADATA),
            *(client.request(method, "/search") for method in ("GET", "PUT", "DELETE", "TRACE", "PATCH", "BREW")),
            *(client.post(path, content=text.encode(), headers=as_json) for path in READERS for text in JSONS),
            *(client.post(path, json={name: text}) for path, name in PICTURE_MEMBERS for text in PICTURES),
            *(client.get(f"/v1/models/{one}") for one in IDS),
            *(client.post("/search", content=f'{{"query": {text}}}', headers=as_json) for text in QUERIES),
            *(client.post("/search", json={"query": text}) for text in QUERIES),
            *(client.post("/search", files={"query": (None, text.encode())}) for text in QUERIES),
            *(client.post("/search", files=[("query", (None, b'[{"id": 1}]'))] * times) for times in (2, 32, 33)),
        ]
    for answer in answers:
        _check(answer)
    return len(answers)


def _check(answer: httpx.Response) -> None:
    asked = f"{answer.request.method} {answer.request.url}"[:200]
    assert 400 <= answer.status_code < 500, (asked, answer.status_code, answer.text[:200])
    code = check_refused(answer, asked)
    assert len(answer.content) < 20_000, (asked, len(answer.content))
    if code == "method_not_allowed":
        assert answer.headers["allow"]


def kept_as_they_are(service: Service) -> int:
    """Check that names and labels that are harmless as texts come back unchanged; return their number."""
    names = [name for name in NAMES if name.isprintable() and 0 < len(name) <= 1000]
    with service.client() as client:
        for number, name in enumerate(names):
            image = toys.query(0) + number.to_bytes(4, "big")
            added = client.post("/items", files={"image": ("a.png", image)}, data={"label": name, "source": name})
            assert added.status_code == 201, added.text
            item = added.json()["items"][0]
            assert (item["label"], item["source"], item.pop("notes")) == (name, name, [])
            assert client.get("/items", params={"label": name}).json()["items"] == [item]
            assert client.get("/items", params={"label": name}).headers["content-type"] == "application/json"
            assert client.delete(f"/items/{item['id']}").json() == {"removed": item["id"]}
    return len(names)


HEAD = f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\n"
FORM = "Content-Type: multipart/form-data; boundary="


def _wire() -> list[bytes]:
    """Return requests as bytes; those that are incomplete end when the sender closes the connection."""
    post, image = f"POST /search HTTP/1.1\r\n{HEAD}", toys.query(0)
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="%s"\r\n\r\n'
    texts: list[bytes] = [
        (post + f"Content-Length: {length}\r\n\r\nxx").encode()
        for length in ("-1", "1e3", "99999999999999999999", "2, 2", "+2", "0x2", " ", "1000000", "1")
    ]
    texts += [
        (post + "Transfer-Encoding: chunked\r\n" + rest).encode()
        for rest in (
            "\r\nzz\r\nab\r\n0\r\n\r\n", "\r\n-1\r\n", "\r\nffffffffffffffff\r\nab", "\r\n2\r\nabcdef\r\n0\r\n\r\n",
            "Content-Length: 4\r\n\r\n0\r\n\r\n", "\r\n2;" + "x" * 70_000, "\r\n2\r\nab\r\n",
            "Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        )
    ]  # fmt: skip
    bodies = {
        "b": [
            part % b"a" + image, b"--b--\r\n", b"--b\r\n\r\n\r\n--b--", b"--b" * 1000, part % (b"x" * 60_000),
        ],
        "": [b"--\r\n\r\n----"],
        "b" * 5000: [b"--" + b"b" * 5000 + b"--"],
        "b; boundary=c": [part % b"a" + image + b"\r\n--c--"],
        '"b': [part % b"a" + image + b"\r\n--b--\r\n"],
        "é": [b"--\xc3\xa9--"],
    }  # fmt: skip
    for boundary, some in bodies.items():
        for body in some:
            texts.append((post + f"{FORM}{boundary}\r\nContent-Length: {len(body)}\r\n\r\n").encode() + body)
    texts += [
        b"GET /items\r\n\r\n",
        b"GET  /items HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /items HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /items HTTP/1.1\r\n\r\n",
        b"GET /items HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /items HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"GET /items HTTP/1.1\r\nHost: localhost\r\nX : a\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET http://evil.example/items HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        bytes(range(256)) * 40,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /items HTTP/1.1\r\nHost: localhost\r\nCookie: zoo-key=\xff\xfe; ;=;;\r\n\r\n",
        b"GET /items HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
        b"GET /items HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    ]  # fmt: skip
    return texts


def on_the_wire(service: Service) -> dict[str, int]:
    """Count the answers to bytes that are hardly HTTP by status; "closed" is the end of the connection alone."""
    statuses: dict[str, int] = {}
    for text in _wire():
        said = _say(service.url, text)
        status = said.split(b" ")[1].decode() if said.startswith(b"HTTP/") else "closed"
        assert status == "closed" or status < "500", (text[:200], said[:300])
        statuses[status] = statuses.get(status, 0) + 1
    service.check_alive()
    return statuses


def _say(url: str, text: bytes) -> bytes:
    address: Any = (urlsplit(url).hostname, urlsplit(url).port)
    with socket.create_connection(address, timeout=10) as line:
        try:
            line.sendall(text)
            line.shutdown(socket.SHUT_WR)
            return line.recv(4096)
        except OSError:  # closed before everything was sent
            return b""
