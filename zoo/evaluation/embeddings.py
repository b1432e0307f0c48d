""".npy/.safetensors embeddings with provenance.

Whose the rows of a file of embeddings are: what `zoo embed` writes down with them, read again and held against them.

Beside rows.npy it is rows.json, in a .safetensors file it is in the header's metadata.

Embeddings and labels in files that other programs write, too.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import numpy as np
from numpy.lib.format import MAGIC_PREFIX

from zoo.data.table import BOOLEANS, LABEL, PATH, QUERY
from zoo.errors import UsageError
from zoo.files import CHUNK_BYTES, atomic_path, read_json, write_json
from zoo.models.card import MODEL_NAME, Card
from zoo.paths import library_versions

if TYPE_CHECKING:
    from zoo.models.load import Embedder


KIND, SCHEMA = "dml-zoo embeddings", 1

_OPENING = json.dumps({"kind": KIND}, indent=2).removesuffix("\n}").encode()
"""How the file begins; so one that was cut off is told from a JSON file of other programs."""

_FIELD_TYPES = {"int": int, "str": str, "Mapping[str, str]": dict, "Mapping[str, Any]": dict}
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class EmbeddingRecord:
    """What made a file's rows, and by what they are known again.

    model: `Card.identity`. runtime, precision: as it ran. preprocessing: of the card. rows, dim: how many rows of how
    many numbers. sha256: of the numbers, row after row, little-endian float32. names_sha256: of the images' names in
    order, as the table beside the rows has them. date: ISO 8601, UTC. versions: distribution -> version.
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
            held = " x ".join(f"{size:,}" for size in rows.shape) or "one"
            why = f"holds {held} numbers, and the {self.rows:,} x {self.dim:,} of {self.name} were written"
        elif rows.dtype != np.float32 or rows_sha256(rows) != self.sha256:
            why = f"holds other numbers than those that {self.name} gave"
        else:
            return
        raise UsageError(
            f"{path} {why}: it was exchanged, changed or cut off since. Make it again with zoo embed. Rows that are "
            "meant to be others have no record of it: "
            + (f"remove {record_path(path)}." if path.suffix.lower() == ".npy" else "write them without its metadata.")
        )

    def check_images(self, table: Path, names: Sequence[str]) -> None:
        """Raise `UsageError` unless these names, the column path of the table beside the rows, are of their images."""
        if names_sha256(names) != self.names_sha256:
            raise UsageError(
                f"{table} lists other images than the rows are of, or in another order: labels would go to wrong rows. "
                "Make both again with zoo embed, or give labels in the order of the rows in a file of another name."
            )

    def check_model(self, path: Path, card: Card) -> None:
        """Raise `UsageError` unless the card's model is the one that made the rows of the file `path`."""
        if card.fingerprint != self.fingerprint:
            raise UsageError(
                f"{path} holds rows of {self.name} (fingerprint {self.fingerprint[:12]}), not of {card.name} "
                f"(fingerprint {card.fingerprint[:12]}): its weights or preprocessing are others. Make them with: "
                f"zoo embed {card.name} ..."
            )


def make_record(model: Embedder, rows: np.ndarray, names: Sequence[str]) -> EmbeddingRecord:
    """The record of rows, float32 [n, dim], that the model gave for the images of these names."""
    return EmbeddingRecord(
        model=model.card.identity,
        runtime=model.runtime,
        precision=model.precision,
        preprocessing=asdict(model.preprocessing),
        rows=len(rows),
        dim=rows.shape[1],
        sha256=rows_sha256(rows),
        names_sha256=names_sha256(names),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=library_versions(model.runtime),
    )


def rows_sha256(rows: np.ndarray) -> str:
    """SHA-256 of the numbers of rows [n, d] as little-endian float32, a piece of the rows in memory at a time."""
    digest = hashlib.sha256()
    step = max(1, CHUNK_BYTES // (4 * max(1, rows.shape[1])))
    for start in range(0, len(rows), step):
        digest.update(np.ascontiguousarray(rows[start : start + step], "<f4").data)
    return digest.hexdigest()


def names_sha256(names: Sequence[str]) -> str:
    """What is no UTF-8 in a name is a question mark, as in the table."""
    return hashlib.sha256("\0".join(names).encode(errors="replace")).hexdigest()


def record_path(path: Path) -> Path:
    """Where the record of the rows in a .npy file lies."""
    return path.with_suffix(".json")


def write_record(path: Path, record: EmbeddingRecord) -> None:
    """Write the record beside the rows of the .npy file `path`."""
    write_json(record_path(path), record.to_json())


def read_record(path: Path) -> EmbeddingRecord | None:
    """The record beside the rows of the .npy file `path`; None where there is none, a JSON file of others included.

    Raises `UsageError` where it was cut off, is damaged, or of a newer schema.
    """
    beside = record_path(path)
    try:
        values = read_json(beside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{beside}, beside the rows, cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        opening = beside.read_bytes()[: len(_OPENING)]
        if not opening or not _OPENING.startswith(opening):
            return None
        raise _damaged_record(beside, str(error)) from None
    return _parse_record(values, beside) if isinstance(values, dict) and values.get("kind") == KIND else None


def record_to_metadata(record: EmbeddingRecord) -> dict[str, str]:
    """The record as a .safetensors file's metadata."""
    return {"kind": KIND, "record": json.dumps(record.to_json())}


def record_from_metadata(metadata: Mapping[str, str], path: Path) -> EmbeddingRecord | None:
    """The record in a .safetensors file's metadata; None where there is none. Raises as `read_record` does."""
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
            f"{path} says in schema {schema} whose rows these are; this version of dml-zoo reads up to {SCHEMA}. "
            "Upgrade: pip install -U dml-zoo"
        )
    for field in fields(EmbeddingRecord):
        if type(values.get(field.name)) is not _FIELD_TYPES[str(field.type)]:
            raise _damaged_record(path, f"{field.name} is {values.get(field.name)!r}")
    record = EmbeddingRecord(**{field.name: values[field.name] for field in fields(EmbeddingRecord)})
    _check_record(record, path)
    return record


def _check_record(record: EmbeddingRecord, path: Path) -> None:
    """What is printed is a name, and what is compared a hash."""
    for what, value in (
        ("name", record.model.get("name")),
        ("runtime", record.runtime),
        ("precision", record.precision),
    ):
        if not isinstance(value, str) or not MODEL_NAME.fullmatch(value):
            raise _damaged_record(path, f"{what} is {value!r}")
    hashes = {
        "fingerprint": record.model.get("fingerprint"),
        "sha256": record.sha256,
        "names_sha256": record.names_sha256,
    }
    for what, value in hashes.items():
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise _damaged_record(path, f"{what} is {value!r}, no SHA-256")


def _damaged_record(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} does not say as zoo embed does whose rows these are ({why.rstrip('.')}): it was cut off or changed. "
        "Make the rows again with zoo embed, or remove what is damaged, and no model is known of them."
    )


EMBEDDINGS, LABELS = "embeddings", "labels"
"""The names of tensors."""
_NPY, _TENSORS = ".npy", ".safetensors"


class Embeddings(NamedTuple):
    """rows: [n, d]; labels: [n], of a tensor beside them; record: of what made them. None where the file has none."""

    rows: np.ndarray
    labels: np.ndarray | None
    record: EmbeddingRecord | None


def read_embeddings(path: Path) -> Embeddings:
    """Rows of .npy, memory-mapped, or of .safetensors; what the latter holds as labels; and the record of either.

    Raises `UsageError` for a file that is not there or is neither, and for rows that are not those of their record;
    what the rows hold is for who measures them.
    """
    found = Embeddings(_read_npy(path), None, read_record(path)) if _file_type(path) == _NPY else _read_tensors(path)
    if found.record is not None:
        found.record.check_rows(path, found.rows)
    return found


def _file_type(path: Path) -> str:
    if (suffix := path.suffix.lower()) not in (_NPY, _TENSORS):
        raise UsageError(f"embeddings are in a {_NPY} or a {_TENSORS} file, not in {path}.")
    return suffix


def read_labels(path: Path) -> np.ndarray:
    """A label a row, of .npy, of the column `label` of .csv, or of any other text in UTF-8, a label a line: [n].

    Raises `UsageError` for a file that is not there or not so, and for an empty label.
    """
    if path.suffix.lower() == _NPY:
        return _read_npy(path)
    labels = _read_texts(path, LABEL)
    if "" in labels:
        raise UsageError(f"{path}: label {labels.index('') + 1} of {len(labels)} is empty; each row needs one.")
    return np.array(labels, dtype=np.str_)


def read_queries(path: Path) -> np.ndarray:
    """Which rows search, 1 or true of each that does, 0 or false of the others: bool [n].

    From .npy, from the column `query` of .csv, or from any other text in UTF-8, a line a row. Raises `UsageError` for a
    file that is not there or not so.
    """
    expected = f"{path} is to say of each row whether it searches: 1 or true, 0 or false"
    if path.suffix.lower() == _NPY:
        values = _read_npy(path)
        if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
            raise UsageError(f"{expected}.")
        return values.astype(np.bool_)
    texts = _read_texts(path, QUERY)
    told = [BOOLEANS.get(text.strip().lower()) for text in texts]
    if None in told:
        place = told.index(None)
        raise UsageError(f"{expected}; row {place + 1} of {len(told)} says {texts[place][:40]!r}.")
    return np.array(told, np.bool_)


def _read_texts(path: Path, column: str) -> list[str]:
    """A text a row, of a column of .csv or the lines of any other file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read_column(path, file, column) if path.suffix.lower() == ".csv" else file.read().splitlines()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, str(error)) from None


def table_path(path: Path) -> Path:
    """Where the names and labels of a file's rows are written."""
    return path.with_suffix(".csv")


def check_table(embeddings: Path, record: EmbeddingRecord, table: Path) -> None:
    """Raise `UsageError` where `table` is the one beside the rows and names other images than the record's."""
    if table.resolve() == table_path(embeddings).resolve() and (names := _read_paths(table)) is not None:
        record.check_images(table, names)


def _read_paths(table: Path) -> list[str] | None:
    """The column path; None of a table that has none, which is not as it was written."""
    try:
        return _read_texts(table, PATH)
    except UsageError:
        return None


def output_files(path: Path) -> list[Path]:
    """The files that rows are written to: `path`, the table beside it, and of .npy the record.

    Raises `UsageError` for another kind of file.
    """
    return [path, table_path(path), *([record_path(path)] if _file_type(path) == _NPY else [])]


def check_outputs_free(path: Path) -> None:
    """Raise `UsageError` where one of the files that rows are written to is there already."""
    for taken in output_files(path):
        if taken.exists():
            raise UsageError(f"{taken} exists already; name another --out, or give --replace.")


def write_embeddings(path: Path, rows: np.ndarray, about: Sequence[Mapping[str, str]], model: Embedder) -> None:
    """Rows, float32 [n, d], that the model gave, as .npy or .safetensors, with the record of that and `table_of` them.

    about: of each image its path and label, "" for none, and whatever else the table is to say, the same of all; it is
    one that `zoo index --labels` reads. What is no UTF-8 in it is a question mark. A .safetensors file has the tensor
    labels too, int64 [n], where all images have one; the metadata name the classes.
    """
    record = make_record(model, rows, [said[PATH] for said in about])
    with atomic_path(path) as there:
        if _file_type(path) == _NPY:
            with there.open("wb") as file:
                np.save(file, rows, allow_pickle=False)
        else:
            _write_tensors(there, rows, [said[LABEL] for said in about], record)
    with (
        atomic_path(table_path(path)) as there,
        there.open("w", encoding="utf-8", errors="replace", newline="") as file,
    ):
        table = csv.DictWriter(file, list(about[0]))
        table.writeheader()
        table.writerows(about)
    if _file_type(path) == _NPY:
        write_record(path, record)


def _write_tensors(path: Path, rows: np.ndarray, labels: Sequence[str], record: EmbeddingRecord) -> None:
    from safetensors.numpy import save_file

    tensors, metadata = {EMBEDDINGS: np.ascontiguousarray(rows)}, record_to_metadata(record)
    if "" not in labels:
        classes, codes = np.unique(np.array(labels), return_inverse=True)
        tensors[LABELS], metadata["classes"] = codes.astype(np.int64), json.dumps(classes.tolist())
    save_file(tensors, path, metadata)


def _read_column(path: Path, file: TextIO, name: str) -> list[str]:
    reader = csv.DictReader(file)
    if name not in (reader.fieldnames or ()):
        raise UsageError(f"{path} lacks the column {name}; it has {', '.join(reader.fieldnames or ()) or 'none'}.")
    return [row[name] or "" for row in reader]


def _read_npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
                raise _unreadable(path, "it is no .npy file")
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except (ValueError, OverflowError, SyntaxError, TokenError, EOFError) as error:
        raise _unreadable(path, str(error) if "Python objects" in str(error) else _damaged_file(error)) from None
    return found


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
    except (KeyError, TypeError, AttributeError) as error:  # of a dtype that NumPy has not
        raise _unreadable(path, str(error)) from None
    if EMBEDDINGS not in tensors:
        raise UsageError(f"{path} has no tensor {EMBEDDINGS!r}; it has {', '.join(sorted(tensors)) or 'none'}.")
    return Embeddings(tensors[EMBEDDINGS], tensors.get(LABELS), record_from_metadata(metadata, path))


def _damaged_file(error: Exception) -> str:
    return f"it is damaged or was cut off ({str(error).rstrip('.')}). Make or copy it again"


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} cannot be read: {why.rstrip('.')}.")
