"""The command line parses every `zoo` command of the documents, of the examples in the help texts, and of messages.

Links of the documents lead to files that exist, and a guide is short.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup

from tools.references import pages
from zoo.cli import main as cli

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)")
REFERENCES = {"architecture.md", "papers.md", "README.md"}
FENCE = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(zoo (?:(?:benchmark|gallery) [a-z-]+|(?!benchmark|gallery)[a-z-]+) [^-A-Z`\s][^A-Z`]*)`")
ENDS = {"&&", ";", "|", "do", "done", ">", "&"}


def commands_of(line: str) -> Iterator[list[str]]:
    """Yield the words of each `zoo` command in a line of a shell, unless it has a variable or "..."."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in ENDS:
            words.append(word)
            continue
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if words[:1] == ["zoo"] and "$" not in "".join(words) and "..." not in words:
            yield words[1:]
        words = []


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of the blocks, and the commands in the prose that are whole: without options alone or places."""
    for block in FENCE.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    yield from INLINE.findall(ANY_FENCE.sub("", text))


def examples() -> dict[str, list[str]]:
    """Return the lines of the examples in the help of each command, by its name."""
    pages = {entry.name: (cli.load(entry).epilog or "") if entry.module else "" for entry in cli.COMMANDS}
    return {
        name: [line for line in page.replace("\\\n", " ").splitlines() if line.startswith("  ")]
        for name, page in pages.items()
    }


EXAMPLES = examples()


PROPOSED = re.compile(r"[:(`] ?(zoo [a-z].*?)(?=[)`\n]|\.(?: |$)|[;,] |$)", re.MULTILINE)
"""A command in a message: after a colon, in parentheses or in backticks."""


def proposals() -> Iterator[tuple[str, list[str]]]:
    """Yield the file and the words of each command that a message in the code proposes; VALUE stands for a value.

    Lower-case words after the command's name are prose, and a name alone is a mention.
    """
    files = [file for package in ("zoo", "training", "exports", "serving") for file in (ROOT / package).rglob("*.py")]
    for file in sorted(files):
        tree = ast.parse(file.read_text("utf-8"))
        inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command":
                if not isinstance(node.args[1], ast.Starred):
                    yield file.name, [text_of(word) for word in node.args if not isinstance(word, ast.Starred)]
            elif isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in inside:
                for words in (words for text in PROPOSED.findall(text_of(node)) for words in commands_of(text)):
                    rest = words[2:] if words[0] in ("gallery", "benchmark") else words[1:]
                    if rest and re.match(r"[A-Z-]", rest[0]) and words[0].isalpha():
                        yield file.name, words


def text_of(node: ast.expr) -> str:
    """Return the text of an expression, with VALUE for the parts that are not constant."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "VALUE"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the document or command that shows each command, and its words."""
    for document in DOCUMENTS:
        for line in lines_of(document.read_text("utf-8")):
            yield from ((document.name, words) for words in commands_of(line))
    for name, lines in EXAMPLES.items():
        # An explanation follows an example after two blanks or more.
        examples_alone = [re.split(r"\s{2,}", line.strip())[0] for line in lines]
        yield from ((name, words) for example in examples_alone for words in commands_of(example))
    yield from proposals()


SHOWN = list(commands())


def test_there_are_commands() -> None:
    assert len(SHOWN) > 100
    assert {"README.md", "publish.md", "train", "serve", "gallery rebuild"} <= {name for name, _ in SHOWN}


def test_every_link_leads_to_a_file_that_exists() -> None:
    """`make docs` also checks anchors, and that documents link to nothing outside `docs/`."""
    generated = {(ROOT / "docs" / place).resolve() for place in pages()}
    lost = []
    for page in DOCUMENTS:
        for link in LINK.findall(ANY_FENCE.sub("", page.read_text("utf-8"))):
            place = (page.parent / link).resolve()
            if "://" not in link and not place.exists() and place not in generated:
                lost.append((page.name, link))
    assert lost == []


def test_a_guide_is_short() -> None:
    lengths = {guide.name: len(guide.read_text("utf-8").splitlines()) for guide in (ROOT / "docs").glob("*.md")}
    assert {name: lines for name, lines in lengths.items() if lines > 120 and name not in REFERENCES} == {}


def test_the_command_line_parses_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def load(entry: cli.Entry, load=cli.load) -> TyperCommand | TyperGroup:
        command = load(entry)
        if isinstance(command, TyperCommand):
            command.callback = lambda **options: calls.append(options)
        return command

    monkeypatch.setattr(cli, "load", load)
    wrong = []
    for source, words in SHOWN:
        calls.clear()
        status = cli.main(words)
        if status != 0 or not (calls or "--help" in words):
            wrong.append((source, words, status, capsys.readouterr().err))
    assert wrong == []
