"""Files of embeddings (.npy, .safetensors, .npz), their labels, and the record of the model that made them.

`zoo embed` writes rows.npy with the record in rows.json, or rows.safetensors with the record in the header's metadata;
the table rows.csv names the images of the rows. `zoo score` reads these files and those of other programs.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile, ZipFile, is_zipfile

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from zoo.data.dataset import QUERY
from zoo.data.table import BOOLEANS, LABEL, PATH, read_column
from zoo.errors import EvaluationError, UsageError, command
from zoo.evaluation.memory import format_size, release_pages, resident_bytes
from zoo.files import CHUNK_BYTES, atomic_path, read_json, write_json
from zoo.models.card import MODEL_NAME, Card
from zoo.paths import library_versions
from zoo.render import write_csv

if TYPE_CHECKING:
    from zoo.models.load import Embedder


KIND, SCHEMA = "dml-zoo embeddings", 1

EMBEDDINGS, LABELS = "embeddings", "labels"
"""The names of arrays in a .safetensors or .npz file."""

_NPY, _TENSORS, _ARCHIVE = ".npy", ".safetensors", ".npz"

_OPENING = json.dumps({"kind": KIND}, indent=2).removesuffix("\n}").encode()
"""The first bytes of a record: they tell a truncated record from a JSON file of another program."""

_FIELD_TYPES = {"int": int, "str": str, "Mapping[str, str]": dict, "Mapping[str, Any]": dict}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class EmbeddingRecord:
    """Provenance of the rows in a file: the model that made them, and hashes that identify them.

    Attributes:
        model: `Card.identity`: name and fingerprint.
        runtime: The runtime of the model, "torch" or "onnx".
        precision: The precision of the model.
        preprocessing: The card's preprocessing.
        rows: The number of rows.
        dim: The number of dimensions.
        sha256: Hash of the numbers, row by row, as little-endian float32.
        names_sha256: Hash of the images' names in order, as listed in the table of the rows.
        date: ISO 8601, UTC.
        versions: Distribution -> version.
    """

    model: Mapping[str, str]
    runtime: str
    precision: str
    preprocessing: Mapping[str, Any]
    rows: int
    dim: int
    sha256: str
    names_sha256: str
    date: str
    versions: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.model["name"]

    @property
    def fingerprint(self) -> str:
        return self.model["fingerprint"]

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "schema": SCHEMA, **asdict(self)}

    def check_rows(self, path: Path, rows: np.ndarray) -> None:
        """Raise `UsageError` unless the rows of the file `path`, of any shape and dtype, are those of this record."""
        if rows.shape != (self.rows, self.dim):
            shape = " x ".join(f"{size:,}" for size in rows.shape) or "one"
            problem = f"holds {shape} numbers, and the {self.rows:,} x {self.dim:,} of {self.name} were written"
        elif rows.dtype != np.float32 or rows_sha256(rows) != self.sha256:
            problem = f"holds other numbers than those that {self.name} gave"
        else:
            return
        raise UsageError(
            f"{path} {problem}: the file was replaced, changed or truncated. Make it again with zoo embed. If the rows "
            "are meant to differ, they have no record: "
            + (f"remove {record_path(path)}." if path.suffix.lower() == _NPY else "write them without its metadata."),
            code="hash-mismatch",
        )

    def check_images(self, table: Path, names: Sequence[str]) -> None:
        """Raise `UsageError` unless `names`, the column path of the table, are the images of the rows in order."""
        if names_sha256(names) != self.names_sha256:
            raise UsageError(
                f"{table} lists other images than the rows are of, or in another order: labels would go to wrong rows. "
                "Make both again with zoo embed, or give labels in the order of the rows in a file of another name.",
                code="hash-mismatch",
            )

    def check_model(self, path: Path, card: Card) -> None:
        """Raise `UsageError` unless the card's model made the rows of the file `path`."""
        if card.fingerprint != self.fingerprint:
            raise UsageError(
                f"{path} holds rows of {self.name} (fingerprint {self.fingerprint[:12]}), not of {card.name} "
                f"(fingerprint {card.fingerprint[:12]}): weights or preprocessing differ. Make them with: "
                f"{command('embed', card.name, 'IMAGES', '--out', path, '--replace')}",
                code="other-model",
            )


class Embeddings(NamedTuple):
    """Contents of a file: rows [n, d], and its labels [n] and its record, each None if the file has none."""

    rows: np.ndarray
    labels: np.ndarray | None
    record: EmbeddingRecord | None


def read_embeddings(path: Path) -> Embeddings:
    """Read rows, labels and record of a file: .npy (memory-mapped, without labels), .safetensors, or .npz (no record).

    Raises:
        UsageError: If the file does not exist or has another format, or its rows differ from its record. The values of
            the rows are checked later, by the metrics.
    """
    if path.suffix.lower() == _ARCHIVE:
        return _embeddings_of(path, _read_archive(path), None)
    is_npy = _file_type(path) == _NPY
    embeddings = Embeddings(_read_npy(path), None, read_record(path)) if is_npy else _read_tensors(path)
    if embeddings.record is not None:
        embeddings.record.check_rows(path, embeddings.rows)
    return embeddings


def check_file_fits(path: Path, limit: int) -> None:
    """Raise `EvaluationError` if a file that is read as a whole, not .npy, exceeds the limit of memory in bytes."""
    if path.suffix.lower() == _NPY or not path.is_file():
        return
    size = path.stat().st_size
    if path.suffix.lower() == _ARCHIVE and is_zipfile(path):
        with ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    if resident_bytes() + size > limit:
        raise EvaluationError(
            f"{path} holds {format_size(size)}, and a {path.suffix} file is read as a whole, which does not fit "
            f"{format_size(limit)} of memory. Write its rows as .npy, which is read in blocks: np.save(FILE, rows).",
            code="too-large",
        )


def write_embeddings(path: Path, rows: np.ndarray, table: Sequence[Mapping[str, str]], model: Embedder) -> None:
    """Write rows as .npy or .safetensors, with their record and the table of their images (`table_path`).

    A .safetensors file has the tensor labels too, int64 [n], where all images have a label; its metadata list the
    classes. Bytes of a name that are not UTF-8 become question marks in the table.

    Args:
        path: The file to write.
        rows: Float32 [n, d].
        table: For each image its path, its label ("" for none) and further columns, the same for all images. The
            table can be read by `zoo index --labels`.
        model: The model that gave the rows.
    """
    record = make_record(model, rows, [row[PATH] for row in table])
    with atomic_path(path) as temporary:
        if _file_type(path) == _NPY:
            with temporary.open("wb") as file:
                np.save(file, rows, allow_pickle=False)
        else:
            _write_tensors(temporary, rows, [row[LABEL] for row in table], record)
    with (
        atomic_path(table_path(path)) as temporary,
        temporary.open("w", encoding="utf-8", errors="replace", newline="") as text,
    ):
        write_csv(text, [list(table[0]), *(list(row.values()) for row in table)])
    if _file_type(path) == _NPY:
        write_record(path, record)


def output_files(path: Path) -> list[Path]:
    """Return the files that `write_embeddings` writes: `path`, the table, and for .npy the record.

    Raises:
        UsageError: `path` has another format.
    """
    return [path, table_path(path), *([record_path(path)] if _file_type(path) == _NPY else [])]


def check_outputs_free(path: Path) -> None:
    """Raise `UsageError` if one of the files that `write_embeddings` writes exists already."""
    for file in output_files(path):
        if file.exists():
            raise UsageError(f"{file} exists already; name another --out, or give --replace.", code="already-exists")


def read_labels(path: Path) -> np.ndarray:
    """Read one label per row [n], from .npy, from the column `label` of .csv, or from lines of text in UTF-8.

    Raises:
        UsageError: If the file does not exist, has another format, or has an empty label.
    """
    if path.suffix.lower() == _NPY:
        return _read_npy(path)
    labels = _read_texts(path, LABEL)
    if "" in labels:
        raise UsageError(
            f"{path}: label {labels.index('') + 1} of {len(labels)} is empty; each row needs one.",
            code="invalid-labels",
        )
    return np.array(labels, dtype=np.str_)


def read_queries(path: Path) -> np.ndarray:
    """Read which rows are queries, bool [n]: 1 or true for a query, 0 or false for a row of the gallery.

    The values come from .npy, from the column `query` of .csv, or from lines of text in UTF-8.

    Raises:
        UsageError: If the file does not exist or has other values.
    """
    expected = f"{path} must say for each row whether it searches: 1 or true, 0 or false"
    if path.suffix.lower() == _NPY:
        values = _read_npy(path)
        if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
            raise UsageError(f"{expected}.", code="invalid-value")
        return values.astype(np.bool_)
    texts = _read_texts(path, QUERY)
    queries = [BOOLEANS.get(text.strip().lower()) for text in texts]
    if None in queries:
        row = queries.index(None)
        raise UsageError(f"{expected}; row {row + 1} of {len(queries)} says {texts[row][:40]!r}.", code="invalid-value")
    return np.array(queries, np.bool_)


def table_path(path: Path) -> Path:
    """Return the path of the table with the names and labels of a file's rows."""
    return path.with_suffix(".csv")


def check_table(embeddings: Path, record: EmbeddingRecord, table: Path) -> None:
    """Raise `UsageError` if `table` is the one written with the rows and lists other images than the record."""
    if table.resolve() != table_path(embeddings).resolve():
        return
    try:
        names = _read_texts(table, PATH)
    except UsageError:  # a table without names was written by somebody else
        return
    record.check_images(table, names)


def make_record(model: Embedder, rows: np.ndarray, names: Sequence[str]) -> EmbeddingRecord:
    """Return the record of rows, float32 [n, dim], that the model gave for the images of these names."""
    return EmbeddingRecord(
        model=model.card.identity,
        runtime=model.runtime,
        precision=model.precision,
        preprocessing=model.preprocessing.to_json(),
        rows=len(rows),
        dim=rows.shape[1],
        sha256=rows_sha256(rows),
        names_sha256=names_sha256(names),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=library_versions(model.runtime),
    )


def rows_sha256(rows: np.ndarray) -> str:
    """Return the SHA-256 of rows [n, d] as little-endian float32, with a limited number of rows in memory."""
    digest = hashlib.sha256()
    step = max(1, CHUNK_BYTES // (4 * max(1, rows.shape[1])))
    for start in range(0, len(rows), step):
        digest.update(np.ascontiguousarray(rows[start : start + step], "<f4").data)
        release_pages(rows[start : start + step])
    return digest.hexdigest()


def names_sha256(names: Sequence[str]) -> str:
    """Return the SHA-256 of names; bytes that are not UTF-8 count as question marks, as in the table."""
    return hashlib.sha256("\0".join(names).encode(errors="replace")).hexdigest()


def record_path(path: Path) -> Path:
    """Return the path of the record of a .npy file."""
    return path.with_suffix(".json")


def write_record(path: Path, record: EmbeddingRecord) -> None:
    """Write the record of the .npy file `path`."""
    write_json(record_path(path), record.to_json())


def read_record(path: Path) -> EmbeddingRecord | None:
    """Read the record of the .npy file `path`.

    Returns:
        The record, or None if there is no such file or it is a JSON file of another program.

    Raises:
        UsageError: If the record is truncated, damaged, or of a newer schema.
    """
    file = record_path(path)
    try:
        values = read_json(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"{file}, the record of the rows, cannot be read: {error.strerror or error}.", code="unreadable-file"
        ) from None
    except ValueError as error:
        opening = file.read_bytes()[: len(_OPENING)]
        if not opening or not _OPENING.startswith(opening):
            return None
        raise _damaged_record(file, str(error)) from None
    return _parse_record(values, file) if isinstance(values, dict) and values.get("kind") == KIND else None


def record_to_metadata(record: EmbeddingRecord) -> dict[str, str]:
    """Return the record as metadata of a .safetensors file."""
    return {"kind": KIND, "record": json.dumps(record.to_json())}


def record_from_metadata(metadata: Mapping[str, str], path: Path) -> EmbeddingRecord | None:
    """Return the record in the metadata of a .safetensors file, or None; errors are those of `read_record`."""
    if metadata.get("kind") != KIND:
        return None
    try:
        values = json.loads(metadata.get("record", ""))
    except (ValueError, RecursionError) as error:
        raise _damaged_record(path, str(error)) from None
    return _parse_record(values, path)


def _parse_record(values: Any, path: Path) -> EmbeddingRecord:
    if not isinstance(values, dict) or type(schema := values.get("schema")) is not int or schema < 1:
        raise _damaged_record(path, "it has no schema number")
    if schema > SCHEMA:
        raise UsageError(
            f"{path} has a record of schema {schema}; this version of dml-zoo reads up to {SCHEMA}. "
            "Upgrade: pip install -U dml-zoo",
            code="other-schema",
        )
    for field in fields(EmbeddingRecord):
        if type(values.get(field.name)) is not _FIELD_TYPES[str(field.type)]:
            raise _damaged_record(path, f"{field.name} is {values.get(field.name)!r}")
    record = EmbeddingRecord(**{field.name: values[field.name] for field in fields(EmbeddingRecord)})
    _check_record(record, path)
    return record


def _check_record(record: EmbeddingRecord, path: Path) -> None:
    """Raise `UsageError` unless the values that are printed are names and those that are compared are hashes."""
    names = {"name": record.model.get("name"), "runtime": record.runtime, "precision": record.precision}
    for field, value in names.items():
        if not isinstance(value, str) or not MODEL_NAME.fullmatch(value):
            raise _damaged_record(path, f"{field} is {value!r}")
    hashes = {
        "fingerprint": record.model.get("fingerprint"),
        "sha256": record.sha256,
        "names_sha256": record.names_sha256,
    }
    for field, value in hashes.items():
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise _damaged_record(path, f"{field} is {value!r}, not a SHA-256")


def _damaged_record(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"{path} does not hold the record of zoo embed ({reason.rstrip('.')}): it was truncated or changed. Make the "
        "rows again with zoo embed, or remove the damaged record; the rows then belong to no known model.",
        code="damaged-file",
    )


def _file_type(path: Path) -> str:
    if (suffix := path.suffix.lower()) not in (_NPY, _TENSORS):
        raise UsageError(
            f"embeddings are in a {_NPY} or a {_TENSORS} file (zoo score also reads {_ARCHIVE}), not in {path}.",
            code="unknown-format",
        )
    return suffix


def _read_npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
                raise _unreadable(path, "it is not a .npy file")
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (ValueError, OverflowError, SyntaxError, TokenError, EOFError) as error:
        pickled = "it holds Python objects; save text with np.save(FILE, array.astype(str))"
        raise _unreadable(path, pickled if "Python objects" in str(error) else _damaged_file(error)) from None
    return array


def _read_tensors(path: Path) -> Embeddings:
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except SafetensorError as error:
        raise _unreadable(path, _damaged_file(error)) from None
    except (KeyError, TypeError, AttributeError) as error:  # a dtype that NumPy lacks
        raise _unreadable(path, str(error)) from None
    return _embeddings_of(path, tensors, record_from_metadata(metadata, path))


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name; nothing is unpickled."""
    try:
        with path.open("rb") as file:
            if not is_zipfile(file):
                raise _unreadable(path, "it is not an .npz file, or it is truncated")
        with np.load(path, allow_pickle=False) as archive:
            if EMBEDDINGS not in archive.files:
                return dict.fromkeys(archive.files, np.empty(0))  # only to be named
            return {name: archive[name] for name in (EMBEDDINGS, LABELS) if name in archive.files}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (ValueError, BadZipFile, zlib.error, EOFError, SyntaxError, TokenError, NotImplementedError) as error:
        raise _unreadable(path, str(error) if "pickle" in str(error) else _damaged_file(error)) from None


def _embeddings_of(path: Path, arrays: Mapping[str, np.ndarray], record: EmbeddingRecord | None) -> Embeddings:
    """Return the embeddings among the named arrays of a file."""
    if EMBEDDINGS not in arrays:
        raise UsageError(
            f"{path} has no array {EMBEDDINGS!r}; it has {', '.join(sorted(arrays)) or 'none'}.",
            code="missing-file",
        )
    return Embeddings(arrays[EMBEDDINGS], arrays.get(LABELS), record)


def _write_tensors(path: Path, rows: np.ndarray, labels: Sequence[str], record: EmbeddingRecord) -> None:
    from safetensors.numpy import save_file

    tensors, metadata = {EMBEDDINGS: np.ascontiguousarray(rows)}, record_to_metadata(record)
    if "" not in labels:
        classes, codes = np.unique(np.array(labels), return_inverse=True)
        tensors[LABELS], metadata["classes"] = codes.astype(np.int64), json.dumps(classes.tolist())
    save_file(tensors, path, metadata)


def _read_texts(path: Path, column: str) -> list[str]:
    """Return one text per row, from a column of .csv or from the lines of any other file."""
    if path.suffix.lower() == ".csv":
        return read_column(path, column)
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise _unreadable(path, str(error)) from None


def _damaged_file(error: Exception) -> str:
    return f"it is damaged or truncated ({str(error).rstrip('.')}). Make or copy it again"


def _unreadable(path: Path, reason: str) -> UsageError:
    return UsageError(f"{path} cannot be read: {reason.rstrip('.')}.", code="unreadable-file")
