"""Prose lint: finds stilted English in Markdown, docstrings, comments, error messages, help texts and the web page.

Usage: python tools/prose_lint.py [PATH ...]      default: the paths in CLEAN; prints FILE:LINE: message
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")
# `make check` checks these paths, except those whose prose is not clean yet.
CLEAN = (
    *PAGES,
    "Makefile",
    "demo.py",
    "deploy",
    "examples",
    "exports",
    "serving",
    "tests",
    "tools",
    "training",
    "zoo",
)
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".yaml", ".service", ".toml"}
NAMES = {"Makefile", "Containerfile"}

NOUNS = (
    "array|batch|byte|card|class|cell|client|column|core|day|epoch|file|folder|gallery|graph|head|host|image|item|key|label|"
    "line|list|machine|matrix|method|minute|model|month|number|page|parameter|process|query|recipe|request|row|run|sample|"
    "search|second|seed|step|study|table|test|value|variant|vector|view|worker"
)
# One rule per line: a pattern (case is ignored), two blanks, and what to write instead.
RULES = r"""
(?<!there )\b(is|are|was|were) no (?!longer\b|more than\b|less than\b|better\b|faster\b|slower\b)[a-z]+  "is not a"
\b(is|are|was|were) none\b  "is not a", or name the thing
\bnor (is|are|do|does|did|has|have|can|was|were)\b  a sentence with "not"
\ba (NOUN) an? [a-z]+  "one ... per ..."
\b(NOUN)s an? (NOUN)\b  "per"
\banew\b  "again"
\bat hand\b  "available"
\bso many\b  "this many"
\bas (it is|they are)\b(?! (drawn|not|now))  "unchanged"
\b(is|are|was|were) told\b  "is reported"
\bcan(not)? be had\b  "is available"
\b(whom|whoever|whichsoever|whatever)\b  the name of the person or thing
\b(lie|lies|lay) (in|at|on|beside|below|above|behind|there)\b  "is in", "is stored in"
\bbesides? what\b  the name of the thing
\b(goes|go|went) on (where|with|from)\b  "continues"
\b(that|which|who) there (is|are) (not|none)\b  "does not exist"
\b(is|are) there (already|not)\b  "exists"
\bof one's own\b  "your own"
[.;:] (Whose|By what|From what|That which)\b  a sentence that begins with its subject
"""
PATTERNS = [
    (re.compile(pattern.replace("NOUN", NOUNS), re.IGNORECASE), advice)
    for pattern, advice in (line.split("  ") for line in RULES.strip().splitlines())
]
OPENER = re.compile(r"(?:What|Whose|Whether|Those|By what|How|Why|Who|That|From what|Of (?:a|the|each|one|what)|As)\b")


class Text(NamedTuple):
    """One piece of prose: the line on which it begins, the text, and whether it is a docstring."""

    line: int
    text: str
    docstring: bool = False


def python_texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, comments, error messages and help texts of a Python module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node, clean=False):
                yield Text(node.body[0].lineno, docstring, docstring=True)
        elif isinstance(node, ast.Call):
            yield from call_texts(node)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string.lstrip("# "))


def call_texts(call: ast.Call) -> Iterator[Text]:
    """Yield the message of `SomeError(message)`, and the texts of the arguments `help` and `epilog` of any call."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    messages = call.args if name.endswith("Error") else []
    helps = [keyword.value for keyword in call.keywords if keyword.arg in ("help", "epilog")]
    for expression in (*messages, *helps):
        yield from strings(expression)


def strings(expression: ast.expr) -> Iterator[Text]:
    """Yield the string literals of an expression; a value inside an f-string counts as one neutral word."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield Text(expression.lineno, expression.value)
    elif isinstance(expression, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "X" for part in expression.values)
        yield Text(expression.lineno, "".join(map(str, parts)))
    elif isinstance(expression, ast.BinOp):
        yield from (*strings(expression.left), *strings(expression.right))
    elif isinstance(expression, ast.IfExp):
        yield from (*strings(expression.body), *strings(expression.orelse))


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield the paragraphs of a Markdown page, and the comments in its code blocks, without code spans."""
    blank = re.compile(r"^( *```).*?^\1|<!--.*?-->|`[^`\n]+`", re.MULTILINE | re.DOTALL)
    comments = re.compile(r"(?<=\s)# .*$", re.MULTILINE)

    def keep(match: re.Match[str]) -> str:
        """Return the comments of a block, or one neutral word for a code span; keep the number of lines."""
        if not match[1]:
            return "X" + "\n" * match[0].count("\n")
        lines = match[0].split("\n")
        return "\n".join("; ".join(comments.findall(line)) for line in lines)

    yield from paragraphs(blank.sub(keep, source))


def page_texts(source: str, comment: str) -> Iterator[Text]:
    """Yield the lines of a script, style sheet or configuration that hold comments or texts between quotation marks."""
    for number, line in enumerate(source.splitlines(), 1):
        for match in re.finditer(rf"{comment}|\"([^\"]*)\"|'([^']*)'|`([^`]*)`|>([^<>]+)<", line):
            yield Text(number, next((group for group in match.groups() if group), ""))


def paragraphs(source: str) -> Iterator[Text]:
    """Yield the paragraphs, table rows and list items of a text."""
    for match in re.finditer(
        r"(?:^(?!\s*$|\||\s*[-*] |#).*\n?)+|^(?:\||\s*[-*] |#).*\n?(?:^  +\S.*\n?)*", source, re.MULTILINE
    ):
        yield Text(source.count("\n", 0, match.start()) + 1, match[0])


def texts(path: Path) -> Iterable[Text]:
    """Return the prose of a file, by its suffix."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return python_texts(source)
    if path.suffix == ".md":
        return markdown_texts(source)
    return page_texts(source, r"(?:/\*\*?|//|\s\*|#) (.*?)(?:\*/|$)")


def faults(piece: Text) -> Iterator[tuple[int, str]]:
    """Yield the line and the message of each fault in a piece of prose."""
    for pattern, advice in PATTERNS:
        for match in pattern.finditer(re.sub(r"\s", " ", piece.text)):
            yield piece.line + piece.text.count("\n", 0, match.start()), f'"{match[0].strip()}": write {advice}'
    if piece.docstring and (opener := OPENER.match(piece.text)):
        yield piece.line, f'"{opener[0]} ...": begin with a verb, or with the noun that is defined'


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to check, and those inside folders except the generated reports of studies."""
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            is_prose = file.suffix in SUFFIXES or file.name in NAMES or file == path
            if file.is_file() and is_prose and file.stem != "report":
                yield file


def main(arguments: list[str]) -> int:
    """Print every fault in the paths; return 1 if there are any."""
    count = 0
    for file in files([Path(name) for name in arguments] or [ROOT / name for name in CLEAN]):
        name = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
        for piece in texts(file):
            for line, message in faults(piece):
                print(f"{name}:{line}: {message}")
                count += 1
    return int(count > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
