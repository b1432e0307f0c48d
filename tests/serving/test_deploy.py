"""The texts under deploy/: what they name exists, what they start can be started, and linters have nothing to say."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from serving.gallery import VectorGallery
from serving.gallery.backup import restore
from serving.gallery.indexing import index_folder
from tests.commandline import parsed
from tests.serving.running import ROOT, settings
from zoo.models.load import Embedder

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "dml-zoo.service"
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}


def serve_arguments(words: list[str]) -> dict[str, Any]:
    """Return the parameters that `zoo serve` gets."""
    assert words[1] == "serve"
    return parsed("serve", *words[2:])


def stages() -> list[list[tuple[str, str]]]:
    """Return instructions and arguments, one list per stage."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [tuple(re.split(r"\s+", line.strip(), maxsplit=1)) for line in text.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line[0] == "FROM"]
    return [lines[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]


def test_the_containerfile_is_made_of_instructions_and_of_files_that_there_are() -> None:
    build, final = stages()
    assert {name for name, _ in build + final} <= INSTRUCTIONS | {"ENTRYPOINT", "CMD"}
    # One argument names the base image of both stages, so that a digest can pin it.
    assert [rest.removesuffix(" AS build") for name, rest in build + final if name == "FROM"] == ["$PYTHON"] * 2
    (base,) = re.findall(r"^ARG PYTHON=(\S+)$", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    assert re.fullmatch(r"\S+:3\.\d+-slim(@sha256:[0-9a-f]{64})?", base)
    copied = [word for name, rest in build if name == "COPY" for word in rest.split()[:-1]]
    assert all((ROOT / word).exists() for word in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], project["project"]["readme"]]
    assert {*needed, *project["project"]["license-files"], "pyproject.toml", "constraints.txt"} == set(copied)
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", dict(build)["RUN"])
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])


def test_the_container_serves_as_nobody_in_particular() -> None:
    final = dict(stages()[1])
    assert f"useradd --system --uid {int(final['USER'])} --create-home zoo" in final["RUN"]
    entry = json.loads(final["ENTRYPOINT"])
    args = serve_arguments([*entry, *json.loads(final["CMD"])])
    assert (args["galleries"], args["host"], str(args["port"])) == ([final["VOLUME"]], "0.0.0.0", final["EXPOSE"])
    own = serve_arguments([*entry, "birds=/birds", "cars=/cars", "--workers", "2"])
    assert (own["galleries"], own["host"]) == (["birds=/birds", "cars=/cars"], "0.0.0.0")
    *_, code = json.loads(final["HEALTHCHECK"].partition("CMD ")[2])
    ast.parse(code)
    assert f":{args['port']}/readyz" in code
    assert not re.search(r"KEYS\s*=|SECRET|TOKEN", final["ENV"])


def test_hadolint_has_nothing_to_say_of_the_containerfile(tmp_path: Path) -> None:
    told = subprocess.run(
        [HADOLINT, "--no-color", "--format", "json", DEPLOY / "Containerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, json.loads(told.stdout)) == (0, [])
    (tmp_path / "Containerfile").write_text("FROM debian:latest\nRUN cd /tmp && sudo apt install curl\n")
    bad = subprocess.run([HADOLINT, tmp_path / "Containerfile"], capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert {"DL3004", "DL3007"} <= set(re.findall(r"DL\d+", bad.stdout)), "it does look"


def unit(path: Path = UNIT) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
    parser.read(path)
    return parser


def test_the_unit_starts_the_service_and_gives_it_no_more_than_it_needs() -> None:
    service = unit()["Service"]
    named = "birds=birds cars=cars"  # of the unit's comment
    assert f'GALLERIES="{named}"' in UNIT.read_text()
    args = serve_arguments(service["ExecStart"].replace("$GALLERIES", named).split())
    assert (args["host"], args["workers"]) == ("127.0.0.1", "2")
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
    assert args["galleries"] == named.split()
    assert service["WorkingDirectory"] == service["ReadWritePaths"]
    assert service["EnvironmentFile"].startswith("/etc/")
    assert "KEYS" not in service["Environment"]
    defaults = settings()
    assert int(service["TimeoutStopSec"]) > float(args["shutdown_delay"]) + defaults.drain_seconds + 5
    assert (service["User"], service["CapabilityBoundingSet"]) == ("zoo", "")
    gigabyte, bodies = 2**30, defaults.concurrency * defaults.max_body
    limit = int(re.fullmatch(r"(\d+)G", service["MemoryMax"])[1]) * gigabyte  # type: ignore[index]
    assert limit >= bodies + int(args["workers"]) * 2 * gigabyte
    # Each worker has a thread for each request at most, and ONNX Runtime's, FAISS's and the decoders' for each core.
    assert int(service["TasksMax"]) >= defaults.concurrency + int(args["workers"]) * 3 * 16


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", [path.name for path in sorted(DEPLOY.glob("dml-zoo*"))])
def test_systemd_understands_the_unit(name: str, tmp_path: Path) -> None:
    for path in DEPLOY.glob("dml-zoo*"):
        # It looks for the command, which is not installed there on this machine.
        text = path.read_text().replace("/opt/dml-zoo/bin/zoo", shutil.which("true") or "/bin/true")
        (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "dml-zoo" in done.stderr) == (0, False), done.stderr


def run_unit(name: str, instance: str, folder: Path, **environment: str) -> None:
    """Run the command of a unit as systemd would for an instance, with `folder` for its working directory."""
    service = unit(DEPLOY / name)["Service"]
    command = service["ExecStart"].replace("%%", "\0").replace("%i", instance).replace("\0", "%").replace("$$", "$")
    for variable, value in environment.items():
        command = command.replace(f"${{{variable}}}", value)
    words = shlex.split(command.replace("/opt/dml-zoo/bin/zoo", f"{sys.executable} -m zoo.cli.main"))
    subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


@pytest.mark.slow
def test_the_backup_unit_makes_a_copy_and_keeps_the_seven_newest(gallery_folder: Path, tmp_path: Path) -> None:
    backups = tmp_path / "backups" / "birds"
    old = [backups / f"20260101T0{hour}0000Z" for hour in range(9)]
    others = tmp_path / "backups" / "cars" / "20250101T000000Z"
    for folder in (*old, others):
        folder.mkdir(parents=True)
    (tmp_path / "birds").symlink_to(gallery_folder)
    run_unit("dml-zoo-backup@.service", "birds", tmp_path)
    *kept, new = sorted(backups.iterdir())
    assert kept == old[-6:]
    assert others.exists()
    assert restore(new, tmp_path / "again").items == 24


@pytest.mark.slow
def test_the_index_unit_brings_a_gallery_up_to_date(model: Embedder, pictures: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(pictures, tmp_path / "data"))
    index_folder(model, str(model.folder), data, tmp_path / "birds")
    sorted(data.rglob("*.png"))[0].unlink()
    run_unit("dml-zoo-index@.service", "birds", tmp_path, MODEL=str(model.folder), PICTURES=str(data))
    with VectorGallery.open(tmp_path / "birds") as gallery:
        assert gallery.store.count() == 23


def assemble(gallery: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(DEPLOY / "bento" / "assemble.py"), str(gallery), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_a_parcel_holds_the_recipe_the_gallery_and_the_model(gallery_folder: Path, tmp_path: Path) -> None:
    parcel = tmp_path / "parcel"
    done = assemble(gallery_folder, parcel)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(one.name for one in parcel.iterdir()) == ["bentofile.yaml", "gallery", "model", "service.py"]
    assert restore(parcel / "gallery", tmp_path / "again").items == 24
    assert (parcel / "model" / "onnx" / "model.onnx").is_file()
    again = assemble(gallery_folder, parcel)
    assert again.returncode == 1
    assert "choose a new folder" in again.stderr
    assert assemble(tmp_path / "nothing", tmp_path / "other").returncode == 2
    assert not (tmp_path / "other").exists()
