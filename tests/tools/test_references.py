"""The generated references have every command, option, setting, metric, path and public name."""

from __future__ import annotations

import re

from typer.core import TyperCommand

import zoo
from serving.app import create_app
from serving.dependencies import Collections
from serving.metrics import REGISTRY
from serving.settings import Settings, settings_table
from tools.references import pages
from zoo.cli import main as cli

PAGES = {place.partition("/")[2]: text for place, text in pages().items()}


def section(page: str, title: str) -> str:
    """Return the section of a page below the heading `title`."""
    return re.split(r"^## ", PAGES[page].partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_a_command_has_a_section_with_its_options_and_examples() -> None:
    for entry in [entry for entry in cli.COMMANDS if entry.module]:
        text = section("commands.md", f"zoo {entry.name}")
        command = cli.load(entry)
        assert isinstance(command, TyperCommand)
        for parameter in command.params:
            option = parameter.opts[-1]
            name = option if option.startswith("-") else str(parameter.metavar or parameter.name)
            assert name.lower() in text.lower(), (entry.name, name)
        for line in (command.epilog or "").replace("\b", "").splitlines():
            assert line in text, entry.name


def test_every_setting_is_in_the_reference() -> None:
    for variable, default, meaning in settings_table():
        assert meaning
        assert re.search(rf"^\|.*\| `{variable}` \| {re.escape(default)} \|", PAGES["settings.md"], re.MULTILINE)


def test_every_metric_of_the_service_is_in_the_reference() -> None:
    own = [family.name for family in REGISTRY.collect() if family.name.startswith("zoo_")]
    assert len(own) > 5
    for name in own:
        assert name in PAGES["metrics.md"]


def test_every_request_and_every_shape_is_in_the_reference() -> None:
    document = create_app(Settings(), Collections(())).openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            text = section("http.md", f"{method.upper()} {path}")
            for name in [parameter["name"] for parameter in operation.get("parameters", ())]:
                assert f"| `{name}` |" in text
            for status in operation["responses"]:
                assert f"| {status} |" in text
    for link in re.findall(r"\]\(#([\w-]+)\)", PAGES["http.md"]):
        assert f"{{#{link}}}" in PAGES["http.md"]


def test_every_public_name_is_in_the_reference() -> None:
    for name in zoo.__all__:
        member = getattr(zoo, name)
        place = f"::: {member.__module__}.{name}\n" if callable(member) else f"## zoo.{name} "
        assert place in PAGES["python.md"]


def test_characters_of_a_help_text_mean_nothing_to_markdown() -> None:
    table = section("commands.md", "zoo finetune")
    assert "<str>" not in table
    assert all(row.count("|") == 3 for row in table.splitlines() if row.startswith("|"))
