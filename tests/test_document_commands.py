"""Every command block of the README and of docs/ runs as printed, on small data, or says why it cannot run here.

Each page is one test: its blocks run in order in a folder with the files that pages name. Models are small, training is
two steps, and the data set glyphs has few characters. `<!-- not run: REASON -->` above a block leaves it out.

To save time, a service starts with the first request to it, and a training, an export or features that an earlier page
made by the same words are taken from there. tests/test_documents.py parses every command of every page.
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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import zoo
from exports.text import attach_text_tower
from tests import text_toys
from zoo.cli.main import main
from zoo.data import glyphs
from zoo.models.card import read_card
from zoo.models.load import load

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.name != "report.md"]
REASONS = {"hub", "data", "gpu", "hours", "server", "registry"}
"""Why a block cannot run here: it needs the Hub, a data set, a GPU, much time, another server, a package registry."""

URL, KEY = "http://127.0.0.1:3000", "a-key-of-this-test-alone"
QUICK = ["--set", "schedule.epochs=1", "--set", "schedule.steps=2"]
"""Appended to commands that train: two steps are enough to run everything else."""

BLOCK = re.compile(r"^( *)(?:<!-- not run: (.*?) -->\n\1)?```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its text, and the reason that keeps it from running ("" if it runs)."""

    line: int
    language: str
    text: str
    reason: str


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page in order."""
    source = page.read_text("utf-8")
    return [
        Block(source.count("\n", 0, match.start()) + 1, match[3], match[4], match[2] or "")
        for match in BLOCK.finditer(source)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_block_has_a_language_and_a_known_reason(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[str] = Counter()
    for page in PAGES:
        page_blocks = blocks(page)
        assert page.read_text("utf-8").count("```") == 2 * len(page_blocks), f"{name_of(page)}: a block is not closed"
        for block in page_blocks:
            where = f"{name_of(page)}:{block.line}"
            assert block.language in {"sh", "python", "js", "text"}, where
            assert not block.reason or block.reason in REASONS, f"{where}: {block.reason}"
            counts[block.reason or "runs"] += 1
    with capsys.disabled():
        print("\ncode blocks:", ", ".join(f"{reason} {count}" for reason, count in counts.most_common()))
    assert counts["runs"] > sum(counts.values()) / 2


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_starts_with_a_command(page: Path) -> None:
    first = page.read_text("utf-8").split("\n## ")[0]
    assert page.name == "README.md" or "```sh" in first


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
    services: dict[str, tuple[str, subprocess.Popen[str]]] = field(default_factory=dict)

    def run(self, block: Block) -> None:
        """Run the lines of a block; raise AssertionError for a command that fails."""
        if block.language == "text":  # a drawing
            return
        if block.language == "python":
            self._python(block.text)
            return
        for line in block.text.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                self._command(words, line)

    def _command(self, words: list[str], line: str) -> None:
        here = dict(self.variables)
        if words[0] == "export":
            name, value = words[1].split("=", 1)[0], line.split("=", 1)[1]
            done = subprocess.run(["bash", "-c", f"printf %s {value}"], capture_output=True, text=True, check=True)
            self.variables[name] = KEY if name == "KEY" else done.stdout
            return
        while ASSIGNMENT.fullmatch(words[0]):
            name, value = words.pop(0).split("=", 1)
            here[name] = self._expand(value)
        words = [self._expand(word) for word in words]
        if words[:2] == ["zoo", "serve"]:
            self._serve(words[2:], here)
        elif words[0] == "zoo":
            self._zoo(words[1:])
        elif words[0] == "curl":
            self._curl(words[1:])
        else:
            interpreter = [sys.executable] if words[0] == "python" else [words[0]]
            subprocess.run([*interpreter, *words[1:]], cwd=ROOT, check=True, timeout=60, capture_output=True)

    def _expand(self, word: str) -> str:
        """Return a word as a shell gives it: with the values of variables, and with the home folder."""
        word = re.sub(r"\$([A-Z]+)", lambda match: self.variables[match[1]], word)
        return re.sub(r"^~", str(self.folder), word)

    def _zoo(self, words: list[str]) -> None:
        if "--out" in words and words[0] in ("data", "index"):
            self._make(words[words.index("--out") + 1])
        if words[0] in ("train", "finetune", "distill") and "--show" not in words:
            words = [*words, *QUICK]
        words = [self.service("collections" if "--collection" in words else "own") if w == URL else w for w in words]
        product = self._product(words)
        if product is None or not self.products.restore(words, product):
            assert main(words) == 0, f"zoo {shlex.join(words)}"
            if product is not None:
                self.products.keep(words, product)

    def _product(self, words: list[str]) -> Path | None:
        """Return the file or model folder that a slow command writes; None for other commands."""
        if "--show" in words or words[0] not in ("train", "distill", "features", "export"):
            return None
        if words[0] == "features":
            return self.folder / words[words.index("-o") + 1]
        return self.home / "models" / words[words.index("--as") + 1 if "--as" in words else 1]

    def _make(self, name: str) -> None:
        """Remove a folder of the sandbox that the page makes itself."""
        if name not in self.made and name not in ("", "."):
            self.made.add(name)
            shutil.rmtree(self.folder / name, ignore_errors=True)

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
        names = {"pil_image": Image.fromarray(array), "uint8_array": array}
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


@pytest.fixture(scope="module")
def small_glyphs() -> Iterator[None]:
    """Reduce the data set glyphs to 8 characters to test on and 40 to train on, each with 12 pictures."""
    all_of = glyphs.characters

    def characters(split: str) -> tuple[glyphs.Character, ...]:
        xi = [character for character in all_of(split) if character.name == "greek-small-xi"]
        others = [character for character in all_of(split) if character.name != "greek-small-xi"]
        few = [*xi, *others[: 40 if split == "train" else 7]]
        return tuple(sorted(few, key=lambda character: character.text))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyphs, "characters", characters)
        patch.setattr(glyphs, "load", partial(glyphs.load, instances=12))
        yield


def draw(folder: Path, split: str, instances: int) -> None:
    """Write pictures of glyphs, in one folder per class."""
    dataset = glyphs.load(split, instances=instances)
    for index, image in enumerate(dataset.images):
        label = dataset.classes[dataset.labels[index]]
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{index % instances:02d}.png")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, small_glyphs: None) -> Path:
    """Return a folder with the files that pages name: pictures in folders of their classes, and tables."""
    folder = tmp_path_factory.mktemp("documents")
    draw(folder / "pictures", "test", 8)
    draw(folder / "birds", "train", 4)
    files = sorted((folder / "pictures").rglob("*.png"))
    shutil.copytree(folder / "pictures", folder / "Pictures")
    for name, file in zip(("a.png", "b.png", "query.jpg", "new.png"), files[::7], strict=False):
        Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).convert("RGB").save(folder / name)
    birds = [(file, "test") for file in files] + [(file, "train") for file in (folder / "birds").rglob("*.png")]
    rows = [f"{file.relative_to(folder)},{file.parent.name},{split}" for file, split in birds]
    (folder / "birds.csv").write_text("\n".join(["image,label,split", *rows]))
    table = [f"{file.parent.name}/{file.name},{file.parent.name},{1900 + i},a" for i, file in enumerate(files)]
    (folder / "table.csv").write_text("\n".join(["path,label,year,artist", *table]))
    np.save(folder / "rows.npy", np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    (folder / "labels.csv").write_text("\n".join(["label,query", *(f"{i % 6},{int(i < 12)}" for i in range(60))]))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """Return a local zoo with the models that pages name: photos, better and mine."""
    folder = tmp_path_factory.mktemp("documents-home")
    for name, source in {"photos": "margin-conv4-glyphs", "better": "r-margin-conv4-glyphs"}.items():
        shutil.copytree(zoo.info(source).folder, folder / "models" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_HOME", str(folder))
        words = ["--from", "margin-conv4-glyphs", "--head-only", "--as", "mine", *QUICK]
        assert main(["finetune", str(sample / "pictures"), *words]) == 0
    return folder


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, sample: Path, home: Path) -> Path:
    """Return a gallery of the pictures whose model has a text tower, so that texts search it too."""
    folder = tmp_path_factory.mktemp("documents-gallery")
    tower = home / "models" / "towers"
    shutil.copytree(zoo.info("margin-conv4-glyphs").folder, tower)
    attach_text_tower(tower, *text_toys.write_tower(folder / "tower", read_card(tower).dim, padded=True))
    from serving.gallery.indexing import index_folder

    index_folder(load(tower, runtime="onnx"), str(tower), sample / "pictures", folder / "gallery")
    return folder / "gallery"


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Products:
    return Products(tmp_path_factory.mktemp("documents-products"))


@pytest.mark.parametrize("page", [page for page in PAGES if any(not b.reason for b in blocks(page))], ids=name_of)
def test_the_blocks_of_a_page_run(
    page: Path,
    sample: Path,
    gallery: Path,
    home: Path,
    products: Products,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(shutil.copytree(sample, tmp_path / "page"))
    for name in ("gallery", "galleries/birds", "galleries/cars"):
        copy(gallery, folder / name)
    own_home = copy(home, tmp_path / "home")
    monkeypatch.setenv("ZOO_HOME", str(own_home))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    sandbox = Sandbox(folder, own_home, gallery, products)
    try:
        for block in blocks(page):
            if not block.reason:
                sandbox.run(block)
    finally:
        sandbox.close()
