"""Every command of the README, docs/ and the help texts runs as printed, on small data, or says why it cannot run here.

A page is one test: its blocks run in order in a folder with the files that pages name (`tests.sandbox`). The examples
in the help of a command are one test, too, and so is a command that prints others to run. Models are small, training is
two steps, and the data set glyphs has few characters. `<!-- not run: REASON -->` above a block leaves it out; for
examples, NOT_RUN does. tests/test_documents.py parses every command, also those.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from doctest import DocTestParser
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import zoo
from tests import text_toys
from tests.sandbox import KEY, QUICK, ROOT, Block, Products, Sandbox, copy
from tests.test_documents import EXAMPLES
from training import named
from training.studies import named as studies_named
from zoo.cli.main import main
from zoo.data import glyphs
from zoo.models.card import read_card
from zoo.models.load import load
from zoo.models.text_graph import attach_text_tower

pytestmark = pytest.mark.slow

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.name != "report.md"]
REASONS = {"hub", "data", "gpu", "hours", "package", "server", "registry"}
"""Why a block cannot run here: it needs the Hub, a data set, a GPU, much time, a package of the reader, another server
or a package registry."""

BLOCK = re.compile(r"^( *)(?:<!-- not run: (.*?) -->\n\1)?```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


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
            assert block.language in {"sh", "python", "js", "text", "bibtex"}, where
            assert not block.reason or block.reason in REASONS, f"{where}: {block.reason}"
            counts[block.reason or "runs"] += 1
    with capsys.disabled():
        print("\ncode blocks:", ", ".join(f"{reason} {count}" for reason, count in counts.most_common()))
    assert counts["runs"] > sum(counts.values()) / 2


def test_a_guide_starts_with_a_command() -> None:
    """The pages of the reality check start with its question."""
    no_guides = ("README.md", "reality-2026.md")
    guides = [page for page in PAGES if page.name not in no_guides and page.parent.name != "lab"]
    starts = {name_of(guide): guide.read_text("utf-8").split("\n## ")[0] for guide in guides}
    assert [name for name, start in starts.items() if "```sh" not in start and "```python" not in start] == []


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
    shop = [f"{file.parent.name}/{file.name},{i:05d},{i}.5" for i, file in enumerate(files)]
    (folder / "shop.csv").write_text("\n".join(["path,sku,price", *shop]), encoding="cp1252")
    (folder / "mypkg.py").write_text("from zoo import losses\n\n\nclass MyLoss(losses.MarginLoss):\n    pass\n")
    (folder / "key.txt").write_text("a-key\n")
    shutil.copy(folder / "query.jpg", folder / "query.png")
    shutil.copy(folder / "new.png", folder / "new.jpg")
    np.save(folder / "rows.npy", np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    np.save(folder / "other.npy", np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32))
    (folder / "labels.csv").write_text("\n".join(["label,query", *(f"{i % 6},{int(i < 12)}" for i in range(60))]))
    shutil.copy(folder / "labels.csv", folder / "l.csv")
    studies = Path("docs", "studies")
    shutil.copytree(ROOT / studies / "reality-2026-birds", folder / studies / "reality-2026-birds")
    np.savez(folder / "rows.npz", embeddings=np.load(folder / "rows.npy"), labels=np.arange(60) % 6)
    (folder / "labels.txt").write_text("\n".join(str(i % 6) for i in range(60)))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """Return a local zoo with the models that pages name: photos, better and mine."""
    folder = tmp_path_factory.mktemp("documents-home")
    stand_in = Path(shutil.copytree(zoo.info("margin-conv4-glyphs").folder, folder / "models" / "photos"))
    replace(read_card(stand_in), dataset="in1k").write(stand_in)  # the real one learnt from ImageNet
    (stand_in / "recipe.json").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZOO_HOME", str(folder))
        # Another model by its weights, which is not worse, so that a gallery may be given it.
        assert main(["baseline", "margin-conv4-glyphs", "--as", "better", "--half"]) == 0
        assert main(["export", "better"]) == 0
        words = ["--from", "margin-conv4-glyphs", "--as", "mine", *QUICK]
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


@pytest.fixture
def sandbox(
    sample: Path, gallery: Path, home: Path, products: Products, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sandbox]:
    """Return a folder of its own with the sample's files, galleries and a local zoo."""
    folder = Path(shutil.copytree(sample, tmp_path / "page"))
    for name in ("gallery", "galleries/birds", "galleries/cars"):
        copy(gallery, folder / name)
    own_home = copy(home, tmp_path / "home")
    monkeypatch.setenv("ZOO_HOME", str(own_home))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    sandbox = Sandbox(folder, own_home, gallery, products)
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if page.parent.name == "lab" else [])
        for page in PAGES
        if any(not block.reason for block in blocks(page))
    ],
)
def test_the_blocks_of_a_page_run(page: Path, sandbox: Sandbox) -> None:
    for block in blocks(page):
        if not block.reason:
            sandbox.run(block)


WORDS = {"DIR": "pictures", "MODEL": "mine", "photos/": "pictures/", "2GiB": "64GiB"}
"""What stands in the examples for a value of the reader's own. A process of many tests holds more than 2 GiB."""

NOT_RUN = {
    "dinov2|clip-|timm/|a1_in1k|siglip|hf download|text/|--text|text-tower clip|zoo convert|push ./my-model": "hub",
    "margin-r50-cub": "hub",
    "omniglot|softmax-conv4-cifar100|inshop|cub|net.pth|net.onnx": "data",
    "torchrun|revisiting/figure|zoo reproduce|--dataset folder --data DIR$": "hours",
    "--on ray|milvus|zoo mcp": "server",
}
"""Parts of examples -> why they are not run here (REASONS)."""

BEFORE = {
    "benchmark models": "zoo evaluate photos --dataset folder --data birds.csv --save",
    "benchmark resume": "zoo benchmark run claims/rho --dataset glyphs --seeds 1",
    "embed": "zoo export mine --precision all --calibration pictures",
    "gallery import": "zoo gallery export gallery copy",
    "index": "zoo embed photos pictures --out rows.npy",
    "gallery remove": "zoo gallery add gallery new.jpg --label wren\nzoo gallery add gallery a.png --key cam-1/0001",
    "gallery restore": "zoo gallery backup gallery backups/2026-11-22",
    "gallery rollback": "zoo gallery rebuild gallery --model better --swap",
    "score": "zoo embed mine pictures --out mine.npy\nzoo embed mine pictures --out mine.safetensors --replace",
    "search": "zoo gallery add gallery a.png --key cam-1/0001\nzoo serve birds=gallery cars=galleries/cars",
    "train": "zoo features photos birds -o f",
}
"""Commands whose outcome a command's examples need."""

STATUSES = {"verify": (0, 1), "gallery rebuild": (0, 1)}
"""Exit statuses of examples: few glyphs have not the card's scores, and a model that may be worse is not swapped in."""

LONG = {"baseline", "distill", "duplicates", "export", "features", "finetune", "train"}
LONG |= {"gallery rebuild", "gallery rollback"}
LONG |= {f"benchmark {name}" for name in ("baselines", "compare", "models", "report", "resume", "run", "served")}
"""Commands whose examples take long; `make slow` runs them."""


def example_blocks(name: str) -> Iterator[Block]:
    """Yield the examples in the help of a command, with the reason for those that are not run here."""
    for line in EXAMPLES[name]:
        command = re.split(r"\s{2,}", line.strip())[0]
        reason = next((reason for part, reason in NOT_RUN.items() if re.search(part, command)), "")
        yield Block(0, "sh", with_values(command), reason)


def with_values(command: str) -> str:
    """Return a command with the values of WORDS."""
    return " ".join(WORDS.get(word, word) for word in command.split(" "))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name in EXAMPLES
        if any(not block.reason for block in example_blocks(name))
    ],
)
def test_the_examples_in_the_help_of_a_command_run(name: str, sandbox: Sandbox) -> None:
    for folder in ("my-model", "first", "second", "third"):
        copy(sandbox.home / "models" / "mine", sandbox.folder / folder)
    (sandbox.folder / ".dml-zoo").symlink_to(sandbox.home)
    sandbox.variables["KEY"], sandbox.statuses = KEY, STATUSES.get(name, (0,))
    sandbox.run(Block(0, "sh", BEFORE.get(name, ""), ""))
    for block in example_blocks(name):
        if not block.reason:
            if name == "gallery rebuild":  # its examples are alternatives
                copy(sandbox.gallery, sandbox.folder / "gallery")
            sandbox.run(block)


def reference_examples() -> dict[str, str]:
    """Return the examples in the docstrings of the public names, which are those of the generated reference."""
    modules = [zoo, *(getattr(zoo, name) for name in zoo.__all__ if isinstance(getattr(zoo, name), ModuleType))]
    members = {module.__name__: module for module in modules}
    for module in modules:
        members |= {f"{module.__name__}.{name}": getattr(module, name) for name in getattr(module, "__all__", ())}
    parser = DocTestParser()
    texts = {name: parser.get_examples(inspect.getdoc(member) or "") for name, member in members.items()}
    return {name: "".join(example.source for example in text) for name, text in texts.items() if text}


REFERENCE_EXAMPLES = reference_examples()
VALUES = """
import torch, zoo
embeddings, labels = torch.randn(160, 16, requires_grad=True), torch.arange(160) % 80
"""


@pytest.mark.parametrize("name", REFERENCE_EXAMPLES)
def test_the_examples_of_the_reference_run(name: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    setting_texts, quick = named.setting_texts, [word for word in QUICK if word != "--set"]
    for module in (named, studies_named):
        monkeypatch.setattr(module, "setting_texts", lambda *settings: [*setting_texts(*settings), *quick])
    sandbox.run(Block(0, "python", VALUES + REFERENCE_EXAMPLES[name], ""))


PRINTED = re.compile(r": ((?:zoo|mkdir) .*)$", re.MULTILINE)
"""A command at the end of a line of output."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            "zoo train margin-conv4-cifar100 --set data.dataset=folder --data 'my birds' --as own",
            marks=pytest.mark.slow,
        ),
        pytest.param("zoo finetune 'my birds' --from margin-conv4-glyphs --as fitted", marks=pytest.mark.slow),
        "zoo features mine 'my birds' -o 'my features'",
        pytest.param(
            "zoo features mine birds -o f && zoo train margin-conv4-cifar100 --features f --as heads",
            marks=pytest.mark.slow,
        ),
        "zoo ensemble mine photos --as both",
        "zoo embed mine pictures --out 'my rows.npy' && zoo score 'my rows.npy'",
        "zoo embed mine pictures --out rows.npy --runtime onnx --precision fp16",
        "zoo evaluate margin-conv4-glyphs --save",
        "zoo index margin-conv4-glyphs 'my birds' --out 'my gallery'",
        "zoo gallery add gallery new.jpg --model better",
        "zoo gallery rebuild gallery --model better",
        "zoo gallery rebuild gallery --model better --json && zoo gallery stats gallery",
        "zoo gallery rebuild gallery --model better --swap",
        "zoo gallery stats 'no gallery'",
        "zoo list --dataset omniglot",
        "zoo benchmark compare diva-3 --paper MIC",
    ],
)
def test_a_command_that_is_printed_runs(
    command: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("serving.gallery.gallery.TUNING_ITEMS", 10)
    copy(sandbox.folder / "birds", sandbox.folder / "my birds")
    sandbox.statuses = (0, 1, 2)
    sandbox.run(Block(0, "sh", command, ""))
    printed = capsys.readouterr()
    commands = PRINTED.findall(printed.out + printed.err)
    assert commands, printed
    sandbox.statuses = (0,)
    for hint in commands:
        sandbox.run(Block(0, "sh", with_values(hint.replace("MODEL", "photos")), ""))
