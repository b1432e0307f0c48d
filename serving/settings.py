"""Settings of the service: every variable, its default and its meaning, and the galleries that it serves.

`zoo serve` has a flag for each setting except the keys, which other users of a machine could read in the list of
processes; it takes --keys-file for them. A flag reaches the service as its environment variable, and `bentoml serve`
and containers set the variables themselves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from serving.gallery.types import is_address
from zoo.errors import UsageError, command, nearest
from zoo.paths import core_count

if TYPE_CHECKING:
    from zoo.data.images import Limits

PREFIX = "ZOO_SERVE_"
NOT_SETTINGS = {
    "ZOO_SERVE_KEY": "it is the key of a client. Unset it for the service, whose keys are in ZOO_SERVE_READ_KEYS and "
    "ZOO_SERVE_WRITE_KEYS.",
    "ZOO_SERVE_HANG_SECONDS": "it was removed. Unset it; the liveness probe of your platform does its work.",
    "ZOO_SERVE_HOST": "give --host.",
    "ZOO_SERVE_PORT": "give --port.",
}
"""Variables that look like settings, and what to do instead of setting them."""
HOSTS, READ_KEYS, WRITE_KEYS = "ZOO_SERVE_HOSTS", "ZOO_SERVE_READ_KEYS", "ZOO_SERVE_WRITE_KEYS"
GALLERY, MODEL, COLLECTIONS, EMBED = "ZOO_GALLERY", "ZOO_MODEL", "ZOO_COLLECTIONS", "ZOO_EMBED"
DEVICE, PRECISION = "ZOO_DEVICE", "ZOO_PRECISION"
KEYS = (READ_KEYS, WRITE_KEYS)
ORIGIN = r"https?://(\[[0-9a-f:.]+\]|[a-z0-9_-]+(\.[a-z0-9_-]+)*)(:[0-9]{1,5})?"
"""Form of a web page's origin as browsers send it: other alphabets as xn--..., and no pattern such as *.example."""
COLLECTION_NAME = r"[a-z0-9][a-z0-9-]{0,62}"


class GalleryAddress(NamedTuple):
    """The folder of a gallery and the place of its model, if that has moved. `name` is "" for a gallery at the root."""

    name: str
    gallery: str
    model: str | None = None


class _GalleryPlace(BaseModel):
    """A value of ZOO_COLLECTIONS."""

    gallery: str
    model: str | None = None


class Share(NamedTuple):
    """One worker's part of the service's limits. `cores` is the number of images it decodes and embeds at once."""

    concurrency: int
    rate: float
    burst: int
    cores: int


def _at_least(low: float, default: float, meaning: str, high: float | None = None) -> Any:
    """Return a number with its bounds and meaning."""
    return Field(default=default, ge=low, le=high, allow_inf_nan=False, description=meaning)


def _named(variable: str, meaning: str, default: Any = "") -> Any:
    """Return a setting whose variable has no SERVE in its name."""
    return Field(default=default, validation_alias=variable, description=meaning)


class Settings(BaseSettings):
    """Settings of the service. Each field is the environment variable ZOO_SERVE_<FIELD>, or the one of its alias.

    `concurrency`, `rate` and `burst` hold for the whole service: each worker takes its `share`.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    workers: int = _at_least(1, 1, "processes; they share cores, concurrency, rate and burst equally", 256)
    max_bytes: int = _at_least(1024, 32 * 2**20, "bytes of one image")
    max_pixels: int = _at_least(1, 210_000_000, "pixels of one image; at most 100,000,000 unless it is a JPEG")
    max_k: int = _at_least(1, 1000, "results of one search")
    max_images: int = _at_least(1, 32, "images of one request")
    max_body: int = _at_least(1024, 32 * 2**20, "bytes of one request; a form may have 64 KiB more")
    concurrency: int = _at_least(1, 128, "requests that are processed at once; more get 429")
    queue_seconds: float = _at_least(
        0.01, 0.75, "seconds that an image may wait for a core; longer waits, behind more than 8 images, get 429"
    )
    rate: float = _at_least(
        0, 0.0, "requests per second of one client (known by its valid key, otherwise by its address); 0: no limit"
    )
    burst: int = _at_least(1, 20, "requests of one client at once after a pause, if there is a rate")
    body_seconds: float = _at_least(0.1, 30.0, "seconds within which a whole request must arrive")
    answer_seconds: float = _at_least(
        0.1, 60.0, "seconds after which an unanswered request gets 504; POST /evaluate may take longer"
    )
    shutdown_delay: float = _at_least(
        0, 0.0, "seconds after a stop signal during which /readyz answers 503 and everything else is still served"
    )
    drain_seconds: float = _at_least(
        0, 10.0, "seconds to finish open requests after the shutdown delay; the others get 503"
    )
    log_requests: int = _at_least(0, 0, "1: one line of JSON per request on stderr")

    read_keys: SecretStr = Field(
        default=SecretStr(""),
        description="keys that may read every collection, separated by commas; without any, everybody who reaches the "
        "service may read",
    )
    write_keys: SecretStr = Field(
        default=SecretStr(""),
        description="keys that may read and change every collection; without any, nobody may change it",
    )
    # No variable has this alias: `load` fills the field.
    collection_keys: dict[str, SecretStr] = Field(
        default={}, validation_alias=" ", description="keys of single collections, by their variable"
    )
    hosts: str = Field(
        default="",
        description="more host names that the service answers to, separated by commas; `*`: any, which is the default "
        "with read keys",
    )
    origins: str = Field(
        default="",
        description="origins of foreign web pages that may send requests and show thumbnails, separated by commas, as "
        "`https://shop.example`; `*`: any",
    )
    gallery: str = _named(GALLERY, "the gallery to serve at the root")
    collections: Annotated[dict[Annotated[str, Field(pattern=f"^{COLLECTION_NAME}$")], _GalleryPlace], NoDecode] = (
        _named(COLLECTIONS, 'several galleries: `{"NAME": {"gallery": "FOLDER", "model": "MODEL, optional"}, ...}`', {})
    )
    model: str = _named(MODEL, "the place of the gallery's model, if it has moved")
    embed: str = _named(EMBED, "a model to serve without a gallery, by its name or folder")
    device: str = _named(
        DEVICE, "where the models run, and the index if FAISS sees a GPU: cpu (the default), cuda, cuda:N, tensorrt"
    )
    precision: str = _named(
        PRECISION, "the ONNX variant that embeds: fp32 (the default), fp16 or int8, made by `zoo export`"
    )

    @field_validator("collections", mode="before")
    @classmethod
    def _read_collections(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) and value else value or {}

    @field_validator("origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        words = [word.strip().lower().rstrip("/") for word in value.split(",") if word.strip()]
        # Browsers leave the default port out.
        origins = [word.removesuffix(":443" if word.startswith("https:") else ":80") for word in words]
        if not all(origin == "*" or re.fullmatch(ORIGIN, origin) for origin in origins):
            raise ValueError(ORIGIN)
        return ",".join(origins)

    @classmethod
    def load(cls, flags: Mapping[str, Any] = MappingProxyType({})) -> Settings:
        """Read the settings from environment variables.

        Args:
            flags: The values of flags of `zoo serve`, by the names of their settings; they win.

        Raises:
            UsageError: If a variable begins with ZOO_SERVE_ and is not a setting ("unknown-setting"), or a value is
                invalid ("invalid-value", "conflicting-options").
        """
        try:
            settings = cls(**flags)
        except ValidationError as error:
            # Without an alias the place is the field's name.
            fields = {variable_of(name): name for name in cls.model_fields}
            place = str(error.errors()[0]["loc"][0])
            name = fields.get(place, place)
            origin = f"--{name.replace('_', '-')}" if name in flags else variable_of(name)
            message = f"{origin} is {flags.get(name, os.environ.get(origin))!r}; expected {_expected(name)}."
            raise UsageError(message, code="invalid-value") from None
        named = {GALLERY: settings.gallery, COLLECTIONS: settings.collections, EMBED: settings.embed}
        if len(given := [variable for variable, value in named.items() if value]) > 1:
            raise UsageError(
                f"{' and '.join(given)} are set together; a service has one gallery, several with names, or a model "
                "without a gallery.",
                code="conflicting-options",
            )
        own_keys = [variable for name in settings.collections for variable in key_variables(name)]
        variables = [variable for variable, _, _ in settings_table()]
        _check_names([*variables, *own_keys], list(settings.collections))
        keys = {variable: SecretStr(os.environ[variable]) for variable in own_keys if variable in os.environ}
        return settings.model_copy(update={"collection_keys": keys})

    @property
    def addresses(self) -> list[GalleryAddress]:
        """The galleries to serve; empty if none is named."""
        if self.gallery:
            return [GalleryAddress("", self.gallery, self.model or None)]
        return [GalleryAddress(name, place.gallery, place.model) for name, place in self.collections.items()]

    @property
    def allowed_origins(self) -> frozenset[str]:
        """The origins of foreign pages that may send requests; `*` for any."""
        return frozenset(self.origins.split(",")) - {""}

    def share(self) -> Share:
        """Return one worker's part of the limits; the parts of all workers together keep to them."""
        return Share(
            max(1, self.concurrency // self.workers),
            self.rate / self.workers,
            max(1, self.burst // self.workers),
            max(1, core_count() // self.workers),
        )

    @property
    def limits(self) -> Limits:
        """The limits of one image."""
        from zoo.data.images import Limits

        return Limits(self.max_bytes, self.max_pixels)


def variable_of(name: str) -> str:
    """Return the environment variable of a field of `Settings`."""
    return str(Settings.model_fields[name].validation_alias or PREFIX + name.upper())


def key_variables(collection: str) -> list[str]:
    """Return the variables of the keys of one collection, for reading and for writing."""
    ending = collection.upper().replace("-", "_")
    return [f"{variable}_{ending}" for variable in KEYS]


def settings_table() -> list[tuple[str, str, str]]:
    """Return variable, default and meaning of every setting."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = str(field.default) if isinstance(field.default, int | float) else ""
        if name != "collection_keys":
            rows.append((variable_of(name), default, str(field.description)))
    return rows


def _check_names(known: Sequence[str], collections: Sequence[str]) -> None:
    """Raise `UsageError` for a variable that looks like a setting and is not: a misspelt key would protect nothing."""
    for variable in os.environ:
        if variable.startswith(PREFIX) and variable not in known:
            reason = _reason(variable, known, collections)
            raise UsageError(f"{variable} is not a setting of this service: {reason}", code="unknown-setting")


def _reason(variable: str, known: Sequence[str], collections: Sequence[str]) -> str:
    """Return why a variable is not a setting, and what to do."""
    if variable in NOT_SETTINGS:
        return NOT_SETTINGS[variable]
    if variable.startswith(tuple(f"{name}_" for name in KEYS)):
        present = f"its collections are {', '.join(collections)}" if collections else "its gallery has no name"
        return f"it would hold the keys of a collection, and {present}."
    other = variable.replace(PREFIX, "ZOO_", 1)
    near = f" Did you mean {other!r}?" if other in known else nearest(variable, known)
    return f"the name is unknown.{near} docs/serve.md lists all settings."


def _expected(name: str) -> str:
    """Return the values that a setting can have."""
    field = Settings.model_fields[name]
    if name == "origins":
        return "*, or origins as https://shop.example, separated by commas"
    if field.annotation not in (int, float):
        return 'a JSON object such as {"birds": {"gallery": "FOLDER"}}'
    kind = "a whole number" if field.annotation is int else "a number"
    bounds = {end: getattr(bound, end) for bound in field.metadata for end in ("ge", "le") if hasattr(bound, end)}
    return f"{kind} from {bounds['ge']} to {bounds['le']}" if "le" in bounds else f"{kind} of at least {bounds['ge']}"


def gallery_variables(addresses: Sequence[GalleryAddress]) -> dict[str, str]:
    """Return the environment variables that name these galleries."""
    name, gallery, model = addresses[0]
    if name:
        return {
            COLLECTIONS: json.dumps({each.name: {"gallery": each.gallery, "model": each.model} for each in addresses})
        }
    return {GALLERY: gallery} | ({MODEL: model} if model else {})


def parse_galleries(words: Sequence[str], models: Sequence[str] = ()) -> list[GalleryAddress]:
    """Return the galleries that the command line names.

    Args:
        words: One GALLERY, or each as NAME=GALLERY.
        models: The model of the one gallery (default: that of `ZOO_MODEL`), or each as NAME=MODEL.

    Raises:
        UsageError: If names are missing or a model is of no gallery ("missing-value"), or names are double
            ("conflicting-options") or invalid ("invalid-value").
    """
    pairs = [_name_and_folder(word) for word in words]
    names = [name for name, _ in pairs]
    if len(pairs) > 1 and "" in names:
        named = [f"{name or f'gallery-{i}'}={gallery}" for i, (name, gallery) in enumerate(pairs, 1)]
        raise UsageError(f"several galleries need names, as in: {command('serve', *named)}", code="missing-value")
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two galleries have the name {doubles[0]}.", code="conflicting-options")
    places = dict(("", word) if names == [""] else _name_and_folder(word) for word in models)
    if names == [""] and not places and (model := os.environ.get(MODEL)):
        places[""] = model
    if unknown := sorted(places.keys() - set(names)):
        choice = f"as NAME=MODEL, NAME one of {', '.join(names)}" if any(names) else "without a name"
        raise UsageError(f"--model {unknown[0] or '...'}: give the model {choice}.", code="missing-value")
    return [GalleryAddress(name, _absolute(gallery), places.get(name)) for name, gallery in pairs]


def same_folders(addresses: Sequence[GalleryAddress]) -> list[list[str]]:
    """Return the names of the galleries that are one folder, for each such folder."""
    names: dict[str, list[str]] = {}
    for address in addresses:
        names.setdefault(address.gallery, []).append(address.name)
    return [several for several in names.values() if len(several) > 1]


def _absolute(gallery: str) -> str:
    return gallery if is_address(gallery) else str(Path(gallery).resolve())


def _name_and_folder(word: str) -> tuple[str, str]:
    """Split NAME=FOLDER; a folder with = in its own name is written as ./a=b, or exists under the whole word."""
    name, equals, folder = word.partition("=")
    if not equals or "/" in name or Path(word).exists():
        return "", word
    if not re.fullmatch(COLLECTION_NAME, name) or not folder:
        raise UsageError(
            f"{word!r} is not NAME=FOLDER: a name has at most 63 characters of a to z, 0 to 9 and -.",
            code="invalid-value",
        )
    return name, folder


def read_keys_file(path: Path) -> dict[str, str]:
    """Return the variables of keys in a file of lines NAME=KEYS, as systemd reads them in an EnvironmentFile.

    Raises:
        UsageError: If the file cannot be read ("unreadable-file"), or every user of the machine can read or change it
            or a line is something else ("invalid-keys"). The message never shows a key.
    """
    try:
        if os.name == "posix" and (mode := path.stat().st_mode & 0o777) & 0o007:
            raise UsageError(
                f"{path} has the mode {mode:o}, so that every user of this machine has the keys. Run: chmod 600 {path}",
                code="invalid-keys",
            )
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError:
        raise UsageError(
            f"{path} has characters other than ASCII, which keys never have.", code="invalid-keys"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", code="unreadable-file") from None
    variables = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name.startswith(KEYS):
            expected = " or ".join(f"{variable}[_COLLECTION]=KEY" for variable in KEYS)
            raise UsageError(f"line {number} of {path} is not {expected}.", code="invalid-keys")
        variables[name] = value.strip("\"'")
    return variables
