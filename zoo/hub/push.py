"""Push a model folder to the Hub.

What of a model goes to the Hub: the files, where to, and what the Hub answered.

A model folder onto the Hugging Face Hub: checked first, its known files only, in one commit.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.errors import ModelFolderError, UsageError, ZooError
from zoo.files import atomic_folder, read_json, write_bytes
from zoo.hub import download
from zoo.hub.errors import convert_error
from zoo.hub.model_page import OnnxGraph, graphs_of, readme
from zoo.models.card import Card, read_card
from zoo.models.folder import KNOWN_FILES, check_config, find_pickles, known_files, path_inside
from zoo.models.load import find_model
from zoo.models.verify import verify, verify_records
from zoo.paths import without_paths


@dataclass(frozen=True)
class Publication:
    """What went to the Hub, or would: `contents` maps names to files or, for what was made for the Hub, bytes.

    remarks: what whoever sends it should know of it. commit, url: of the commit, None where nothing was sent.
    pull_request: its address, where one was opened.
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
        """The names of the files with their bytes."""
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
        return self._bytes("README.md").decode()

    def write(self, folder: Path) -> None:
        """Write the files to a new folder, as they would lie on the Hub. Raises `UsageError` where one is there."""
        if folder.exists():
            raise UsageError(f"{folder} is already there; name a folder that can be made.")
        with atomic_folder(folder) as temporary:
            for name in self.contents:
                write_bytes(temporary / name, self._bytes(name))

    def to_json(self) -> dict[str, Any]:
        facts = dataclasses.asdict(dataclasses.replace(self, contents={}))
        return {**facts, "contents": self.sizes, "left_out": list(self.left_out)}

    def _bytes(self, name: str) -> bytes:
        data = self.contents[name]
        return data if isinstance(data, bytes) else data.read_bytes()


def push(
    model: str | os.PathLike[str],
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
    """Put a model, by name or path, into the Hub's repository `org/name`; a bare name goes under `ZOO_HUB_ORG`.

    The model must not fail `zoo verify`, the golden embeddings among its checks, and hold no pickle. Sent are the
    files of a model folder and no others, with a README.md made from the card, the results and the published numbers,
    as one commit on top of what the repository held when it was looked at; should somebody push meanwhile, nothing is
    changed. Files of a model folder that are on the Hub and no longer here are removed in it, except in a pull request.
    Of paths of this machine, as recipe.json may hold them, the last part is sent alone.
    Graphs whose loss in retrieval is not shown to be small are sent; `Publication.remarks` and the README name them.

    private: whether a repository that has to be made is private (default: the organisation's habit). branch, or
    revision, as loading calls it: made where there is none (default: main). create_pr: as a pull request to a
    repository that is there. licence: in place of the card's. dry_run: check and put together, and send nothing.
    force: also with ONNX graphs that were exported though they are below the floor of `zoo export`; the README says so.

    The login is huggingface_hub's own: `hf auth login` or HF_TOKEN. Raises `ModelNotFoundError`, `ModelFolderError`,
    `UsageError` and, from the Hub, `HubError` or `ModelNotFoundError`.
    """
    if branch and revision and branch != revision:
        raise UsageError(f"branch and revision are one thing, and they name two: {branch!r} and {revision!r}.")
    branch = branch or revision
    if create_pr and branch:
        raise UsageError("a pull request goes to the main branch; give either a branch or a pull request.")
    if create_pr and private is not None:
        raise UsageError("a pull request goes to a repository that is there, which is private or not already.")
    repo_id = _repository(repo_id)
    planned = prepare(find_model(model), repo_id, branch or "main", licence, force)
    return planned if dry_run else _send(planned, private, create_pr, message)


def prepare(folder: Path, repo_id: str, revision: str, licence: str | None = None, force: bool = False) -> Publication:
    """What would be sent of a model folder. Raises `ModelFolderError` where it may not be."""
    card = read_card(folder)
    names = known_files(folder, card)
    _check(folder, card, names)
    graphs = graphs_of(folder)
    if not force:
        _check_graphs(graphs)
    contents: dict[str, Path | bytes] = {name: (folder / name).resolve() for name in names}
    if licence is not None:
        card = dataclasses.replace(card, licence=licence)
        contents["card.json"] = _json(card.to_json())
    cut = {name: _json(told) for name, said in _records(folder, names) if (told := without_paths(said)) != said}
    contents |= cut
    contents["README.md"] = readme(folder, card, repo_id, names).encode()
    others = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - contents.keys()
    remarks = [graph.remark for graph in graphs if graph.remark]
    if cut:
        remarks.append(f"{' and '.join(sorted(cut))}: of paths of this machine the last part is sent alone")
    return Publication(repo_id, revision, dict(sorted(contents.items())), tuple(sorted(others)), tuple(remarks))


def _records(folder: Path, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What the files say that tell how the model was made. Raises `ModelFolderError` for one that cannot be read."""
    for name in sorted({"recipe.json", "onnx/parity.json"} & set(names)):
        try:
            yield name, read_json(folder / name)
        except (OSError, ValueError) as error:
            raise ModelFolderError(
                f"{folder / name} cannot be read as JSON: {error}. What it tells of this machine cannot be seen, and "
                "nothing was sent. Make it again, or remove it."
            ) from None


def _json(value: Any) -> bytes:
    return f"{json.dumps(value, indent=2, ensure_ascii=False)}\n".encode()


def _repository(repo_id: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    repo_id = download.repository_id(repo_id)
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        raise UsageError(f"{repo_id!r} is no valid name of a Hub repository; expected org/name.") from None
    return repo_id


def _check(folder: Path, card: Card, names: list[str]) -> None:
    """Raise `ModelFolderError` unless the folder is whole, harmless and gives its golden embeddings."""
    if found := find_pickles(folder):
        raise ModelFolderError(f"{folder} holds {', '.join(found)}: pickles are not published. Remove them first.")
    for name in names:
        path_inside(folder, name)
    check_config(folder, card)
    checks = [*verify(folder), *verify_records(folder)]
    failed = [f"{check.name} ({check.detail})" for check in checks if check.fails]
    if failed:
        raise ModelFolderError(f"{card.name} does not pass zoo verify, and nothing was sent: {'; '.join(failed)}.")
    if not any(check.ok and check.name.startswith("golden") for check in checks):
        raise ModelFolderError(
            f"the golden embeddings of {card.name} cannot be checked here, with neither torch nor onnxruntime, and "
            "nothing was sent. Install one: pip install 'dml-zoo[train]' or 'dml-zoo[cpu]'"
        )


def _check_graphs(graphs: Sequence[OnnxGraph]) -> None:
    if below := [graph.file for graph in graphs if not graph.holds]:
        raise ModelFolderError(
            f"{', '.join(below)} was kept though it gives other embeddings than torch by more than zoo export allows "
            "(onnx/parity.json), and nothing was sent. Export it anew or remove it; to publish it all the same, with a "
            "remark in the README: --force (force=True)."
        )


def _send(planned: Publication, private: bool | None, create_pr: bool, message: str | None) -> Publication:
    from huggingface_hub import HfApi

    api, repo_id, revision = HfApi(), planned.repository, planned.revision
    try:
        if not create_pr:
            api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise UsageError(f"{repo_id} is on the Hub already, and everybody may read it. Nothing was sent.")
        if revision != "main":
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        there = api.model_info(repo_id, revision=revision)
        done = api.create_commit(
            repo_id,
            _operations(planned, [] if create_pr else [file.rfilename for file in there.siblings or []]),
            commit_message=message or f"{planned.name} by dml-zoo",
            revision=revision,
            create_pr=create_pr,
            parent_commit=there.sha,
        )
    except ZooError:
        raise
    except Exception as error:  # the client's own errors, the HTTP library's and those of what stores large files
        raise convert_error(error, repo_id, revision) from None
    return dataclasses.replace(planned, url=done.commit_url, commit=done.oid, pull_request=done.pr_url)


def _operations(planned: Publication, remote: list[str]) -> list[Any]:
    """One commit: every file, and the removal of a model folder's files that are there and no longer here."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    add = [CommitOperationAdd(name, data) for name, data in planned.contents.items()]
    ours = {name for name in remote if name in KNOWN_FILES or (name.startswith("onnx/") and name.endswith(".onnx"))}
    return [*add, *(CommitOperationDelete(name) for name in sorted(ours - planned.contents.keys()))]
