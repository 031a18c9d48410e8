"""Processes of Ray judge as this process does; tasks of lost processes are judged again."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gguf_verify.rungs.blocks
from gguf_verify.audit.audit import audit
from gguf_verify.audit.record import AuditOptions
from gguf_verify.distributed import audits, connection
from gguf_verify.distributed.connection import connected
from gguf_verify.distributed.worker import Place
from gguf_verify.gguf.model import open_model
from gguf_verify.identification import identify_model
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.report.json import of_audit, of_identification
from gguf_verify.results.environment import Observed
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.budget import Budget
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.rungs.pool import Judged, Pool, Step
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.verification import verify
from gguf_verify_nightly.config import read_config
from gguf_verify_nightly.exclusive import Interrupted
from gguf_verify_nightly.history import History
from gguf_verify_nightly.night import Settings, run_night
from gguf_verify_nightly.records import Night
from tests.support.ahead import Card, Lethal, LethalContents, Nothing, Waits, told, without_times
from tests.support.processes import descendants, gone, wait_until
from tests.support.stub_nights import STUB, plain, write_config
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.needs("ray")
EXAMPLE = Path(__file__).parents[3] / "examples" / "cuda_q4_0.cu"
FAULT = ("- 8.0f * from_half", "- 7.9f * from_half")
OPTIONS = Options(
    probes="brief", prompt="The import statement", n_predict=2, tensor=r"blk\.0\.attn_[qk]", progress=False, threads=1
)


@pytest.fixture(scope="module", autouse=True)
def _ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray with two processors, and two GPUs that it only counts, for all tests of this module: it takes seconds to
    start."""
    with connection._variables("local"):
        import ray  # it reads the variables

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "init", functools.partial(ray.init, num_gpus=2))
        patch.setattr("gguf_verify.distributed.connection.cores", lambda: 2)
        patch.setenv("LETHAL_MARKER", str(tmp_path_factory.mktemp("lethal") / "marker"))
        with connected("local"):
            yield


def run(kernel: str, ray: str | None, *rungs: str, options: Options = OPTIONS) -> Report:
    return verify(FIXTURES / "tiny-Q4_0.gguf", kernel, "cpu", rungs=rungs, options=options, ray=ray)


def test_the_report_is_that_of_one_process(tmp_path: Path) -> None:
    """Of an incorrect foreign kernel in its sandbox; its first wrong product is written as files."""
    file, case = tmp_path / "kernel.cu", tmp_path / "case"
    file.write_text(EXAMPLE.read_text().replace(*FAULT))
    options = dataclasses.replace(OPTIONS, save_case=str(case))
    reports, cases = [], []
    for ray in (None, "local"):
        reports.append(run(f"{file}:gemm", ray, "bytes", "blocks", "layers", options=options))
        cases.append({path.name: path.read_bytes() for path in case.iterdir()})
        shutil.rmtree(case)
    here, there = reports
    assert [rung.verdict for rung in here.rungs] == ["passed", "failed", "failed"]
    assert told(there) == told(here)
    assert cases[0]["y.npy"]
    assert cases[0] == cases[1]


def test_a_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that kills its process is judged by the next one, which opens the model and the kernel anew."""
    here = run("q8_1_naive", None, "blocks", "layers")
    monkeypatch.setattr(gguf_verify.rungs.blocks, "BlocksTask", Lethal)
    there = run("q8_1_naive", "local", "blocks", "layers")
    assert lost("blocks")
    assert here.exit_code == 0
    assert told(there) == told(here)


def lost(name: str) -> bool:
    """Whether a process was killed by `die_once` of that name."""
    return Path(os.environ["LETHAL_MARKER"]).with_name(name).exists()


def test_drawn_data_and_definitions() -> None:
    """Each process makes the same random data; types are identified in order."""
    drawn, options = Drawn(("Q4_0", "Q5_1"), (3,), (64,), (256,)), dataclasses.replace(OPTIONS, tensor=None)
    here, there = (
        (verify(drawn, "q8_1_naive", "cpu", options=options, ray=ray),
         identify_model(drawn, "q8_1_naive", "cpu", options, ray=ray)) for ray in (None, "local")
    )  # fmt: skip
    assert here[0].exit_code == here[1].exit_code == 0
    assert told(there[0]) == told(here[0])
    assert {p.type for p in here[1].products} == {"Q4_0", "Q5_1"}
    assert of_identification(there[1]) == of_identification(here[1])


def test_an_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """With a block that is not finite, one that is not the source's, and a worker that is lost, of
    which Ray prints nothing beside the report."""
    content = bytearray((FIXTURES / "tiny-Q4_0.gguf").read_bytes())
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as model:
        first, second = (model.tensors[f"blk.{i}.attn_q.weight"] for i in (0, 2))
        content[first.offset : first.offset + 2] = b"\x00\x7c"  # the half for infinity
        content[second.offset + 5] ^= 1
    monkeypatch.chdir(tmp_path)
    path = Path("model.gguf")  # reports use the caller's name
    path.write_bytes(content)
    options = AuditOptions(source=FIXTURES / "tiny-F16.gguf", readers=False, progress=False)
    here = audit(path, options)
    monkeypatch.setattr(audits, "ContentsOf", LethalContents)
    there = audit(path, options, elsewhere=audits.examiners("local", options))
    assert lost("contents")
    assert not capfd.readouterr().out
    assert {f.id[9:] for f in here.findings} >= {"scale-not-finite", "source-differs"}
    assert without_times(of_audit(there)) == without_times(of_audit(here))
    assert repr([c.xrays for c in there.comparisons]) == repr([c.xrays for c in here.comparisons])  # they hold NaN


def test_a_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that end in every way, one of them at first with the process of Ray that ran it."""
    marker = tmp_path / "marker"
    prompts = {
        "a": "pass", "b": "mismatch", "c": "segv", "d": f"killed-with-its-worker {marker}", "e": "hangs /dev/null",
        "f": "changed",
    }  # fmt: skip
    nights, said = list[Night](), list[str]()
    for ray in (None, "local"):
        path = write_config(tmp_path, "jobs = 2\ntime_limit = 5\nkeep_reports = 'all'", **prompts)
        if ray is None:
            marker.touch()
        else:
            marker.unlink()
        run_night(read_config(path), Settings(harness=STUB, ray=ray, grace=0.5, say=said.append))
        with History(tmp_path / "nightly.sqlite") as history:
            nights.append(history.night(len(nights) + 1, reports=True))
    here, there = nights
    assert marker.exists(), said
    assert [cell.outcome for cell in here.cells.values()] == [
        "verified", "mismatch", "crashed", "verified", "timed out", "broken off",
    ]  # fmt: skip
    assert plain(there) == plain(here)
    assert there.planned == here.planned
    assert there.finished


def test_a_cell_that_is_lost_each_time(tmp_path: Path) -> None:
    """It counts as killed by another process, and the night goes on."""
    path = write_config(tmp_path, "jobs = 2", a="pass", b="kills-its-worker")
    said = list[str]()
    night = run_night(read_config(path), Settings(harness=STUB, ray="local", say=said.append))
    assert [(key.prompt, cell.outcome) for key, cell in night.cells.items()] == [("a", "verified")]
    assert any("its Ray worker was lost on every attempt" in line for line in said)
    assert not night.finished


def test_a_signal_ends_a_night(tmp_path: Path) -> None:
    """With all that its cells started; the same command resumes it."""
    pids = tmp_path / "pids"
    path = write_config(tmp_path, "jobs = 2\ntime_limit = 600", a="pass", b=f"hangs {pids}")

    said = list[str]()

    def signals() -> None:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        wait_until(lambda: any("verified" in line for line in said))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=signals)
    thread.start()
    with pytest.raises(Interrupted, match="interrupted by SIGTERM"):
        run_night(read_config(path), Settings(harness=STUB, ray="local", say=said.append))
    thread.join()
    assert gone([int(line) for line in pids.read_text().split()])
    with History(tmp_path / "nightly.sqlite") as history:
        assert [key.prompt for key in history.night(1).missing] == ["b"]


def test_gpus_of_processes(tmp_path: Path) -> None:
    """Ray lets a call that takes a GPU, and a worker, see one GPU, which only those see that share it; and these know
    their share of its memory."""
    from gguf_verify.distributed.cluster import cluster
    from gguf_verify.distributed.errands import Errand, Errands
    from gguf_verify.distributed.identity import Expected

    (tmp_path / "errands").mkdir()
    for sharing, limit in ((1, None), (2, "20%")):
        folder, count = tmp_path / f"workers{sharing}", 2 * sharing
        folder.mkdir()
        asked = list[int]()

        def on_card(cpus: int, sharing: int = sharing, asked: list[int] = asked) -> int:
            asked.append(cpus)
            return sharing

        with cluster("local", lambda _: Nothing(Place()), on_card, time_limit=300, progress=False) as workers:
            tasks = (Step(task=Card(str(folder), i, count)) for i in range(count))
            found = sorted(found for _, found in workers.each(run_of(), tasks))
        assert found == [(card, limit) for card in "01" for _ in range(sharing)]
        assert asked == [1]  # of two processors and two GPUs
    expected = Expected.of("local", {}, [])
    calls = {i: Errand(Card(str(tmp_path / "errands"), i, 2), dict, expected, gpu=True) for i in range(2)}
    errands, seen = Errands("local", calls, jobs=2), list[Any]()
    while len(errands):
        seen += [found for _, found in errands.ended(60)]
    assert sorted(seen) == ["0", "1"]


def run_of() -> Any:
    """A run that has only a budget and the files that its kernel opened."""
    return SimpleNamespace(budget=Budget(), observed_here=Observed())


class Judge:
    """A worker that only judges."""

    def judge(self, task: Any, left: float | None, words: str) -> Judged:
        assert (left, words) == (None, Budget().words)
        return Judged(task.judge(None))


def test_order_and_bounds(tmp_path: Path) -> None:
    """The first task waits until another was judged; results come in the plan's order all the same, the number of tasks
    planned ahead is bounded, and an error of the plan comes after the results before it."""
    import ray

    from gguf_verify.distributed.cluster import RayWorkers

    planned = []

    def plan() -> Generator[Step[Waits]]:
        for i in range(40):
            planned.append(i)
            yield Step(task=Waits(i, str(tmp_path / "second"), waits=i == 0, marks=i == 1))
        raise LlamaRefused("no more")

    workers = [ray.remote(Judge).options(num_cpus=0).remote() for _ in range(2)]
    found, ahead = [], []

    def follow() -> None:
        for _, answer in Pool(RayWorkers(workers), 2).each(run_of(), plan()):
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

    from gguf_verify.distributed.cluster import RayWorkers

    worker = ray.remote(Judge).options(num_cpus=0, max_restarts=-1, max_task_retries=1).remote()
    task = Waits(0, "", waits=False, marks=False, dies=True)
    with pytest.raises(EnvironmentFault, match="a worker of Ray was lost"):
        list(Pool(RayWorkers([worker]), 1).each(run_of(), (Step(task=task) for _ in range(1))))
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
    mine = [os.getpid(), *descendants(os.getpid())]
    listening = {address for pid in mine for address in _listening(pid)}
    assert listening
    assert {address.rpartition(":")[0] for address in listening} <= {"0100007F", "0000000000000000FFFF00000100007F"}


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
