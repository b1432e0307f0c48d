"""Tree of the errors that a user's mistake or a broken file can cause, and helpers for their messages.

    ZooError
    ├── UsageError                  an argument that makes no sense
    ├── MissingDependencyError      an optional library is not installed
    ├── ModelNotFoundError          no model has that name or path
    ├── ModelFolderError            a model folder is incomplete, altered or of another schema
    │   ├── VariantNotFoundError    it lacks the ONNX variant
    │   └── CardError               its card.json cannot be read or contradicts itself
    ├── HubError                    the Hugging Face Hub refused or failed
    │   └── HubUnreachableError     the Hub did not answer, or may not be asked
    ├── ImageError                  bytes that are not a usable image
    │   └── ImageTooLargeError      more bytes or pixels than allowed
    ├── TextError                   a text that cannot be embedded
    │   └── NoTextTowerError        the model embeds images only
    ├── DatasetError                a data set is missing, incomplete or not as published
    │   └── UnreadableImagesError   images of it cannot be read
    ├── EvaluationError             embeddings or labels that cannot be measured
    ├── RecipeError                 an unknown recipe, key or value
    ├── TrainingError               training cannot start or continue
    │   └── DivergedError           the loss or the weights became infinite or NaN
    ├── ExportError                 a model cannot be exported, or the export differs from it
    └── GalleryError                a gallery folder is damaged or unusable
        ├── GalleryNotFoundError    the folder holds no gallery, or no copy of one
        ├── GalleryMovedError       the folder was moved, removed or replaced while it was open
        ├── GalleryExistsError      the folder exists already
        ├── ItemNotFoundError       no item has that id
        ├── ItemConflictError       another item has that key
        ├── BackendError            the store of a gallery's vectors refused or failed
        ├── ModelMismatchError      the gallery was embedded by another model
        │   └── ModelChangedError   the gallery was given another model since it was opened
        └── ServiceError            a search service refused, failed or did not answer

A message says what is wrong, what was expected and what to do. The command line prints it without a traceback and ends
with the error's `exit_code`: 2 for wrong usage and for things that do not exist (a model, a data set, a gallery, an
item), 1 for a failed check and everything else.

Every error has a `code`, its stable name in lower case with hyphens. It is the class's own (`UsageError`: "usage",
`ModelNotFoundError`: "model-not-found") unless the place that raises it gives a more specific one, such as
`UsageError("...", code="unknown-name")`. Programs and tests compare codes, since the wording may change.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches


class ZooError(Exception):
    """Base of all errors that this project raises on purpose.

    Args:
        message: What is wrong (with the value), what was expected, and what to run.
        code: The stable name of this mistake, in lower case with hyphens (default: the class's own).

    Attributes:
        code: The stable name.
        exit_code: The exit status of the command line.
    """

    exit_code = 1
    code = "error"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            words = re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Error"))
            cls.code = "-".join(words).lower()

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class UsageError(ZooError):
    exit_code = 2


class MissingDependencyError(ZooError):
    exit_code = 2


class ModelNotFoundError(ZooError):
    exit_code = 2


class ModelFolderError(ZooError):
    pass


class VariantNotFoundError(ModelFolderError):
    exit_code = 2


class CardError(ModelFolderError):
    pass


class HubError(ZooError):
    pass


class HubUnreachableError(HubError):
    """Error of a Hub that did not answer. `why` is the reason in a few words, for use in other messages."""

    def __init__(self, message: str, why: str = "", *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.why = why


class ImageError(ZooError):
    exit_code = 2


class ImageTooLargeError(ImageError):
    pass


class TextError(ZooError):
    exit_code = 2


class NoTextTowerError(TextError):
    pass


class DatasetError(ZooError):
    exit_code = 2


class UnreadableImagesError(DatasetError):
    """Images of a data set that cannot be read; `reasons` has the reason of each by its source."""

    def __init__(self, reasons: Mapping[str, object], dataset: str, hint: str) -> None:
        self.reasons = dict(reasons)
        named = " ".join(f"{source}: {str(reason).rstrip('.')}." for source, reason in self.reasons.items())
        which = "an image" if len(self.reasons) == 1 else f"{len(self.reasons):,} images"
        them = "it" if len(self.reasons) == 1 else "them"
        super().__init__(
            f"{which} of {dataset} cannot be read. {named} Repair or remove {them}{hint}.", code="unreadable-image"
        )


class EvaluationError(ZooError):
    exit_code = 2


class RecipeError(ZooError):
    exit_code = 2


class TrainingError(ZooError):
    pass


class DivergedError(TrainingError):
    pass


class ExportError(ZooError):
    pass


class GalleryError(ZooError):
    pass


class GalleryNotFoundError(GalleryError):
    exit_code = 2


class GalleryExistsError(GalleryError):
    exit_code = 2


class ItemNotFoundError(GalleryError):
    exit_code = 2


class ItemConflictError(GalleryError):
    exit_code = 2


class BackendError(GalleryError):
    pass


class GalleryMovedError(GalleryError):
    pass


class ModelMismatchError(GalleryError):
    exit_code = 2


class ModelChangedError(ModelMismatchError):
    exit_code = 1


_TRANSIENT_STATUSES = (408, 429)
"""HTTP statuses from 400 to 499 that are not the caller's mistake: timeout and too many requests."""


class ServiceError(GalleryError):
    """Failure of a search service, or its refusal of a request.

    Args:
        message: What the service refused, or why there is no answer.
        status: The HTTP status of the answer, None without an answer.
        code: The service's own code (default: "service"). It may hold underscores.

    Attributes:
        exit_code: 2 if the service refused the request as the caller's mistake, else 1.
    """

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status
        if status is not None and 400 <= status < 500 and status not in _TRANSIENT_STATUSES:
            self.exit_code = UsageError.exit_code


_classes: list[Callable[[], Mapping[str, str]]] = [dict]


def classes_from(source: Callable[[], Mapping[str, str]]) -> None:
    """Take short names with those of their classes, as `ms` with "MultiSimilarity", from a function."""
    _classes[:] = [source]


def closest(name: str, names: Iterable[str], n: int = 3, cutoff: float = 0.5) -> list[str]:
    """Return the known names most like `name`, or only the one that it spells otherwise, as a class or in capitals."""
    known, classes = list(names), _classes[0]()
    short = "|".join(sorted(map(re.escape, classes), key=len, reverse=True))
    spelt = [re.sub(rf"(?<![^-])(?:{short})(?![^-])", lambda part: classes[part[0]], each) for each in known]
    spellings = {_letters(text): each for text, each in zip([*spelt, *known], [*known, *known], strict=True)}
    typed = _letters(name)
    if same := spellings.get(typed) or spellings.get(re.sub("(?:loss|miner|sampler)$", "", typed)):
        return [same]
    return list(dict.fromkeys(spellings[text] for text in get_close_matches(typed, spellings, 2 * n, cutoff)))[:n]


def _letters(name: str) -> str:
    """Return a name without capitals, '-' and '_'."""
    return re.sub("[-_]", "", name.lower())


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the hint " Did you mean 'a' or 'b'?" with the known names most like `name`, or "" if none is like it."""
    close = closest(name, names)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def unknown(kind: str, name: str, names: Iterable[str], more: str = "", error: type[ZooError] = UsageError) -> ZooError:
    """Return the error for a name that is not among the known ones: the nearest, and `more` or else all of them."""
    known = list(names)
    more = more or f"Known: {', '.join(known)}."
    return error(f"there is no {kind} {name!r}.{nearest(name, known)} {more}", code="unknown-name")


def command(*words: object) -> str:
    """Return a `zoo` command to run next, its words quoted for a shell."""
    return shlex.join(["zoo", *map(str, words)])


def none_readable_message(images: int, first: object) -> str:
    """Return the message for `images` images of which none can be read; `first` is the error of the first one."""
    if images == 1:
        return f"the only image cannot be read: {first}"
    return f"none of the {images:,} images can be read; the first: {first}"


def check_text(name: str, value: object) -> None:
    """Raise `UsageError` for an argument that is not a string."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is given as text, not as {type(value).__name__} ({value!r}).", code="invalid-value")


def check_at_least(name: str, value: float, least: int) -> None:
    """Raise `UsageError` (`invalid-value`) for an option's or argument's number below the least one."""
    if value < least:
        raise UsageError(f"{name} must be {least} or more, not {value}.", code="invalid-value")


def missing(module: str, extra: str) -> MissingDependencyError:
    """Return the error for an optional library that is not installed; `extra` is the extra that brings it."""
    return MissingDependencyError(
        f"{module} is needed for this and is not installed. Install it with: pip install 'dml-zoo[{extra}]'"
    )
