"""A folder in which the commands of documents and help texts run as printed, on small data.

To save time, a service starts with the first request to it, and a training, an export or features that an earlier block
made by the same words are taken from there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from zoo.cli.main import main

ROOT = Path(__file__).parent.parent

URL, KEY = "http://127.0.0.1:3000", "a-key-of-this-test-alone"
QUICK = ["--set", "schedule.epochs=1", "--set", "schedule.steps=2"]
"""Appended to commands that train: two steps are enough to run everything else."""

ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its text, and the reason that keeps it from running ("" if it runs)."""

    line: int
    language: str
    text: str
    reason: str


class Products:
    """Files and model folders that slow commands wrote, by the words of the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[str, Path] = {}

    def keep(self, words: list[str], product: Path) -> None:
        """Copy the product of a command."""
        self.kept[shlex.join(words)] = copy(product, self.folder / str(len(self.kept)))

    def restore(self, words: list[str], product: Path) -> bool:
        """Write the product as the same command did on an earlier page; return False without such a page."""
        kept = self.kept.get(shlex.join(words))
        if kept is not None:
            copy(kept, product)
        return kept is not None


def copy(source: Path, target: Path) -> Path:
    """Copy a file or a folder."""
    return Path(shutil.copytree(source, target, dirs_exist_ok=True) if source.is_dir() else shutil.copy(source, target))


@dataclass
class Sandbox:
    """The folder in which a page's blocks run, its environment, and the services that its requests need."""

    folder: Path
    home: Path
    gallery: Path
    products: Products
    variables: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    shown: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)
    statuses: tuple[int, ...] = (0,)
    services: dict[str, tuple[str, subprocess.Popen[str]]] = field(default_factory=dict)

    def run(self, block: Block) -> None:
        """Run the lines of a block; raise AssertionError for a command that fails."""
        if block.language in ("text", "bibtex"):  # nothing to run
            return
        if block.language == "python":
            self._python(block.text)
            return
        for line in block.text.replace("\\\n", " ").splitlines():
            for command in _without_loop(line):
                for words in _without_ands(shlex.split(command, comments=True)):
                    self._command(words, command)

    def _command(self, words: list[str], line: str) -> None:
        here = dict(self.variables)
        if words[0] == "export":
            name, value = words[1].split("=", 1)[0], line.split("=", 1)[1]
            done = subprocess.run(["bash", "-c", f"printf %s {value}"], capture_output=True, text=True, check=True)
            self.variables[name] = KEY if name == "KEY" else done.stdout
            return
        while ASSIGNMENT.fullmatch(words[0]):
            name, value = words.pop(0).split("=", 1)
            (here[name],) = self._expanded(value)
        words = [name for word in words for name in self._expanded(word)]
        if words[:2] == ["zoo", "serve"]:
            self._serve(words[2:], here)
        elif words[0] == "zoo":
            self._zoo(words[1:])
        elif words[0] == "curl":
            self._curl(words[1:])
        else:
            few_steps = ["--steps", "2"] if "examples/plain_loop.py" in words else []
            interpreter = [sys.executable] if words[0] == "python" else [words[0]]
            words = [*interpreter, *words[1:], *few_steps]
            subprocess.run(words, cwd=ROOT, check=True, timeout=200, capture_output=True)

    def _expanded(self, word: str) -> list[str]:
        """Return a word as a shell gives it: with the values of variables, the home folder, and the files of a *."""
        word = re.sub(r"\$([A-Z]+)", lambda match: self.variables[match[1]], word)
        names = sorted(path.name for path in self.folder.glob(word)) if word.startswith("*") else []
        return names or [re.sub(r"^~", str(self.folder), word)]

    def _zoo(self, words: list[str]) -> None:
        if "--out" in words and words[0] in ("data", "embed", "index"):
            self._make(words[words.index("--out") + 1])
        if words[0] in ("train", "finetune", "distill", "ensemble") and "--as" in words:
            self._make(str(self.home / "models" / words[words.index("--as") + 1]))
        trains = words[0] in ("train", "finetune", "distill") or words[:2] == ["benchmark", "run"]
        if trains and "--show" not in words:
            words = [*words, *QUICK]
        words = [self.service("collections" if "--collection" in words else "own") if w == URL else w for w in words]
        product = self._product(words)
        if product is None or not self.products.restore(words, product):
            assert main(words) in self.statuses, f"zoo {shlex.join(words)}"
            if product is not None:
                self.products.keep(words, product)

    def _product(self, words: list[str]) -> Path | None:
        """Return the file or model folder that a slow command writes; None for other commands."""
        if "--show" in words or words[0] not in ("train", "distill", "features", "export"):
            return None
        if "--features" in words and "--as" not in words:  # then the name is made of two others
            return None
        if words[0] == "features":
            return self.folder / words[words.index("-o") + 1]
        name = words[words.index("--as") + 1 if "--as" in words else 1]
        return self.folder / name if "/" in name else self.home / "models" / name

    def _make(self, name: str) -> None:
        """Remove a folder, file or model of the sandbox that the page makes itself."""
        if name not in self.made and name not in ("", "."):
            self.made.add(name)
            shutil.rmtree(self.folder / name, ignore_errors=True)
            if (self.folder / name).is_file():
                (self.folder / name).unlink()

    def _curl(self, words: list[str]) -> None:
        text = " ".join(words)
        kind = "collections" if "/collections" in text else "own"
        words = [word.replace(URL, self.service(kind)) for word in words]
        curl = [shutil.which("curl") or "curl", "--disable", "--noproxy", "*", "-sS", "-w", "%{stderr}%{http_code}"]
        done = subprocess.run([*curl, *words], cwd=self.folder, capture_output=True, text=True, timeout=30, check=False)
        assert re.fullmatch(r"2\d\d", done.stderr), f"curl {text}: {done.stderr} {done.stdout}"
        if "/search" in text:
            answer = json.loads(done.stdout)
            assert all(search["results"] for search in answer.get("searches", [answer])), f"curl {text}"
        if "-o" in words:
            assert np.load(self.folder / words[words.index("-o") + 1]).ndim == 2, f"curl {text}"

    def _python(self, source: str) -> None:
        """Run a block of Python, with the images that the pages name."""
        array = np.zeros((20, 30, 3), np.uint8)
        names = {"pil_image": Image.fromarray(array), "uint8_array": array, "write_key": KEY}
        source = source.replace(URL, self.service("own")) if URL in source else source
        exec(compile(source, "a block", "exec"), names)

    def service(self, kind: str) -> str:
        """Return the URL of the page's last service of this kind, or of one that the page does not show; start it."""
        if kind not in self.services:
            if kind not in self.shown:
                self.shown[kind] = [str(copy(self.gallery, self.folder / f"served-{kind}"))], {}
            self._start(kind, *self.shown[kind])
        return self.services[kind][0]

    def _serve(self, words: list[str], environment: dict[str, str]) -> None:
        """Remember a `zoo serve` that the page shows, for its requests until it shows another service of this kind."""
        kind = "collections" if any("=" in word for word in words) else "own"
        if kind in self.services:
            self._end(kind)
        self.shown[kind] = words, environment

    def _start(self, kind: str, words: list[str], environment: dict[str, str]) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-m", "zoo.cli.main", "serve", *words, "--port", "0"],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        self.services[kind] = "", process
        url = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert url, f"zoo serve {shlex.join(words)} ended"
        self.services[kind] = url[0], process

    def close(self) -> None:
        """End all services of the page."""
        for kind in list(self.services):
            self._end(kind)

    def _end(self, kind: str) -> None:
        _, process = self.services.pop(kind)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        if process.stdout:
            process.stdout.close()


def _without_loop(line: str) -> list[str]:
    """Return the commands that a line runs: of a loop one for each value."""
    loop = re.fullmatch(r"for (\w+) in (.*?); do (.*); done", line.strip())
    return [loop[3].replace(f"${loop[1]}", value) for value in loop[2].split()] if loop else [line]


def _without_ands(words: list[str]) -> list[list[str]]:
    """Return the commands that `&&` joins."""
    ends = [i for i, word in enumerate([*words, "&&"]) if word == "&&"]
    return [words[start:end] for start, end in zip([0, *(i + 1 for i in ends)], ends, strict=False) if words[start:end]]
