"""The command line's entry: finds the subcommands that the packages offer, runs one, and words what goes wrong."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from argparse import RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version

from zoo.cli.command import Command, CommandGroup
from zoo.cli.output import printable
from zoo.cli.parsing import Parser
from zoo.errors import MissingDependencyError, UsageError, ZooError, missing, nearest

DISTRIBUTION = "dml-zoo"
TOP = CommandGroup(
    "deep metric learning you can use: train by recipe, load by name, measure, export, serve", "zoo.commands"
)

STATUSES = (
    "Exit status: 0 all is well; 1 a check failed, or the machine, a file or the network did; 2 wrong usage, or what "
    "was\nnamed is not there (a model, a data set, a gallery, an item)."
)
INTERRUPTED, PIPE_CLOSED = 130, 141
"""Exit statuses as a shell gives them for SIGINT and SIGPIPE."""

AGAIN = "; the same command, given again, goes on from what is kept"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `zoo` with the given arguments (default: those of the process) and return its exit status.

    A `ZooError` becomes one message on stderr and the error's `exit_code`, an `OSError` one and 1; any other exception
    is a bug and keeps its traceback.
    """
    try:
        status = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
        return status
    except ZooError as error:
        print(f"zoo: error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        print(f"zoo: interrupted{interrupt}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`zoo list | head -1`); what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        # A full disk, a folder that may not be written to: the machine's state, which a traceback would not explain.
        print(f"zoo: error: {printable(_of_the_machine(error))}", file=sys.stderr)
        return ZooError.exit_code


def _of_the_machine(error: OSError) -> str:
    """What the system says, of which file, and what to do about a full disk."""
    reasons = error.args[0] if isinstance(error, shutil.Error) else None
    if isinstance(reasons, list) and reasons:  # of a copied folder: every file and why; one says it
        source, _, why = reasons[0]
        return f"{source} could not be copied: {why}"
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full. Make room, or name another folder; nothing half-written was left behind."
    return f"{where}{error.strerror}." if error.strerror else str(error)


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        print(DISTRIBUTION, version(DISTRIBUTION))
        return 0
    return _choose(TOP, arguments, "zoo")


def _choose(group: CommandGroup, arguments: list[str], prog: str) -> int:
    """Run the command of the group that the first argument names; it may be a group in turn."""
    commands = {point.name: point for point in entry_points(group=group.entry_points)}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(group, commands, prog))
        return 0
    command, name = _load(_find(arguments[0], commands, prog)), f"{prog} {arguments[0]}"
    if isinstance(command, CommandGroup):
        return _choose(command, arguments[1:], name)
    return _run(command, arguments[1:], name)


def _find(name: str, commands: dict[str, EntryPoint], prog: str) -> EntryPoint:
    if name.startswith("-"):
        raise UsageError(f"no option {name!r} before a command. All commands: {prog} --help")
    if name not in commands:
        raise UsageError(f"no command {name!r}.{nearest(name, commands)} All commands: {prog} --help")
    return commands[name]


def _run(command: Command, arguments: list[str], prog: str) -> int:
    parser = Parser(
        prog=prog,
        description=command.summary,
        epilog=f"examples:\n{command.examples}" if command.examples else None,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.configure(parser)
    options = parser.parse(arguments)
    try:
        return command.run(options) or 0
    except KeyboardInterrupt:
        raise KeyboardInterrupt(AGAIN if command.resumes(options) else "") from None
    except ModuleNotFoundError as error:
        if absent := _missing(error):
            raise absent from None
        raise


def _load(point: EntryPoint) -> Command | CommandGroup:
    """The command that an entry point names. Raises `MissingDependencyError` or, for a broken package, `ZooError`."""
    try:
        command = point.load()
    except Exception as error:  # whatever a package does while it is imported
        absent = _missing(error) if isinstance(error, ModuleNotFoundError) else None
        raise absent or ZooError(f"{point.value} cannot be loaded: {type(error).__name__}: {error}.") from error
    if not isinstance(command, Command | CommandGroup):
        raise ZooError(f"{point.value} is no zoo.cli.command.Command.")
    return command


def _missing(error: ModuleNotFoundError) -> MissingDependencyError | None:
    """What to install for a module that was not found; None where its package is there, which makes it a bug."""
    module = (error.name or "").partition(".")[0]
    if not module or sys.modules.get(module) is not None:
        return None
    if extra := _extra_of(module):
        return missing(module, extra)
    return MissingDependencyError(f"the module {module!r} is needed for this and is not installed.")


def _extra_of(module: str) -> str | None:
    """The smallest of this distribution's extras that brings the module; `faiss` comes as faiss-cpu or faiss-gpu."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    pattern = re.compile(r"([\w-]+).*extra\s*==\s*['\"](\w+)['\"]")
    pairs = [match.groups() for line in requirements if (match := pattern.match(line))]
    sizes = Counter(extra for _, extra in pairs)
    brings = [extra for name, extra in pairs if re.fullmatch(rf"{re.escape(module)}(-\w+)*", name)]
    return min(brings, key=lambda extra: sizes[extra], default=None)


def _overview(group: CommandGroup, commands: dict[str, EntryPoint], prog: str) -> str:
    width = max(map(len, commands), default=0)
    lines = [f"  {name:{width}}  {_summary(point)}" for name, point in sorted(commands.items())]
    more = "; zoo --version prints the version" if group is TOP else ""
    head = [
        f"usage: {prog} COMMAND [arguments]",
        "",
        f"{group.summary[0].upper()}{group.summary[1:]}.",
        "",
        "commands:",
    ]
    return "\n".join(
        [*head, *lines, "", f"{prog} COMMAND --help says more{more}.", *([STATUSES] if group is TOP else [])]
    )


def _summary(point: EntryPoint) -> str:
    try:
        return _load(point).summary
    except ZooError as error:
        return f"(not available: {error})"


if __name__ == "__main__":
    sys.exit(main())
