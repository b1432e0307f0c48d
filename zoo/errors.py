"""Every error that a user's mistake or a broken file can cause, as one tree under `ZooError`.

    ZooError
    ├── UsageError                 an argument that makes no sense
    ├── MissingDependencyError     an optional library is not installed
    ├── ModelNotFoundError         no model of that name or at that path
    ├── ModelFolderError           a model folder is incomplete, altered or of another schema
    │   └── CardError              its card.json cannot be read or contradicts itself
    ├── HubError                   the Hugging Face Hub refused, failed or is out of reach
    │   └── HubUnreachableError    it gave no answer, or may not be asked
    ├── ImageError                 bytes that are not a usable image
    │   └── ImageTooLargeError     more bytes or pixels than allowed
    ├── TextError                  a text that cannot be embedded
    │   └── NoTextTowerError       the model embeds images alone
    ├── DatasetError               a data set is missing, incomplete or not as published
    ├── EvaluationError            embeddings or labels that cannot be measured
    ├── RecipeError                an unknown recipe, key or value
    ├── TrainingError              training cannot start or go on
    │   └── DivergedError          the loss or the weights became infinite or no number
    ├── ExportError                a model cannot be exported, or the export is not equal to it
    └── GalleryError               a gallery folder is damaged or unusable
        ├── GalleryNotFoundError   there is no gallery in that folder, or no copy of one
        ├── GalleryMovedError      its folder was moved, removed or exchanged while it was open
        ├── GalleryExistsError     something is there already
        ├── ItemNotFoundError      no item of that id
        ├── ItemConflictError      a key is another item's
        ├── BackendError           what holds a gallery's vectors for it refused, failed or is out of reach
        ├── ModelMismatchError     the gallery was embedded by another model
        │   └── ModelChangedError  the gallery was given another model since it was opened
        └── ServiceError           a search service refused, failed or is out of reach

A message says what was wrong, what was expected and what to do. The command line prints it without a
traceback and ends with the class's `exit_code`: 2 for wrong usage and for what is not there (a model, a
data set, a gallery, an item), 1 for a check that failed and everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class ZooError(Exception):
    """Base of all errors that this project raises on purpose.

    Args:
        message: What is wrong (with the value), what was expected, and what to run.
        code: A stable name of this mistake, in lower case with hyphens; by default the class's own.

    Attributes:
        code: The stable name. Programs and tests compare it; the wording of a message may change.
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
    """A model folder without the ONNX variant that was asked for."""

    exit_code = 2


class CardError(ModelFolderError):
    pass


class HubError(ZooError):
    pass


class HubUnreachableError(HubError):
    """`why`: the reason alone, in a few words, for a message that is about something else."""

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


class FollowingError(GalleryError):
    """What another service hands out of its gallery is not what it should be, or cannot be had."""


class ModelMismatchError(GalleryError):
    exit_code = 2


class ModelChangedError(ModelMismatchError):
    exit_code = 1


_PASSING = (408, 429)
"""HTTP statuses of the 400s that are no mistake of who asked: too slow, and too much at once."""


class ServiceError(GalleryError):
    """`status`: of the HTTP answer; `code`: the service's own word for it. Both None where no answer came.

    What the service refused as the asker's mistake ends with 2.
    """

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code  # type: ignore[assignment]
        if status is not None and 400 <= status < 500 and status not in _PASSING:
            self.exit_code = UsageError.exit_code


def nearest(name: str, known: Iterable[str], n: int = 3) -> str:
    """ " Did you mean 'a' or 'b'?" with the names nearest to `name`, or "" where none is near."""
    close = get_close_matches(name, list(known), n=n, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


def none_readable_message(images: int, first: object) -> str:
    """What is said where so many images are there and not one can be read; first: what is wrong with the first."""
    return f"none of the {images:,} images can be read; the first: {first}"


def check_text(name: str, value: object) -> None:
    """Raise `UsageError` for an argument that is no text."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is given as text, not as {type(value).__name__} ({value!r}).")


def missing(module: str, extra: str) -> MissingDependencyError:
    """The error for an optional library that cannot be imported."""
    return MissingDependencyError(
        f"{module} is needed for this and is not installed. Install it with: pip install 'dml-zoo[{extra}]'"
    )
