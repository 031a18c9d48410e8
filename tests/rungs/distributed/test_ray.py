"""Processes of Ray judge what this process judges, and no other way; what they lose is judged again."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gguf_verify.rungs.blocks
from gguf_verify.distributed.connection import connected
from gguf_verify.distributed.worker import Judged
from gguf_verify.llama import LlamaRefused
from gguf_verify.results import Options, Report
from gguf_verify.rungs.budget import Budget
from gguf_verify.rungs.tasks import Step
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.verification import verify
from tests.support.ahead import Lethal, Waits, told
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.needs("ray")
EXAMPLE = Path(__file__).parents[3] / "examples" / "cuda_q4_0.cu"
FAULT = ("- 8.0f * from_half", "- 7.9f * from_half")
OPTIONS = Options(
    probes="brief", prompt="The import statement", n_predict=2, tensor=r"blk\.0\.attn_[qk]", progress=False, threads=1
)


@pytest.fixture(scope="module", autouse=True)
def _ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray with two processors for all tests of this module: it takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gguf_verify.distributed.connection.cores", lambda: 2)
        patch.setenv("LETHAL_MARKER", str(tmp_path_factory.mktemp("lethal") / "marker"))
        with connected("local"):
            yield


def run(kernel: str, ray: str | None, *rungs: str) -> Report:
    return verify(FIXTURES / "tiny-Q4_0.gguf", kernel, "cpu", rungs=rungs, options=OPTIONS, ray=ray)


def test_the_report_is_that_of_one_process(tmp_path: Path) -> None:
    """Of a wrong kernel of somebody else's, which runs in its sandbox there as here."""
    file = tmp_path / "kernel.cu"
    file.write_text(EXAMPLE.read_text().replace(*FAULT))
    here, there = (run(f"{file}:gemm", ray, "bytes", "blocks", "layers") for ray in (None, "local"))
    assert [rung.verdict for rung in here.rungs] == ["passed", "failed", "failed"]
    assert told(there) == told(here)


def test_a_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that kills its process is judged by the next one, which opens the model and the kernel anew."""
    here = run("q8_1_naive", None, "blocks", "layers")
    monkeypatch.setattr(gguf_verify.rungs.blocks, "BlocksTask", Lethal)
    there = run("q8_1_naive", "local", "blocks", "layers")
    assert Path(os.environ["LETHAL_MARKER"]).exists()
    assert here.exit_code == 0
    assert told(there) == told(here)


def run_of() -> Any:
    """A run of which only the budget is asked."""
    return SimpleNamespace(budget=Budget())


class Judge:
    """A worker that only judges."""

    def judge(self, task: Any, left: float | None, words: str) -> Judged:
        assert (left, words) == (None, Budget().words)
        return Judged(task.judge(None), cut=False)


def test_order_and_bounds(tmp_path: Path) -> None:
    """The first task waits until another was judged; what comes back is in the plan's order all the same, no more tasks
    are planned ahead than are bounded, and what breaks off the plan comes after what was planned before."""
    import ray

    from gguf_verify.distributed.cluster import Cluster

    planned = []

    def plan() -> Generator[Step[Waits]]:
        for i in range(40):
            planned.append(i)
            yield Step(task=Waits(i, str(tmp_path / "third"), waits=i == 0, marks=i == 3))
        raise LlamaRefused("no more")

    workers = [ray.remote(Judge).options(num_cpus=0).remote() for _ in range(2)]
    found, ahead = [], []

    def follow() -> None:
        for _, answer in Cluster(workers).each(run_of(), plan()):
            found.append(answer)
            ahead.append(len(planned) - len(found))

    with pytest.raises(LlamaRefused, match="no more"):
        follow()
    for worker in workers:
        ray.kill(worker)
    assert found == list(range(40))
    assert max(ahead) <= 2 * 4


def test_a_task_that_is_lost_each_time() -> None:
    """It ends the run with one line, and is not given out for ever."""
    import ray

    from gguf_verify.distributed.cluster import Cluster

    worker = ray.remote(Judge).options(num_cpus=0, max_restarts=-1, max_task_retries=1).remote()
    task = Waits(0, "", waits=False, marks=False, dies=True)
    with pytest.raises(EnvironmentFault, match="a worker of Ray was lost"):
        list(Cluster([worker]).each(run_of(), (Step(task=task) for _ in range(1))))
    ray.kill(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net")
def test_a_local_ray_listens_to_this_machine_alone() -> None:
    """No socket of its processes is open to the network, and its folder is private."""
    import ray

    node = ray.get_runtime_context().gcs_address
    assert node.startswith("127.0.0.1:")
    with socket.create_connection(("127.0.0.1", int(node.rpartition(":")[2])), 10):
        pass
    folder = Path(ray._private.worker._global_node.get_session_dir_path()).parent
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert not ray._private.worker._global_node.webui_url
    mine = _descendants(os.getpid())
    listening = {address for pid in mine for address in _listening(pid)}
    assert listening
    assert {address.rpartition(":")[0] for address in listening} <= {"0100007F", "0000000000000000FFFF00000100007F"}


def _descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _listening(pid: int) -> set[str]:
    """Addresses, as the kernel writes them, at which a process listens."""
    inodes = set()
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            inodes.add(os.readlink(fd).removeprefix("socket:[").rstrip("]"))
    except OSError:
        pass
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}
