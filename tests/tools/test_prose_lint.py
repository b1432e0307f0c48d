"""The prose lint finds stilted English. `make check` runs it on the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.prose_lint import main

PYTHON = '''"""Rows of a table."""


def rows():
    """{docstring}"""
    return 1  # {comment}
'''


@pytest.mark.parametrize(
    ("docstring", "comment", "faults"),
    [
        ("Return the rows.", "plain", 0),
        ("Whose the rows of a file are.", "plain", 1),
        ("Return the rows.", "a file that is no image", 1),
        ("Return the rows, a line an image.", "made anew", 2),
        ("What is known.", "weights that lie in a folder", 2),
        ("Return whatever is at hand.", "an image that is not there", 2),
        ("Return how many there are.", "there is no file", 0),
    ],
)
def test_faults_of_python(
    docstring: str, comment: str, faults: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.py").write_text(PYTHON.format(docstring=docstring, comment=comment))
    assert main([str(tmp_path)]) == bool(faults)
    assert len(capsys.readouterr().out.splitlines()) == faults


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ('raise UsageError("that is no number", code="is no number")', 1),
        ('raise errors.UsageError(f"{name!r} " + (f"{path} lies in a folder" if path else "is none"))', 2),
        ('Option("--rows", metavar="is no", help="rows a page", epilog="made anew")', 2),
        ('print("is no number")', 0),
        ("raise UsageError(f\"{known['is no']} is unknown\")", 0),
    ],
)
def test_faults_of_messages_and_help_texts(
    line: str, faults: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.py").write_text(f"\n{line}\n")
    assert main([str(tmp_path)]) == bool(faults)
    assert [row.split(":")[1] for row in capsys.readouterr().out.splitlines()] == ["2"] * faults


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Plain words.\n\nMore of them.\n", []),
        ("One.\n\nThat is\nno image.\n", [3]),
        ("`is no image` in code\n\n```sh\nzoo list   # is no image\n```\n", [4]),
        ("| a table | is no image |\n|---|---|\n| b | made anew |\n", [1, 3]),
        ("<!-- is no image -->\nText.\n", []),
    ],
)
def test_faults_of_markdown(text: str, lines: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.md").write_text(text)
    main([str(tmp_path / "page.md")])
    assert [int(line.split(":")[1]) for line in capsys.readouterr().out.splitlines()] == lines


@pytest.mark.parametrize(("name", "line"), [("page.js", "// made anew"), ("page.html", "<p>That is no file.</p>")])
def test_faults_of_the_web_page(name: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text(f"\n{line}\n")
    assert main([str(tmp_path)]) == 1
    assert f"{name}:2:" in capsys.readouterr().out


def test_generated_reports_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("Made anew.\n")
    assert main([str(tmp_path)]) == 0
