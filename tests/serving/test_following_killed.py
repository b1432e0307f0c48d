"""Followers that are killed, and primaries that are killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np

from serving.configuration import FOLLOW_KEY, FOLLOW_KEYS, READ_KEYS, WRITE_KEYS
from serving.gallery.gallery import STORE
from tests.serving import toys
from tests.serving.followers import BEHIND, FOLLOWER, WRITER, within, wrong
from tests.serving.running import ROOT, answering, serving
from tests.serving.test_backends import new_items, unit_rows
from tests.serving.test_history import content
from tests.serving.toy_primary import Toy, follower_of

CHILD = """
import sys, time
from pathlib import Path
from serving.following.follower import Follower
from serving.following.primary import Address, Primary
from serving.gallery import replica

url, folder, rows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
write, done = replica._WRITES[replica.ItemRow], 0

def slowly(db, row):
    global done
    write(db, row)
    done += 1
    if done == rows:
        print("in the middle", flush=True)
        time.sleep(60)

replica._WRITES[replica.ItemRow] = slowly
Follower(folder, Primary(Address(url, None), ""), lambda card, ref: None).begin()
"""


def test_a_follower_that_is_killed_while_it_copies_or_takes_changes_over(toy: Toy, tmp_path: Path) -> None:
    copy = tmp_path / "in" / "g"
    with answering(toy.app()) as url:
        for rows, there in ((10, False), (15, True)):
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, url, str(copy), str(rows)], stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            assert child.stdout
            assert child.stdout.readline() == "in the middle\n"
            child.kill()
            child.communicate()
            assert (copy / STORE).exists() == there
            if there:
                assert wrong(copy) == []
                assert len(content(copy / STORE)["items"]) == 20
            with follower_of(url, copy) as follower:
                follower.begin()
                assert follower.is_fresh
            assert content(copy / STORE) == content(toy.folder / STORE)
            assert wrong(copy) == []
            assert [path.name for path in (tmp_path / "in").iterdir()] == ["g"]
            toy.store.add(new_items(unit_rows(30, seed=3), 50))


def test_a_primary_that_is_killed_and_comes_back(gallery_folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(gallery_folder, tmp_path / "primary"))
    keys = {READ_KEYS: "r" * 20, WRITE_KEYS: WRITER, FOLLOW_KEYS: FOLLOWER}
    picture = toys.encoded(toys.picture(1, np.random.default_rng(50)))
    with serving(path, environment=keys) as primary:
        port = primary.url.rpartition(":")[2]
        environment = {READ_KEYS: "r" * 20, FOLLOW_KEY: FOLLOWER}
        follow = ("--follow", primary.url, "--workers", 2)
        with (
            serving(tmp_path / "copy", *follow, environment=environment) as follower,
            httpx.Client(base_url=follower.url, headers={"x-api-key": WRITER}, timeout=30) as http,
        ):
            assert http.get("/items").status_code == 401, "a follower asks for its own keys, of those who read"
            http.headers["x-api-key"] = "r" * 20
            write = {"x-api-key": WRITER}
            added = http.post("/items", files={"image": picture}, headers=write).raise_for_status().json()
            for _ in range(6):  # by either worker
                found = http.post("/search", params={"k": 1}, files={"image": picture}).json()["results"]
                assert [one["id"] for one in found] == [added["items"][0]["id"]]
            primary.stop(signal.SIGKILL)
            answers = [http.get("/items") for _ in range(6)]
            assert all(one.json()["total"] == 25 and BEHIND in one.headers for one in answers)
            refused = http.delete("/items/1", headers=write)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "primary_unreachable")
            assert http.get("/readyz").status_code == 200
            with serving(path, "--port", port, environment=keys):
                assert within(10, lambda: all(BEHIND not in http.get("/items").headers for _ in range(6)))
                assert http.delete("/items/1", headers=write).status_code == 200
                assert all(http.get("/items").json()["total"] == 24 for _ in range(6))
    assert content(path / STORE) == content(tmp_path / "copy" / STORE)
    assert wrong(tmp_path / "copy") == []
    assert not {FOLLOWER, WRITER} & {os.environ.get(name) for name in (FOLLOW_KEY, WRITE_KEYS)}
