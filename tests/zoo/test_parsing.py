"""What comes after -- is a word of the command, whatever it begins with, and wherever its options stand."""

from __future__ import annotations

from argparse import Action, Namespace
from pathlib import Path

import pytest

from zoo.cli import bridge
from zoo.cli.main import main
from zoo.cli.parsing import Parser

COMMANDS = {name: bridge.load(name) for name in bridge.COMMANDS}


def parser(name: str) -> Parser:
    made = Parser(prog=f"zoo {name}", allow_abbrev=False)
    COMMANDS[name].configure(made)
    return made


def words_of(made: Parser) -> list[Action]:
    """The words that a command takes; none where they are numbers, or of a list."""
    words = [each for each in made._actions if not each.option_strings]
    return words if all(each.type in (None, Path) and not each.choices for each in words) else []


WITH_WORDS = [name for name in COMMANDS if words_of(parser(name))]


@pytest.mark.parametrize("name", WITH_WORDS)
def test_words_that_begin_with_a_dash(name: str) -> None:
    """All of them after --, and all but the last before it, with the options in between or at the beginning."""
    made = parser(name)
    words = words_of(made)
    options = [word for each in made._actions if each.required and each.option_strings for word in _given(each)]
    options += [name for name, option in made._option_string_actions.items() if name == "--json" and option.nargs == 0]
    given = [f"-{place}.png" for place in range(len(words))]
    head = [word.replace("-", "x") for word in given[:-1]]
    for before, after in ((options, given), ([*head, *options], given[-1:]), ([*options, *head], given[-1:])):
        found = made.parse([*before, "--", *after])
        assert _words(found, words) == (given if after == given else [*head, *after])
        assert not hasattr(found, "json") or found.json is True


def _given(option: Action) -> list[str]:
    return [option.option_strings[0], next(iter(option.choices)) if option.choices else "1"]


def _words(found: Namespace, words: list[Action]) -> list[str]:
    values = [getattr(found, each.dest) for each in words]
    return [str(one) for value in values for one in (value if isinstance(value, list) else [value])]


def test_there_are_commands_with_paths() -> None:
    assert {"search", "embed", "score", "index", "gallery add", "benchmark report"} <= {*WITH_WORDS}


def test_an_option_of_several_values_ends_at_the_mark() -> None:
    made = Parser()
    made.add_argument("model")
    made.add_argument("--precision", nargs="+")
    found = made.parse(["--precision", "fp16", "int8", "--", "-model"])
    assert (found.precision, found.model) == (["fp16", "int8"], "-model")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["g", "-k", "2", "--", "--"], ("g", "--")),
        (["--", "g", "--"], ("g", "--")),
        (["--", "--", "-k"], ("--", "-k")),
        (["g", "--"], ("g", None)),
    ],
)
def test_a_mark_after_the_mark_is_a_word(words: list[str], found: tuple[str, str | None]) -> None:
    made = Parser()
    made.add_argument("gallery")
    made.add_argument("image", nargs="?")
    made.add_argument("-k")
    given = made.parse(words)
    assert (str(given.gallery), given.image if given.image is None else str(given.image)) == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["g", "-q", "--", "-a"], "unrecognized arguments: -q"),
        (["g", "-k", "--", "-a"], "argument -k: expected one argument"),
        (["-k", "2", "--", "-a", "-b", "-c"], "unrecognized arguments: -c"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser()
    made.add_argument("gallery")
    made.add_argument("image", nargs="?")
    made.add_argument("-k")
    with pytest.raises(SystemExit, match="2"):
        made.parse(words)
    assert said in capsys.readouterr().err


def test_files_whose_names_begin_with_a_dash(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through all of a command: embedded, scored, indexed and looked at."""
    monkeypatch.chdir(tmp_path)
    Path("-pictures").symlink_to(pictures)
    model = ["margin-conv4-glyphs", "--runtime", "onnx"]
    assert main(["embed", *model, "--out=-rows.npy", "--", "-pictures"]) == 0
    assert main(["score", "--labels=-rows.csv", "--", "-rows.npy"]) == 0
    assert main(["index", *model, "--out=-gallery", "--", "-pictures"]) == 0
    capsys.readouterr()
    assert main(["gallery", "stats", "--json", "--", "-gallery"]) == 0
    assert '"items"' in capsys.readouterr().out
