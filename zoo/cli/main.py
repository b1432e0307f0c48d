"""The `zoo` command: a table of commands, loaded one at a time, and errors as messages and exit statuses."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command_from_info, get_command_name

from zoo.console import duration, note, printable
from zoo.errors import MissingDependencyError, UsageError, ZooError, missing, nearest, unknown

DISTRIBUTION = "dml-zoo"

HEAD = """\
Deep metric learning you can use: train by recipe, load by name, measure, export, serve.

Start here: zoo list shows the models, and these two lines search a folder of images:
  zoo index photos DIR --out GALLERY
  zoo search GALLERY IMAGE"""

STATUSES = """\
Exit status: 0 success; 1 a check failed, or a problem with the machine, a file or the network; 2 wrong usage, or a
model, data set, gallery or item that does not exist."""

OPTION_LIKE = re.compile(r"-(?!\.?\d|$)")
"""Beginning of a word that is an option or "--"; -1 and -.5 are numbers, and "-" is a value."""

INTERRUPTED, PIPE_CLOSED = 130, 141
"""Exit statuses that a shell gives for SIGINT and SIGPIPE."""

EXPECTED = {"int_parsing": "a whole number", "float_parsing": "a number"}
"""Names of what a value should be, by the type of pydantic's error."""

CONTINUES = "; the same command continues from what it has kept"


@dataclass(frozen=True)
class Entry:
    """A row of the table of commands.

    Attributes:
        name: The words after `zoo`, as "gallery add".
        module: The module whose `app` has the command, registered under the last word; "" for a group of commands.
        panel: The heading in the help.
        summary: The first line of the command's docstring.
        resumes: Whether the same command continues from what an interrupted one has kept, unless --restart is given.
    """

    name: str
    module: str
    panel: str
    summary: str
    resumes: bool = False

    @property
    def word(self) -> str:
        """The last word of the name."""
        return self.name.rpartition(" ")[2]

    @property
    def group(self) -> str:
        """The name of the group that the command is in; "" for `zoo` itself."""
        return self.name.rpartition(" ")[0]


MODELS, SEARCH, MEASURE, TRAIN, PUBLISH = "models", "search", "measure", "train", "publish"
ITEMS, INDEX, COPIES = "items", "index and model", "copies"
PUBLISHED, MEASURED, STUDIES = "published numbers", "models", "studies"

GALLERY_ITEMS, GALLERY_UPKEEP = "zoo.cli.gallery", "zoo.cli.gallery_upkeep"

COMMANDS = (
    Entry("list", "zoo.cli.models", MODELS, "list the models: trained here, shipped, or on the Hub"),
    Entry("info", "zoo.cli.models", MODELS, "show a model's card, files, measured and published scores"),
    Entry("verify", "zoo.cli.models", MODELS, "check a model's files and golden embeddings, and measure it again"),
    Entry("baseline", "zoo.cli.models", MODELS, "save weights of any kind as a model of your own, whitened if wanted"),
    Entry("index", "zoo.cli.index", SEARCH, "index a folder or table of images into a gallery", resumes=True),
    Entry("search", "zoo.cli.search", SEARCH, "find the images of a gallery nearest to an image, a text or several"),
    Entry("duplicates", "zoo.cli.duplicates", SEARCH, "find copies of one picture in a folder or a gallery"),
    Entry("serve", "zoo.cli.serve", SEARCH, "serve galleries over HTTP, with a page to search them"),
    Entry("mcp", "zoo.cli.mcp", SEARCH, "let a language model search a gallery, by MCP over stdin and stdout"),
    Entry("gallery", "", SEARCH, "look after a gallery: its items, its index, its copies"),
    Entry("evaluate", "zoo.cli.evaluate", MEASURE, "measure a model's retrieval on classes it never saw"),
    Entry("embed", "zoo.cli.evaluate", MEASURE, "write the embeddings of a folder or table of images to a file"),
    Entry("score", "zoo.cli.evaluate", MEASURE, "measure embeddings of any origin, from files"),
    Entry("data", "zoo.cli.evaluate", MEASURE, "write a data set's images as a folder, one subfolder per class"),
    Entry("benchmark", "", MEASURE, "compare with published numbers, report on models, run studies"),
    Entry("train", "zoo.cli.train", TRAIN, "train a model by its recipe into the local zoo", resumes=True),
    Entry("reproduce", "zoo.cli.reproduce", TRAIN, "train a model again, and compare the scores"),
    Entry("finetune", "zoo.cli.finetune", TRAIN, "fit a model to your own images, and measure it", resumes=True),
    Entry("distill", "zoo.cli.finetune", TRAIN, "train a small model to embed as a strong one does", resumes=True),
    Entry("doctor", "zoo.cli.doctor", TRAIN, "say whether a training run is healthy, and which setting to try if not"),
    Entry("features", "zoo.cli.train", TRAIN, "keep the features of a model's trunk, to train heads in minutes"),
    Entry("ensemble", "zoo.cli.models", TRAIN, "join trained models into one that concatenates their embeddings"),
    Entry("convert", "zoo.cli.models", TRAIN, "convert a file of weights to a model folder"),
    Entry("export", "zoo.cli.export", PUBLISH, "export a model to ONNX and prove it equal to the torch model"),
    Entry("text-tower", "zoo.cli.export", PUBLISH, "add a text tower to a model, so that texts find its images"),
    Entry("push", "zoo.cli.push", PUBLISH, "check a model and push it to the Hugging Face Hub"),
    Entry("gallery add", GALLERY_ITEMS, ITEMS, "add single images to a gallery"),
    Entry("gallery remove", GALLERY_ITEMS, ITEMS, "remove items from a gallery"),
    Entry("gallery list", GALLERY_ITEMS, ITEMS, "list the items of a gallery"),
    Entry("gallery stats", GALLERY_ITEMS, INDEX, "show the size of a gallery and its index"),
    Entry("gallery compact", GALLERY_ITEMS, INDEX, "rewrite a gallery's index with all changes since"),
    Entry("gallery verify", GALLERY_ITEMS, INDEX, "check a gallery's database, its index and its searches"),
    Entry("gallery tune", GALLERY_UPKEEP, INDEX, "choose a fast index of a given recall, measured on the gallery"),
    Entry("gallery calibrate", GALLERY_UPKEEP, INDEX, "fit the probability that a hit is of the query's class"),
    Entry("gallery backend", GALLERY_UPKEEP, INDEX, "copy a gallery into Milvus, or out of it"),
    Entry("gallery rebuild", GALLERY_UPKEEP, INDEX, "embed a gallery by another model while in use", resumes=True),
    Entry("gallery rollback", GALLERY_UPKEEP, INDEX, "return a gallery to the model it had before a rebuild"),
    Entry("gallery backup", GALLERY_UPKEEP, COPIES, "copy a gallery while it is in use"),
    Entry("gallery restore", GALLERY_UPKEEP, COPIES, "make a gallery from a backup, and verify it"),
    Entry("gallery export", GALLERY_ITEMS, COPIES, "write a gallery as Parquet and a plain FAISS index"),
    Entry("gallery import", GALLERY_ITEMS, COPIES, "read an exported gallery"),
    Entry(
        "benchmark list", "zoo.cli.benchmark", PUBLISHED, "list the published tables, and the studies that can be run"
    ),
    Entry("benchmark compare", "zoo.cli.benchmark", PUBLISHED, "compare published numbers with the models here"),
    Entry("benchmark models", "zoo.cli.benchmark", MEASURED, "compare the models measured here, seeds as one row"),
    Entry("benchmark curves", "zoo.cli.benchmark", MEASURED, "draw what several runs logged by epoch in one figure"),
    Entry("benchmark report", "zoo.cli.benchmark", MEASURED, "write a model's report as one HTML page"),
    Entry("benchmark served", "zoo.cli.benchmark", MEASURED, "measure what retrieval loses from torch to the gallery"),
    Entry(
        "benchmark baselines",
        "zoo.cli.benchmark",
        MEASURED,
        "measure all available models on your images",
    ),
    Entry("benchmark run", "zoo.cli.studies", STUDIES, "train, measure and compare the arms of a study", resumes=True),
    Entry("benchmark resume", "zoo.cli.studies", STUDIES, "continue a study, and report on it", resumes=True),
    Entry("benchmark search", "zoo.cli.studies", STUDIES, "tune losses by Bayesian search and folds", resumes=True),
)


LONG_SECONDS = 20
"""Commands that ran for so long say at the end how long it was, on stderr; a service's stderr holds its log alone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `zoo` and return its exit status.

    A `ZooError` becomes one message on stderr and the error's `exit_code`, an `OSError` one message and 1; any other
    exception is a bug and keeps its traceback.

    Args:
        arguments: The words after `zoo` (default: those of the process).
    """
    started = time.monotonic()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may have characters that it cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = run(words)
        sys.stdout.flush()
        if (seconds := time.monotonic() - started) >= LONG_SECONDS and words[:1] != ["serve"]:
            note(f"took {duration(seconds)}")
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
        print(f"zoo: error: {printable(_os_message(error))}", file=sys.stderr)
        return ZooError.exit_code


def load(entry: Entry) -> TyperCommand | TyperGroup:
    """Return the command of an entry, or the group, whose commands are loaded when they are needed."""
    if not entry.module:
        return _CommandGroup(name=entry.name, help=entry.summary, rich_markup_mode=None)
    if entry.name != "serve":
        wait_without_spinning()
    command = _build(import_module(entry.module).app, entry.word)
    command.epilog = _verbatim(command.epilog or "")
    for option in command.params:
        if isinstance(option, TyperOption) and not option.is_flag and option.default is not None:
            option.help, option.show_default = f"{option.help} (default: {option.default})", False
    if entry.resumes and command.callback is not None:
        command.callback = _resumable(command.callback)
    return command


def _build(app: typer.Typer, word: str) -> TyperCommand:
    """Return one command of a module; building all of them, as Typer does for a group, takes several times as long."""
    registered = {
        info.name or get_command_name(info.callback.__name__): info for info in app.registered_commands if info.callback
    }
    # Plain text: rich takes longer to load than most commands take to run.
    registered[word].cls = _Command
    command = get_command_from_info(registered[word], pretty_exceptions_short=False, rich_markup_mode=None)
    if not isinstance(command, TyperCommand):
        raise TypeError(f"{word!r} is a {type(command).__name__}; expected a TyperCommand")
    return command


def wait_without_spinning() -> None:
    """Let OpenMP's threads, which torch computes with, sleep soon while they wait, unless the environment says how.

    Threads that spin take the processor from those they wait for when other programs compute, too: torch then takes ten
    times as long. The libraries read this when they are loaded. A service keeps their default.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        # A thousand rounds of spinning are some microseconds: libgomp's own choice for more threads than processors.
        os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="1000")


class _Command(TyperCommand):
    """Command whose help shows the common options first, and the others under the headings of their panels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words; one that takes words like -0.5 for values refuses others that begin with a dash.

        Raises:
            UsageError: If there is no such option (code "command-line").
        """
        before = args[: args.index("--")] if "--" in args else args
        rest = super().parse_args(ctx, list(args))
        if ctx.ignore_unknown_options:
            known = _options(self.get_params(ctx))
            for word in before:
                name = word.partition("=")[0]
                if OPTION_LIKE.match(word) and name not in known and name[:2] not in known:
                    message = f"no option {name!r}.{nearest(name, known)} All options: {ctx.command_path} --help"
                    raise UsageError(message, code="command-line")
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                common = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or common, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class _CommandGroup(TyperGroup):
    """Commands of the table; each command's module is imported when the command is used."""

    @property
    def entries(self) -> dict[str, Entry]:
        """The rows of the table that are in this group, by their last word."""
        return {entry.word: entry for entry in COMMANDS if entry.group == (self.name or "")}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        entry = self.entries.get(cmd_name)
        return None if entry is None else load(entry)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str, TyperCommand | TyperGroup | None, list[str]]:
        name, *rest = args
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            raise unknown("command", name, self.entries, f"All commands: {ctx.command_path} --help")
        if isinstance(command, TyperCommand) and not ctx.resilient_parsing:
            if help_option := command.get_help_option(ctx):
                help_option.help = "show this help"
            _check_values(command, rest)
        return name, command, rest

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_overview(self, ctx.command_path))


def _check_values(command: TyperCommand, arguments: Sequence[str]) -> None:
    """Refuse an option that another option follows, as in `--data --json`, where the parser would take it as the value.

    Raises:
        UsageError: If a value begins with "-", is not a number and does not come after "=" (code "missing-value").
    """
    options = {
        name: parameter.opts[-1]
        for parameter in command.params
        if isinstance(parameter, TyperOption) and not parameter.is_flag
        for name in parameter.opts
    }
    for word, value in pairwise(arguments):
        if word == "--":
            return
        if word in options and OPTION_LIKE.match(value):
            raise UsageError(
                f"{word} needs a value, but {value} follows. A value that begins with a dash comes after an equals "
                f"sign: {options[word]}={value}",
                code="missing-value",
            )


def _overview(group: _CommandGroup, path: str) -> str:
    entries, top = group.entries.values(), not group.name
    width = max(len(entry.word) for entry in entries)
    lines = [f"usage: {path} COMMAND [arguments]", "", HEAD if top else f"{(group.help or '').capitalize()}."]
    for panel in dict.fromkeys(entry.panel for entry in entries):
        lines += ["", f"{panel}:"]
        lines += [f"  {entry.word:{width}}  {entry.summary}" for entry in entries if entry.panel == panel]
    lines += ["", f"{path} COMMAND --help shows the options and examples of a command."]
    if top:
        lines += [
            "zoo --version prints the version; zoo --install-completion sets up the shell's completion.",
            STATUSES,
        ]
    return "\n".join([*lines, ""])


_app = typer.Typer(
    cls=_CommandGroup,
    name="",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _version(requested: bool) -> None:
    if requested:
        print(DISTRIBUTION, version(DISTRIBUTION))
        raise typer.Exit


@_app.callback()
def _top(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="print the version")] = False,
) -> None: ...


def run(arguments: list[str]) -> int:
    """Run a command and return its exit status; its errors are raised.

    Args:
        arguments: The words after `zoo`.

    Raises:
        ZooError: If the command failed, or the arguments are wrong (`UsageError` with the code "command-line").
    """
    root = typer.main.get_command(_app)
    if "_ZOO_COMPLETE" in os.environ:  # the shell asks for completions
        root.main(prog_name="zoo")
    try:
        with root.make_context("zoo", arguments) as context:
            return root.invoke(context) or 0
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        raise UsageError(_usage_message(error), code="command-line") from None
    except ModuleNotFoundError as error:
        if dependency_error := _missing(error):
            raise dependency_error from None
        raise


def _usage_message(error: typer.TyperException) -> str:
    """Return the parser's message, with the refused value, the nearest options and the command that lists all."""
    context = getattr(error, "ctx", None)
    message = error.format_message().replace("Value error, ", "")  # pydantic's words
    if errors := getattr(error.__cause__, "errors", None):  # pydantic's ValidationError: its message lacks the value
        first = errors()[0]
        if expected := EXPECTED.get(first["type"]):
            message = f"{message.partition(':')[0]}: expected {expected}, not {first['input']!r}"
    if context is None:
        return message
    if hasattr(error, "possibilities"):
        name = str(getattr(error, "option_name", ""))
        message = f"no option {name!r}.{nearest(name, _options(context.command.get_params(context)))}"
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} All options: {context.command_path} --help"


def _options(parameters: Iterable[Any]) -> list[str]:
    return [option for parameter in parameters for option in parameter.opts if option.startswith("-")]


def _verbatim(text: str) -> str:
    """Return examples for a help page, each paragraph marked so that its lines are not wrapped."""
    return "\n\n".join(f"\b\n{part}" for part in f"examples:\n{text}".split("\n\n")) if text else ""


def _resumable(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command that, when it is interrupted, says that the same command continues."""

    @wraps(run)
    def resumable(**options: Any) -> Any:
        try:
            return run(**options)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("" if options.get("restart") else CONTINUES) from None

    return resumable


def _os_message(error: OSError) -> str:
    """Return what the system says, of which file, and what to do about a full disk."""
    reasons = error.args[0] if isinstance(error, shutil.Error) else None
    if isinstance(reasons, list) and reasons:  # of a copied folder: every file and why; one is enough
        source, _, why = reasons[0]
        return f"{source} could not be copied: {why}"
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}the disk is full. Make room, or name another folder; nothing half-written was left behind."
    return f"{where}{error.strerror}." if error.strerror else str(error)


def _missing(error: ModuleNotFoundError) -> MissingDependencyError | None:
    """Return what to install for a module that was not found; None if its package is installed: that is a bug."""
    module = (error.name or "").partition(".")[0]
    if not module or sys.modules.get(module) is not None:
        return None
    if extra := _extra_of(module):
        return missing(module, extra)
    return MissingDependencyError(f"the module {module!r} is needed for this and is not installed.")


def _extra_of(module: str) -> str | None:
    """Return the smallest of our extras that brings the module; `faiss` comes as faiss-cpu or faiss-gpu."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    pattern = re.compile(r"([\w-]+).*extra\s*==\s*['\"](\w+)['\"]")
    pairs = [match.groups() for line in requirements if (match := pattern.match(line))]
    sizes = Counter(extra for _, extra in pairs)
    name_pattern = re.escape(module).replace("_", "[-_]") + r"(-\w+)*"
    extras = [extra for name, extra in pairs if re.fullmatch(name_pattern, name)]
    return min(extras, key=lambda extra: sizes[extra], default=None)


if __name__ == "__main__":
    sys.exit(main())
