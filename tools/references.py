"""References of the documentation site, generated from the code: command line, settings, metrics, HTTP and Python."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib import import_module
from types import ModuleType
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from typer.core import TyperCommand

import zoo
from serving import metrics
from serving.app import create_app
from serving.dependencies import Collections
from serving.openapi import document
from serving.settings import (
    COLLECTIONS,
    DEVICE,
    EMBED,
    GALLERY,
    HOSTS,
    KEYS,
    MODEL,
    PRECISION,
    PREFIX,
    Settings,
    settings_table,
)
from zoo.cli import main as cli
from zoo.render import Table

Json = Mapping[str, Any]

FLAGS = {
    GALLERY: "`GALLERY`",
    COLLECTIONS: "`NAME=GALLERY ...`",
    MODEL: "`--model`",
    DEVICE: "`--device`",
    PRECISION: "`--precision`",
    HOSTS: "",
    EMBED: "`--embed`",
    **dict.fromkeys(KEYS, "`--keys-file F`"),
}
"""How `zoo serve` takes a setting, if not as a flag of the variable's name."""


def on_files(files: Any, config: Any) -> None:
    """Add the generated pages to the site; mkdocs calls this when it has listed the documents."""
    from mkdocs.structure.files import File

    for place, text in pages().items():
        files.append(File.generated(config, place, content=text))


def pages() -> dict[str, str]:
    """Return the generated pages in Markdown by their places below the folder of documents."""
    texts = {
        "commands": "# Command line\n\n" + "\n\n".join(_commands()),
        "settings": f"# Settings\n\n`zoo serve` takes each as a flag or from the environment.\n\n{settings()}",
        "metrics": f"# Metrics\n\n`GET /metrics` answers in Prometheus's text format.\n\n{metric_table()}",
        "http": "# HTTP\n\n" + "\n\n".join(_http(document(create_app(Settings(), Collections(()))))),
        "python": "# Python\n\n" + "\n\n".join(_python(zoo)),
    }
    return {f"reference/{name}.md": f"{text}\n" for name, text in texts.items()}


def settings() -> str:
    """Return the table of all settings in Markdown."""
    rows = []
    for variable, default, meaning in settings_table():
        flag = FLAGS.get(variable, f"`--{variable.removeprefix(PREFIX).lower().replace('_', '-')}`")
        rows.append((flag, f"`{variable}`", default, meaning))
    return Table(("flag", "variable", "default", "meaning"), rows).markdown()


def labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of each metric by its name in /metrics."""
    return {name: metric._labelnames for name, metric in _metrics().items()}


def metric_table() -> str:
    """Return the table of all metrics in Markdown."""
    rows = []
    for name, metric in _metrics().items():
        names = ", ".join(f"`{label}`" for label in metric._labelnames)
        rows.append((f"`{name}`", type(metric).__name__.lower(), names, metric._documentation.rstrip(".")))
    return Table(("metric", "type", "labels", "meaning"), rows).markdown()


def _metrics() -> dict[str, Counter | Gauge | Histogram]:
    """Return the metrics of the service by name; a counter's name ends in _total."""
    found = [metric for metric in vars(metrics).values() if isinstance(metric, Counter | Gauge | Histogram)]
    return {f"{metric._name}_total" if isinstance(metric, Counter) else metric._name: metric for metric in found}


def _commands() -> Iterator[str]:
    """Yield a section per command: usage, description, arguments, options and examples."""
    for entry in cli.COMMANDS:
        if not entry.module:
            continue
        command = cli.load(entry)
        if not isinstance(command, TyperCommand):
            raise TypeError(f"{entry.name!r} is a {type(command).__name__}; expected a TyperCommand")
        context = command.make_context(f"zoo {entry.name}", [], resilient_parsing=True)
        records = [parameter.get_help_record(context) for parameter in command.params]
        rows = [(f"<code>{_plain(name)}</code>", _plain(meaning)) for name, meaning in filter(None, records)]
        yield f"## zoo {entry.name}"
        yield f"```text\n{' '.join((context.command_path, *command.collect_usage_pieces(context)))}\n```"
        yield _plain(command.help)
        yield Table(("argument or option", "meaning"), rows).markdown()
        if command.epilog:
            yield f"```text\n{command.epilog.replace(chr(8), '').strip(chr(10))}\n```"


def _http(api: Json) -> Iterator[str]:
    """Yield a section per request of an OpenAPI document, then one per shape of the bodies."""
    yield _plain(api["info"]["description"])
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            yield f"## {method.upper()} {path}"
            yield _plain(f"{operation.get('summary', '')}.\n\n{operation.get('description', '')}")
            yield from _parameters(operation)
            yield from _bodies(operation)
    for name, schema in api["components"]["schemas"].items():
        yield f"## {name} {{#{name.lower()}}}"
        yield _plain(schema.get("description", ""))
        yield from _properties(schema)


def _parameters(operation: Json) -> Iterator[str]:
    rows = [
        (f"`{each['name']}`", each["in"], _type(each["schema"]), _plain(each.get("description", "")))
        for each in operation.get("parameters", ())
    ]
    if rows:
        yield Table(("parameter", "in", "type", "meaning"), rows).markdown()


def _bodies(operation: Json) -> Iterator[str]:
    """Yield the table of the body and the answers of a request."""
    sent = operation.get("requestBody", {}).get("content", {})
    rows = [("request", f"`{kind}`", _type(part.get("schema", {}))) for kind, part in sent.items()]
    for status, answer in operation["responses"].items():
        meaning = answer["description"]
        if meaning == "Successful Response":
            meaning = HTTPStatus(int(status)).phrase
        types = [_type(part.get("schema", {})) for part in answer.get("content", {}).values()]
        rows.append((status, _plain(meaning), ", ".join(dict.fromkeys(types))))
    yield Table(("message", "what", "shape"), rows).markdown()


def _properties(schema: Json) -> Iterator[str]:
    rows = [
        (f"`{name}`", _type(value), _plain(value.get("description", "")))
        for name, value in schema.get("properties", {}).items()
    ]
    if rows:
        yield Table(("field", "type", "meaning"), rows).markdown()


def _type(schema: Json) -> str:
    """Return the type of a JSON schema in Markdown, with a link to a named shape."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, options)))
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return schema.get("format") or schema.get("type") or "any"


def _python(module: ModuleType) -> Iterator[str]:
    """Yield a section per public name of a module, from which mkdocstrings renders its docstring; modules come last."""
    yield f"## {module.__name__} {{#{module.__name__.replace('.', '-')}}}"
    yield _plain((module.__doc__ or "").split("\n\n")[0])
    own = [(name, value) for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    classes = [name for name, value in own if isinstance(value, type) and not name.startswith("_")]
    members = {name: getattr(module, name) for name in getattr(module, "__all__", classes)}
    for name, member in members.items():
        if callable(member):
            yield f"::: {member.__module__}.{member.__qualname__}\n    options:\n      heading_level: 3"
        elif not isinstance(member, ModuleType):
            yield f"### {name}\n\n`{module.__name__}.{name}`, {type(member).__name__}"
    for name, member in members.items():
        if isinstance(member, ModuleType):
            yield from _python(import_module(f"{module.__name__}.{name}"))


def _plain(text: str | None) -> str:
    """Return a text whose characters mean nothing to Markdown and HTML; paragraphs and code spans stay."""
    return re.sub(r"`[^`]*`|[*_\[\]|<>&]", lambda match: _entities(match[0]), text or "")


def _entities(text: str) -> str:
    return text if text.startswith("`") else "".join(f"&#{ord(character)};" for character in text)
