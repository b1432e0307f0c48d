"""Fuzz test: damaged images, bombs and hostile requests get only answers and refusals with a reason."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from typing import Any

import httpx
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.proof import bombs
from tests.proof.mutations import FORMATS, MUTATIONS, mutants
from tests.proof.service import Service
from tests.proof.slow import slow_files
from tests.serving import toys

GROWTH = 600.0
"""Limit of the growth of the service at its peak, MiB, its decoders aside: the kernel bounds them."""


def check_refused(answer: httpx.Response, asked: str = "") -> str:
    """Return the code of a refusal."""
    assert 400 <= answer.status_code < 500, (asked, answer.status_code, answer.text[:300])
    assert answer.headers.get("content-type") == "application/json", (asked, answer.status_code, answer.text[:300])
    return check_reason(answer.json())


def check_reason(body: dict[str, Any]) -> str:
    error = body["error"]
    assert error.keys() in ({"code", "message"}, {"code", "message", "type", "param"})
    assert error["code"] != "internal_error"
    assert error["message"]
    assert "Traceback" not in error["message"]
    return str(error["code"])


class Attack:
    """Client that sends damaged images in every way that the service takes images, and counts the outcomes."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.counts: Counter[str] = Counter()
        self.good = toys.query(0)
        self.wanted = self._search([self.good])["results"]

    def images(self, images: tuple[bytes, ...]) -> None:
        """Search by all images at once, with a good one among them; then use them in one other way."""
        at = self.counts["requests"] % (len(images) + 1)
        found = self._search([*images[:at], self.good, *images[at:]])["searches"]
        assert found.pop(at)["results"] == self.wanted, "a good image is found as it is alone"
        for one in found:
            self.counts[check_reason(one) if "error" in one else "searched"] += 1
        self.counts["images"] += len(images)
        self.counts["requests"] += 1
        ways = (self._alone, self._add, self._embed, self._crop, self._as_json, self._in_parts, self._openai)
        ways[self.counts["requests"] % len(ways)](images)

    def _search(self, images: list[bytes]) -> dict[str, Any]:
        answer = self.client.post("/search?k=5", files=[("image", ("a", image)) for image in images])
        assert answer.status_code == 200, (answer.status_code, answer.text[:300])
        found: dict[str, Any] = answer.json()
        return found

    def _alone(self, images: tuple[bytes, ...]) -> None:
        for image in images:
            self._settle(self.client.post("/search", content=image, headers={"content-type": "image/png"}))

    def _add(self, images: tuple[bytes, ...]) -> None:
        files = [("image", ("a.png", image)) for image in images]
        answer = self.client.post("/items", files=files, data={"label": toys.HTML_LABEL})
        assert answer.status_code in (200, 201, 422), (answer.status_code, answer.text[:300])
        assert len(answer.json()["items"]) + len(answer.json()["refused"]) == len(images)
        for one in answer.json()["refused"]:
            check_reason(one)

    def _embed(self, images: tuple[bytes, ...]) -> None:
        self._settle(self.client.post("/embed", files=[("image", ("a", image)) for image in images]))

    def _crop(self, images: tuple[bytes, ...]) -> None:
        for image in images:
            self._settle(self.client.post("/search?crop=0.5,0,0.500001,1", content=image))

    def _as_json(self, images: tuple[bytes, ...]) -> None:
        encoded = [base64.b64encode(image).decode() for image in images]
        found = self.client.post("/search", json={"image": [*encoded, base64.b64encode(self.good).decode()], "k": 5})
        assert found.status_code == 200, (found.status_code, found.text[:300])
        assert found.json()["searches"][-1]["results"] == self.wanted

    def _in_parts(self, images: tuple[bytes, ...]) -> None:
        """Search by a sum of the images and items, with weights of all sizes: one bad image refuses it."""
        for start in range(0, len(images), 8):
            sent = images[start : start + 8]
            parts = [{"image": number, "weight": 10.0 ** (number - 6)} for number in range(len(sent))]
            files = [("image", ("a", image)) for image in sent]
            query = json.dumps([*parts, {"id": 1, "weight": -1e-320}])
            self._settle(self.client.post("/search", files=files, data={"query": query}))

    def _openai(self, images: tuple[bytes, ...]) -> None:
        """Embed each image alone, and all with a good one among them: a bad image is named."""
        parts = [f"data:image/png;base64,{base64.b64encode(image).decode()}" for image in (self.good, *images)]
        bad = []
        for number, part in enumerate(parts):
            answer = self.client.post("/v1/embeddings", json={"input": part})
            if answer.status_code != 200:
                check_refused(answer)
                bad.append(f"input[{number}]")
        answer = self.client.post("/v1/embeddings", json={"input": parts})
        assert (answer.json()["error"]["param"] if bad else None) == (bad[0] if bad else None)

    def _settle(self, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            check_refused(answer)


def damaged_images(service: Service, count: int, number: int = 0) -> dict[str, Any]:
    """Send at least `count` damaged images, equally many per format and kind of damage; `number` is the seed."""
    before, begun = service.memory(), time.perf_counter()
    service.forget_peak()
    examples = max(2, -(-count // (len(FORMATS) * len(MUTATIONS))))
    with service.client() as client:
        attack = Attack(client)
        for kind in FORMATS:

            @seed(number)
            @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck))
            @given(st.tuples(*(mutants(mutation, kind) for mutation in MUTATIONS)))
            def sent(images: tuple[bytes, ...]) -> None:
                attack.images(images)

            sent()
            service.check_alive()
    peak = service.memory("VmHWM")
    assert peak - before < GROWTH, f"{before:.0f} MiB became {peak:.0f}"
    assert attack.counts["images"] >= count
    return {
        **attack.counts,
        "seconds": round(time.perf_counter() - begun, 1),
        "memory_before_mib": round(before),
        "memory_peak_mib": round(peak),
        "memory_after_mib": round(service.memory()),
    }


def bombs_sent(service: Service, size: int, pixels: int = 24_000_000) -> dict[str, Any]:
    """Send each bomb and each slow file as a query and as a new item.

    Args:
        service: The service.
        size: The bytes of the bombs that consist of many pieces.
        pixels: The pixels that the slow files come near to.
    """
    before, slowest = service.memory(), {"seconds": 0.0, "bomb": ""}
    service.forget_peak()
    made = {**bombs.filling(size), **bombs.of_pixels(), **slow_files(pixels)}
    with service.client() as client:
        for name, data in made.items():
            begun = time.perf_counter()
            for answer in (client.post("/search", content=data), client.post("/items", content=data)):
                assert answer.status_code < 500, (name, answer.text[:300])
                if answer.status_code >= 400:
                    check_refused(answer)
            took = time.perf_counter() - begun
            slowest = max(slowest, {"seconds": round(took, 2), "bomb": name}, key=lambda one: float(one["seconds"]))
    service.check_alive()
    # Python keeps the text of every warning that it shows, so files that cause warnings would fill the memory.
    assert "UserWarning" not in service.said()
    peak = service.memory("VmHWM")
    assert peak - before < GROWTH, f"{before:.0f} MiB became {peak:.0f}"
    return {"bombs": len(made), "slowest": slowest, "memory_before_mib": round(before), "memory_peak_mib": round(peak)}
