"""Pushes of model folders to the Hugging Face Hub: checked first, known files only, in one commit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.errors import ModelFolderError, UsageError, ZooError
from zoo.files import atomic_folder, read_json, write_bytes
from zoo.hub.download import repository_id
from zoo.hub.errors import convert_error
from zoo.hub.model_page import OnnxGraph, graphs_of, readme
from zoo.models.card import UNKNOWN_LICENCE, Card, read_card
from zoo.models.folder import KNOWN_FILES, check_config, find_pickles, known_files, path_inside
from zoo.models.names import find_model
from zoo.models.registry import ModelLike
from zoo.models.verify import verify, verify_records
from zoo.paths import without_paths


@dataclass(frozen=True)
class Publication:
    """The files that are sent to the Hub for a model, and the Hub's answer.

    Attributes:
        repository: The repository, `org/name`.
        revision: The branch.
        contents: By name a file, or the bytes of a file that was made for the Hub.
        left_out: The files of the model folder that are not sent.
        remarks: Warnings for the sender.
        url, commit: Of the commit; None where nothing was sent.
        pull_request: The address of the pull request, if one was opened.
    """

    repository: str
    revision: str
    contents: Mapping[str, Path | bytes] = field(repr=False)
    left_out: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    url: str | None = None
    commit: str | None = None
    pull_request: str | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file in bytes."""
        return {
            name: len(data) if isinstance(data, bytes) else data.stat().st_size for name, data in self.contents.items()
        }

    @property
    def name(self) -> str:
        """The model's name in the card that is sent."""
        name: str = json.loads(self._bytes("card.json"))["name"]
        return name

    @property
    def readme(self) -> str:
        """The text of README.md."""
        return self._bytes("README.md").decode()

    def write(self, folder: Path) -> None:
        """Write the files to a new folder, as they would be on the Hub.

        Raises:
            UsageError: If the folder exists.
        """
        if folder.exists():
            raise UsageError(f"{folder} exists already; name a new folder.", code="already-exists")
        with atomic_folder(folder) as temporary:
            for name in self.contents:
                write_bytes(temporary / name, self._bytes(name))

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the sizes of the contents."""
        fields = dataclasses.asdict(dataclasses.replace(self, contents={}))
        return {**fields, "contents": self.sizes, "left_out": list(self.left_out)}

    def _bytes(self, name: str) -> bytes:
        data = self.contents[name]
        return data if isinstance(data, bytes) else data.read_bytes()


def push(
    model: ModelLike,
    repo_id: str,
    private: bool | None = None,
    branch: str | None = None,
    create_pr: bool = False,
    licence: str | None = None,
    message: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    revision: str | None = None,
) -> Publication:
    """Push a model to a repository on the Hub.

    The model must pass `zoo verify`, golden embeddings included, and contain no pickle. Only a model folder's files are
    sent, with a README.md made from the card, the results and the published numbers. They are one commit on top of the
    repository's last one; if somebody pushes meanwhile, nothing is changed. A model folder's files that are on the Hub
    and missing here are removed there, except in a pull request. Of paths on this machine, as in recipe.json, only the
    last part is sent. Graphs with a loss in retrieval that may be large are sent; `Publication.remarks` and the README
    name them.

    The login is huggingface_hub's own: `hf auth login` or HF_TOKEN.

    Args:
        model: The model.
        repo_id: `org/name`; a bare name goes under `ZOO_HUB_ORG`.
        private: Whether a new repository is private (default: the organisation's setting).
        branch: The branch, created if missing (default: main).
        revision: Another name of `branch`.
        create_pr: Open a pull request in an existing repository instead.
        licence: The licence to state instead of the card's.
        message: The commit's message.
        dry_run: Check and collect the files, and send nothing.
        force: Send ONNX graphs below the floor of `zoo export` as well; the README says so.

    Returns:
        The sent files and the commit.

    Raises:
        ModelNotFoundError: If there is no such model, or no such repository for a pull request.
        ModelFolderError: If the model is damaged or must not be published.
        UsageError: If arguments contradict each other.
        HubError: If the Hub refuses or is out of reach.
    """
    if branch and revision and branch != revision:
        reason = f"branch and revision mean the same, but differ: {branch!r} and {revision!r}."
        raise UsageError(reason, code="conflicting-options")
    branch = branch or revision
    if create_pr and branch:
        reason = "a pull request goes to the main branch; give either a branch or a pull request."
        raise UsageError(reason, code="conflicting-options")
    if create_pr and private is not None:
        reason = "a pull request goes to an existing repository, which is already private or public."
        raise UsageError(reason, code="conflicting-options")
    repo_id = _valid_repository(repo_id)
    publication = prepare(find_model(model), repo_id, branch or "main", licence, force)
    return publication if dry_run else _send(publication, private, create_pr, message)


def prepare(folder: Path, repo_id: str, revision: str, licence: str | None = None, force: bool = False) -> Publication:
    """Check a model folder and collect the files to send.

    Args:
        folder: The model folder.
        repo_id: The repository, `org/name`.
        revision: The branch.
        licence: The licence to state instead of the card's.
        force: Whether ONNX graphs below the floor of `zoo export` are sent as well.

    Raises:
        ModelFolderError: If the model is damaged or must not be published.
    """
    card = read_card(folder)
    names = known_files(folder, card)
    _check_folder(folder, card, names)
    graphs = graphs_of(folder)
    if not force:
        _check_graphs(graphs)
    contents: dict[str, Path | bytes] = {name: (folder / name).resolve() for name in names}
    if licence is not None:
        card = dataclasses.replace(card, licence=licence)
        contents["card.json"] = _json_bytes(card.to_json())
    shortened: dict[str, bytes] = {}
    for name, record in _read_records(folder, names):
        if (public := without_paths(record)) != record:
            shortened[name] = _json_bytes(public)
    contents |= shortened
    contents["README.md"] = readme(folder, card, repo_id, names).encode()
    left_out = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - contents.keys()
    remarks = [graph.remark for graph in graphs if graph.remark]
    if UNKNOWN_LICENCE in card.licence:
        remarks.append(f"the licence is {card.licence}: no source states it. If you know it, state it: --licence ID")
    if shortened:
        remarks.append(f"{' and '.join(sorted(shortened))}: only the last part of paths on this machine is sent")
    return Publication(repo_id, revision, dict(sorted(contents.items())), tuple(sorted(left_out)), tuple(remarks))


def _read_records(folder: Path, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Read the files that may contain paths of this machine, because they say how the model was made.

    Raises:
        ModelFolderError: If a file cannot be read.
    """
    for name in sorted({"recipe.json", "onnx/parity.json"} & set(names)):
        try:
            yield name, read_json(folder / name)
        except (OSError, ValueError) as error:
            raise ModelFolderError(
                f"{folder / name} cannot be read as JSON: {error}. It may contain paths of this machine, so nothing "
                "was sent. Make it again, or remove it.",
                code="damaged-file",
            ) from None


def _json_bytes(value: Any) -> bytes:
    return f"{json.dumps(value, indent=2, ensure_ascii=False)}\n".encode()


def _valid_repository(repo_id: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    repo_id = repository_id(repo_id)
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        message = f"{repo_id!r} is not a valid name of a Hub repository; expected org/name."
        raise UsageError(message, code="invalid-value") from None
    return repo_id


def _check_folder(folder: Path, card: Card, names: list[str]) -> None:
    """Check that the folder is complete and harmless, and gives its golden embeddings.

    Raises:
        ModelFolderError: If it does not.
    """
    if pickles := find_pickles(folder):
        message = f"{folder} contains {', '.join(pickles)}: pickles are not published. Remove them first."
        raise ModelFolderError(message, code="unsafe-file")
    for name in names:
        path_inside(folder, name)
    check_config(folder, card)
    checks = [*verify(folder), *verify_records(folder)]
    failed = [f"{check.name} ({check.detail})" for check in checks if check.fails]
    if failed:
        message = f"{card.name} does not pass zoo verify, and nothing was sent: {'; '.join(failed)}."
        raise ModelFolderError(message, code="verification-failed")
    if not any(check.ok and check.name.startswith("golden") for check in checks):
        raise ModelFolderError(
            f"the golden embeddings of {card.name} cannot be checked here, with neither torch nor onnxruntime, and "
            "nothing was sent. Install one: pip install 'dml-zoo[train]' or 'dml-zoo[cpu]'",
            code="verification-failed",
        )


def _check_graphs(graphs: Sequence[OnnxGraph]) -> None:
    if below := [graph.file for graph in graphs if not graph.holds]:
        raise ModelFolderError(
            f"{', '.join(below)} differs from torch by more than zoo export allows (onnx/parity.json), and nothing was "
            "sent. Export it again or remove it; to publish it nevertheless, with a remark in the README: --force "
            "(force=True).",
            code="below-floor",
        )


def _send(publication: Publication, private: bool | None, create_pr: bool, message: str | None) -> Publication:
    from huggingface_hub import HfApi

    api, repo_id, revision = HfApi(), publication.repository, publication.revision
    try:
        if not create_pr:
            api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            reason = f"{repo_id} exists on the Hub, and everybody may read it. Nothing was sent."
            raise UsageError(reason, code="not-confirmed")
        if revision != "main":
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        current = api.model_info(repo_id, revision=revision)
        commit = api.create_commit(
            repo_id,
            _operations(publication, [] if create_pr else [file.rfilename for file in current.siblings or []]),
            commit_message=message or f"{publication.name} by dml-zoo",
            revision=revision,
            create_pr=create_pr,
            parent_commit=current.sha,
        )
    except ZooError:
        raise
    except Exception as error:  # from the client, the HTTP library or the store of large files
        raise convert_error(error, repo_id, revision) from None
    return dataclasses.replace(publication, url=commit.commit_url, commit=commit.oid, pull_request=commit.pr_url)


def _operations(publication: Publication, remote: list[str]) -> list[Any]:
    """Return the operations of one commit: add every file, remove a model folder's files that are missing here."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    added = [CommitOperationAdd(name, data) for name, data in publication.contents.items()]
    replaceable = {
        name for name in remote if name in KNOWN_FILES or (name.startswith("onnx/") and name.endswith(".onnx"))
    }
    return [*added, *(CommitOperationDelete(name) for name in sorted(replaceable - publication.contents.keys()))]
