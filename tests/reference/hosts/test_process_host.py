"""Kernels of this project in a process of their own: what crashes or hangs there is one line, and nothing is left."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.process_host import ProcessHost
from gguf_verify.kernels.by_name import open_kernel
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.results.options import Options
from gguf_verify.support.errors import EnvironmentFault, KernelFault
from gguf_verify.verification import verify
from tests.support.processes import children, gone, wait_until
from tests.support.short_kernels import with_kernel
from tests.support.tools import FIXTURES, altered_kernel

#: Adds i to n bytes; crashes where i is 1000, never ends where it is 1001, has its threads wait where it is 1002.
SOURCE = """void k(uint8_t* y, uint8_t* x, int64_t n, int64_t i) {
    if (i == 1000) __builtin_trap();
    for (volatile bool on = i == 1001; on;) {}
    if (i == 1002) __syncthreads();
    for (int64_t j = 0; j < n; ++j) y[j] = x[j] + i;
}"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_kernel(tmp_path_factory.mktemp("kernel"), SOURCE)


@pytest.fixture
def host() -> Iterator[ProcessHost]:
    """With a limit that no launch here reaches, however busy the machine is."""
    made = ProcessHost(CpuHost(1), 60.0)
    yield made
    made.close()


@pytest.fixture
def impatient() -> Iterator[ProcessHost]:
    made = ProcessHost(CpuHost(1), 0.5)
    yield made
    made.close()


def reaped(pid: int) -> bool:
    """Whether a process ends, and is no zombie, within a while."""
    return wait_until(lambda: not Path(f"/proc/{pid}").exists())


def launched(host: ProcessHost, root: Path, x: object, n: int, i: int, length: int | None = None) -> np.ndarray:
    out = host.output(n if length is None else length)
    host.launch(host.load(root, "k.cu", "k", {}), (1, 1, 1), (1, 1, 1), [out, x, np.int64(n), np.int64(i)])
    return host.download(out)


@pytest.mark.parametrize("n", [5, 70_000], ids=["in a message", "in shared memory"])
def test_what_an_output_holds_before_a_launch(n: int, host: ProcessHost, root: Path) -> None:
    held, out = np.arange(n).astype(np.uint8), host.output(n)
    host.begin(out, held)
    host.launch(host.load(root, "k.cu", "k", {}), (1, 1, 1), (1, 1, 1), [out, out, np.int64(n), np.int64(3)])
    np.testing.assert_array_equal(host.download(out), held + np.uint8(3))


@pytest.mark.parametrize("n", [5, 70_000], ids=["in a message", "in shared memory"])
def test_what_goes_in_comes_out(n: int, host: ProcessHost, root: Path) -> None:
    given = np.arange(n).astype(np.uint8)
    x = host.upload(given)
    np.testing.assert_array_equal(launched(host, root, x, n, 7), given + np.uint8(7))
    np.testing.assert_array_equal(host.contents(x), given)
    assert (host.name, host.info(), host.threads) == ("cpu", CpuHost(1).info(), 1)


@pytest.mark.parametrize("n", [5, 70_000])
def test_a_crash_is_a_line_and_the_next_call_has_another_process(n: int, host: ProcessHost, root: Path) -> None:
    given = np.arange(n).astype(np.uint8)
    x = host.upload(given)
    made = host.output(n)
    first = host.pid
    assert first is not None
    with pytest.raises(KernelFault, match=r"^the kernel crashed: signal 4 \(illegal instruction\)$"):
        launched(host, root, x, n, 1000)
    assert reaped(first)
    np.testing.assert_array_equal(launched(host, root, x, n, 1), given + np.uint8(1))  # x is uploaded again
    with pytest.raises(KernelFault, match="had computed was lost when its process ended in an earlier call"):
        host.download(made)


def test_a_limit_of_memory_is_no_fault_of_the_kernel(host: ProcessHost, root: Path) -> None:
    """Each of many threads needs a stack."""
    x = host.upload(np.zeros(4, np.uint8))
    launched(host, root, x, 4, 0)
    kernel, sizes = host.load(root, "k.cu", "k", {}), [np.int64(4), np.int64(1002)]
    started = [host.pid]
    for pid in started:  # the sandbox's and the host's own
        started += children(pid)
        limit = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize() + (8 << 20)
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    with pytest.raises(EnvironmentFault, match=r"^a limit of .* is reached: signal 6 .*: cuda_on_cpu: no memory for"):
        host.launch(kernel, (1, 1, 1), (1024, 1, 1), [host.output(4), x, *sizes])


def test_a_launch_that_does_not_end(impatient: ProcessHost, root: Path) -> None:
    x = impatient.upload(np.zeros(4, np.uint8))
    for _ in range(3):
        impatient._time_limit = 60.0
        launched(impatient, root, x, 4, 0)
        impatient._time_limit = 0.5
        pid = impatient.pid
        assert pid is not None
        with pytest.raises(KernelFault, match=r"^the kernel did not end within 0.5 s$"):
            launched(impatient, root, x, 4, 1001)
        assert reaped(pid)
    with pytest.raises(KernelFault, match="was not run: it exceeded the time limit 3 times before"):
        launched(impatient, root, x, 4, 0)


def test_larger_products_may_take_longer(impatient: ProcessHost) -> None:
    assert impatient._limit([4, 4, 4]) == 0.5
    m, n, k = 64, 128_256, 4096
    assert impatient._limit([4 * m * n, 18 * n * k // 32, 36 * m * k // 32]) > 0.5 * m * n * k / 1e9


def test_other_faults_are_those_of_the_host(host: ProcessHost, root: Path) -> None:
    with pytest.raises(KernelFault, match="wrote outside its output: 0 bytes before, 3 after"):
        launched(host, root, host.upload(np.ones(8, np.uint8)), 8, 1, length=5)
    with pytest.raises(EnvironmentFault, match=r"could not compile none\.cu"):
        host.load(root, "none.cu", "k", {})


def test_nothing_outlives_a_parent_that_is_killed(root: Path, tmp_path: Path) -> None:
    """In the middle of a launch."""
    program = tmp_path / "parent.py"
    program.write_text(f"""
import numpy as np
from pathlib import Path
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.process_host import ProcessHost
host = ProcessHost(CpuHost(1), 1000.0)
kernel, x, y = host.load(Path({str(root)!r}), "k.cu", "k", {{}}), host.upload(np.zeros(4, np.uint8)), host.output(4)
print(host.pid, flush=True)
host.launch(kernel, (1, 1, 1), (1, 1, 1), [y, x, np.int64(4), np.int64(1001)])
""")
    parent = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone([pid])


def test_a_shipped_kernel_that_crashes_fails_in_a_report(tmp_path: Path) -> None:
    """Its matrices fail, each by one line; the run goes on to its end."""
    inside = altered_kernel(
        tmp_path, "q8_1_naive", "gemm/q8_1/01_naive.cu", "y[i] = ", "if (M == 3) __builtin_trap(); y[i] = "
    )
    host = ProcessHost(CpuHost(1), 60.0)
    try:
        kernel = ShippedKernel(KERNELS["q8_1_naive"], host, inside.root)
        options = Options(prompt="Once", n_predict=1, tensor="blk.0.attn_[qk]", progress=False, probes="brief")
        report = verify(FIXTURES / "tiny-Q4_0.gguf", kernel, rungs=["layers"], options=options)
    finally:
        host.close()
    assert report.exit_code == 1
    crashed = [f for _, f in report.failures if "the kernel crashed: signal 4 (illegal instruction)" in f.what]
    assert {f.tensor for f in crashed} == {"blk.0.attn_q.weight", "blk.0.attn_k.weight"}


def test_open_kernel_takes_it_for_names_of_hosts() -> None:
    with open_kernel("q8_1", "cpu", 1) as kernel:
        assert isinstance(kernel.host, ProcessHost)
        pid = kernel.host.pid
        assert pid is not None
        of = kernel.of(FORMATS["Q4_0"], 1, 1, 32)
        x = np.ones((1, 32), np.float32)
        y = of.product(of.upload(FORMATS["Q4_0"], FORMATS["Q4_0"].encode(x)), x)
        assert y[0, 0] == pytest.approx(32, rel=0.01)
    assert reaped(pid)
    given = CpuHost(1)
    with open_kernel("q8_1", given) as kernel:
        assert kernel.host is given
