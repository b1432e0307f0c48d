"""Keys from a file, `zoo serve --keys-file F`: lines NAME=KEYS, as systemd reads them in an EnvironmentFile."""

from __future__ import annotations

from pathlib import Path

from serving.configuration import KEYS
from zoo.errors import UsageError


def read_keys(path: Path) -> dict[str, str]:
    """The variables of keys that the file sets. Raises `UsageError`, which shows nothing that may be a key."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{path} holds other characters than ASCII, which no key has.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    return dict(_variable(path, number, line) for number, line in enumerate(lines, 1) if _says_something(line))


def _says_something(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _variable(path: Path, number: int, line: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in line.partition("="))
    if not equals or not name.startswith(KEYS):
        expected = " or ".join(f"{variable}[_COLLECTION]=KEY" for variable in KEYS)
        raise UsageError(f"line {number} of {path} is not as {expected}.")
    return name, value.strip("\"'")
