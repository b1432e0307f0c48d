"""`zoo benchmark`: commands around published numbers. Each package offers its own, as it does for `zoo` itself."""

from __future__ import annotations

from zoo.cli.command import CommandGroup

COMMANDS = CommandGroup("published numbers beside ours, and reports of single models", "zoo.benchmark.commands")
