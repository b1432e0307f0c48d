"""Two real processes that share every batch give the results of one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import children
from tests.raising import raises
from tests.training import two_processes
from tests.training.toys import recipe
from training.distributed import Processes
from zoo.errors import RecipeError


@pytest.mark.slow  # starts processes that train
@pytest.mark.timeout(400)
def test_two_processes_give_the_gradients_and_the_run_of_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two_processes.main(one)
    two.mkdir()
    _launch(two)
    alone, shared = load_file(one / "gradients.safetensors"), load_file(two / "gradients.safetensors")
    assert alone.keys() == shared.keys()
    assert "beta" in alone
    for kind in two_processes.BY_GRADIENT:
        assert {name.split(", ")[1] for name in alone if name.startswith(f"{kind}, ")} == {
            f"update {number}" for number in range(4)
        }
    for name, gradient in alone.items():
        assert gradient.abs().max() > 0, name
        assert (shared[name] - gradient).abs().max() < 1e-5 * gradient.abs().max(), name
    for kind in ("run", *two_processes.KINDS):
        logs = [
            [json.loads(line) for line in (run / kind / "log.jsonl").read_text().splitlines()] for run in (one, two)
        ]
        losses = [[record["loss"] for record in log] for log in logs]
        assert losses[1] == pytest.approx(losses[0], rel=1e-5, abs=1e-5), kind
        for alone_record, shared_record in zip(*logs, strict=True):
            for name in ("spread", "norm", "gradient"):
                expected = alone_record["indicators"][name]
                assert shared_record["indicators"][name] == pytest.approx(expected, rel=1e-2, abs=1e-4), (kind, name)
    for name, weight in load_file(one / "weights.safetensors").items():
        torch.testing.assert_close(load_file(two / "weights.safetensors")[name], weight, atol=1e-5, rtol=1e-4)


def _launch(out: Path) -> None:
    """Run both processes, as torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    processes = [
        children.start(two_processes.main, out, environment={**address, **size, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_batch_is_shared_out_evenly_or_refused() -> None:
    assert [Processes(rank, 4).part(8) for rank in range(4)] == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]
    with raises(RecipeError, "conflicting-settings"):
        Processes(0, 3).part(recipe().batch.size)


def test_one_process_exchanges_nothing() -> None:
    rows = torch.randn(3, 2)
    assert Processes().gather(rows) is rows
    Processes().average_gradients([rows])
    Processes().wait()
