"""Compare two OpenAPI documents: paths, methods, parameters with their schemas, bodies, and the statuses of answers.

    python -m tools.compare_openapi before.json after.json

It prints a line per difference and exits with 1 if there is any. Titles, descriptions and examples are ignored, and so
are differences without a meaning: the ways to write an optional value, a parameter that may be null, which no query
string can say, an absent default and a default of null, and "additionalProperties": true.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
WORDS = ("title", "description", "summary", "examples", "operationId")


def main() -> None:
    """Print the differences of the two documents that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    before, after = (json.loads(path.read_text()) for path in (arguments.before, arguments.after))
    lines = list(differences(before, after))
    print("\n".join(lines) or "no differences")
    sys.exit(1 if lines else 0)


def differences(before: Json, after: Json) -> Iterator[str]:
    """Yield a line per difference."""
    yield from _keys("path", before["paths"], after["paths"])
    for path in sorted(before["paths"].keys() & after["paths"].keys()):
        old, new = before["paths"][path], after["paths"][path]
        yield from _keys(f"{path}: method", old, new)
        for method in sorted(old.keys() & new.keys()):
            place = f"{method.upper()} {path}"
            yield from _operation(
                place, Document(before).operation(old[method]), Document(after).operation(new[method])
            )


def _operation(place: str, old: Mapping[str, Json], new: Mapping[str, Json]) -> Iterator[str]:
    for kind in old:
        yield from _keys(f"{place}: {kind}", old[kind], new[kind])
        for name in sorted(old[kind].keys() & new[kind].keys()):
            yield from _schemas(f"{place}: {kind} {name}", old[kind][name], new[kind][name])


def _schemas(place: str, old: Any, new: Any) -> Iterator[str]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield f"{place}: {json.dumps(old)} -> {json.dumps(new)}"
        return
    for key in sorted(old.keys() | new.keys()):
        if key not in old or key not in new:
            yield f"{place}: {key} {'added' if key in new else 'removed'}: {json.dumps({**old, **new}[key])[:150]}"
        else:
            yield from _schemas(f"{place}.{key}", old[key], new[key])


def _keys(place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{place} {name} removed" for name in sorted(old.keys() - new.keys()))
    yield from (f"{place} {name} added" for name in sorted(new.keys() - old.keys()))


class Document:
    """OpenAPI document whose references are resolved and whose schemas are written in one way."""

    def __init__(self, document: Json) -> None:
        self.document = document

    def operation(self, operation: Json) -> dict[str, Json]:
        """Return parameters, bodies and answers of an operation, each by its name."""
        parameters = {
            f"{one['in']} {one['name']}": {**self.parameter(one["schema"]), "required": one.get("required", False)}
            for one in operation.get("parameters", [])
        }
        body = operation.get("requestBody", {}).get("content", {})
        answers = {
            f"{status} {media_type}".strip(): self.schema(content.get("schema", {}))
            for status, answer in operation["responses"].items()
            for media_type, content in (answer.get("content") or {"": {}}).items()
        }
        bodies = {media_type: self.schema(content.get("schema", {})) for media_type, content in body.items()}
        return {"parameter": parameters, "body": bodies, "answer": answers}

    def parameter(self, schema: Json) -> Json:
        """Return the schema of a parameter, which cannot be null."""
        found: Json = self.schema(schema)
        if isinstance(found.get("type"), list):
            types = [one for one in found["type"] if one != "null"]
            found["type"] = types if len(types) > 1 else types[0]
        return found

    def schema(self, schema: Any) -> Any:
        """Return a schema without references, words and the variants of writing one thing."""
        if isinstance(schema, list):
            return [self.schema(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            return self.schema(self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        kept = {key: value for key, value in schema.items() if key not in WORDS}
        if kept.get("default", "") is None:
            del kept["default"]
        if kept.get("additionalProperties") is True:
            del kept["additionalProperties"]
        if "properties" in kept:
            kept["properties"] = {name: self.schema(one) for name, one in kept["properties"].items()}
            kept["required"] = sorted(kept.get("required", []))
        for key in ("items", "anyOf"):
            if key in kept:
                kept[key] = self.schema(kept[key])
        return _without_null(kept)


def _without_null(schema: Json) -> Json:
    """Write "this or null" as a list of types, and an alternative of one as that one."""
    types = schema.get("type")
    if isinstance(types, list):
        schema = {**schema, "type": sorted(types)}
    if "anyOf" not in schema:
        return schema
    choices = [one for one in schema["anyOf"] if one.get("type") != "null"]
    nullable = len(choices) < len(schema["anyOf"])
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if len(choices) > 1 and not all(set(one) == {"type"} for one in choices):
        return {**rest, "anyOf": choices, **({"nullable": True} if nullable else {})}
    types = sorted({one["type"] for one in choices if "type" in one} | ({"null"} if nullable else set()))
    merged = {**rest, **choices[0]} if len(choices) == 1 else rest
    return {**merged, "type": types if len(types) > 1 else types[0]} if types else merged


if __name__ == "__main__":
    main()
