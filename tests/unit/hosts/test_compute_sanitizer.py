"""What compute-sanitizer says, as findings. The texts are those of its manual (Compute Sanitizer 2026.4, "Tool
Examples" and the pages of its tools; the manual of 2021.2 for the older form of a place), and of no GPU of ours; what a
card says is in tests/gpu."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from gguf_verify.hosts import compute_sanitizer, findings, sanitized_host
from gguf_verify.hosts.base import Host, Placement
from gguf_verify.hosts.compilation import ForeignUnit
from gguf_verify.hosts.compiler import copy_emulator
from gguf_verify.hosts.compute_sanitizer import found_in
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.sanitized_host import SanitizedHost
from gguf_verify.support.errors import EnvironmentFault, KernelFinding
from tests.support.short_kernels import run, with_kernel

MISALIGNED = """
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x100 in memcheck_demo.cu:34
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7cc43aa00001 is misaligned
=========     and is inside the nearest allocation at 0x7cc43aa00000 of size 4 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: run_unaligned() [0xacd4] in memcheck_demo
=========
========= ERROR SUMMARY: 1 error
"""
OUTSIDE = """
========= Invalid __global__ read of size 4 bytes
=========     at load(int)+0xb0 in kernels/common.cuh:39
=========     by thread (3,0,0) in block (1,0,0)
=========     Address 0x87654320 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7cc43a800000 of size 1,024 bytes
=========         Device Frame: gemm()+0x30 in memcheck_demo.cu:44
=========
========= ERROR SUMMARY: 1 error
"""
SHARED = """
========= Invalid __shared__ read of size 16 bytes
=========     at gemm()+0x30
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x400 is out of bounds
========= ERROR SUMMARY: 1 error
"""
RACE = """
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in /a b/Racecheck/block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in /a b/Racecheck/block_error.cu:51 [508 hazards]
=========
========= WARNING: Race reported between Write access at RAW()+0xf0 in raceGroupBasic.cu:40
=========     and Read access at RAW()+0x280 in raceGroupBasic:46 [4 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
UNSET = """
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in /home/cuda/memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
========= Uninitialized __shared__ memory read of size 4 bytes
=========     at KernelSharedError()+0x1a0 in uninitialized_shared.cu:7
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x0
========= ERROR SUMMARY: 2 errors
"""
BARRIER = """
 ========= Barrier error detected. Divergent thread(s) in block.
 =========     at [clone myKernel(int *, int *)] outlineSync()+0x11f0 in test.cu:42
 =========     by thread (32,0,0) in block (0,0,0)
 =========         Device Frame: myKernel(int *, int *)+0xe40 in test.cu:60
 =========
 ========= ERROR SUMMARY: 1 error
"""
OLDER = """
========= Invalid __global__ write of size 4 bytes
=========     at 0x160 in memcheck_demo.cu:6:unaligned_kernel()
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00001 is misaligned
========= ERROR SUMMARY: 1 error
"""
UNKNOWN = """
========= Tensor Memory column 32 being accessed by instruction tcgen05.ld is not allocated.
=========     at trap+0x1250 in TcmmaGuardrails.cu:99
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error
"""
CLEAN = {
    "memcheck": "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}

BY = "thread (0,0,0) of block (0,0,0)"
TOLD = {
    "misaligned": (
        MISALIGNED, "memcheck", "misaligned", f"misaligned access at memcheck_demo.cu:34: {BY} writes 4 bytes",
    ),
    "outside": (
        OUTSIDE, "memcheck", "outside", "thread (3,0,0) of block (1,0,0) reads 4 bytes outside its buffers at "
        "common.cuh:39 (for memcheck_demo.cu:44): 0 bytes past the end of its weights (1,024 bytes)",
    ),
    "shared memory, no lines": (
        SHARED, "memcheck", "outside", f"{BY} reads 16 bytes outside its shared memory at gemm()+0x30",
    ),
    "race": (
        RACE, "racecheck", "race", "data race: one thread writes at block_error.cu:41 and another reads at "
        "block_error.cu:51, with no barrier between them",
    ),
    "uninitialised": (
        UNSET, "initcheck", "unset", "thread (31,0,0) of block (1,0,0) uses 4 bytes of global memory at "
        "memset_error.cu:41 that nothing has written",
    ),
    "barrier": (
        BARRIER, "synccheck", "divergent", "wrong use of a barrier at test.cu:42 by thread (32,0,0) of block (0,0,0): "
        "divergent thread(s) in block",
    ),
    "older version": (OLDER, "memcheck", "misaligned", f"misaligned access at memcheck_demo.cu:6: {BY} writes 4 bytes"),
    "words that are not known": (
        UNKNOWN, "memcheck", "other", "Tensor Memory column 32 being accessed by instruction tcgen05.ld is not "
        f"allocated. at TcmmaGuardrails.cu:99, by {BY}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOLD)
def test_findings(case: str) -> None:
    text, tool, kind, words = TOLD[case]
    first = found_in(text, tool, {1024: "weights"}.get)[0]
    assert (first.kind, first.words) == (kind, words)
    assert all(":" in line or "+0x" in line for line in first.lines)


def test_all_of_a_log() -> None:
    assert [f.lines for f in found_in(RACE, "racecheck")] == [
        ("block_error.cu:41", "block_error.cu:51"), ("raceGroupBasic.cu:40", "raceGroupBasic:46"),
    ]  # fmt: skip
    assert [f.kind for f in found_in(UNSET, "initcheck")] == ["unset", "unset"]
    assert all(found_in(text, tool) == [] for tool, text in CLEAN.items())


@pytest.mark.parametrize(
    "text",
    [
        "", "========= COMPUTE-SANITIZER\n",
        "========= COMPUTE-SANITIZER\n========= Target application terminated before first instrumented API call\n",
        "========= Internal Sanitizer Error: The Sanitizer encountered an error while launching gemm and didn't track "
        "the launch. Errors might go undetected.\n========= ERROR SUMMARY: 0 errors\n",
        "========= Error: Device not supported. Please refer to the \"Supported Devices\" section\n"
        "========= ERROR SUMMARY: 0 errors\n",
        "========= Some text without a place\n========= ERROR SUMMARY: 3 errors\n",
    ],
)  # fmt: skip
def test_a_log_that_shows_no_check_is_no_pass(text: str) -> None:
    with pytest.raises(EnvironmentFault, match="compute-sanitizer's memcheck"):
        found_in(text, "memcheck")


def test_a_missing_tool_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_sanitizer, "program", lambda: None)
    assert str(compute_sanitizer.fault()).startswith("compute-sanitizer was not found: ")
    with pytest.raises(EnvironmentFault, match="was not found"):
        compute_sanitizer.command("memcheck", "log")


#: Its outputs are x where `mode` is 0. Else they depend on shared memory that nothing has written, or on what they
#: held, or one of them is not written.
READS_UNSET = """void k(float* y, const float* x, int mode) {
    __shared__ unsigned s[32];
    if (mode < 0) s[threadIdx.x] = mode;  // else a compiler takes it for constant
    if (mode == 3 && threadIdx.x == 5) return;
    const unsigned unset = mode == 1 ? s[threadIdx.x] : mode == 2 ? __float_as_uint(y[threadIdx.x]) : 0;
    y[threadIdx.x] = __uint_as_float(__float_as_uint(x[threadIdx.x]) ^ unset);
}"""
X = np.linspace(-1.1, 1.0, 32, dtype=np.float32)
READ = ("global memory at memset_error.cu:41", "shared memory at uninitialized_shared.cu:7")


class InThisProcess(CpuHost):
    """A process of a sanitized host, without the process; `logs` are those of the tools."""

    words = sanitized_host._Checked.words
    logs: ClassVar[dict[str, str]] = {}
    _log = None

    def __init__(self, inner: Host, placement: Placement, tool: str | None, fill: int) -> None:
        super().__init__(1)
        self.tool, self.placement, self.fill = tool, placement, None if tool == "initcheck" else fill

    def told(self, whose: Callable[[int], str | None]) -> list[findings.Found]:
        return [] if self.tool is None else found_in(self.logs.get(self.tool, CLEAN["memcheck"]), self.tool, whose)


@pytest.fixture
def sanitized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SanitizedHost, object]:
    """A host, and `READS_UNSET` on it."""
    monkeypatch.setattr(sanitized_host, "_Checked", InThisProcess)
    # a kernel's shared memory on the CPU host belongs to its library, of which this process has one
    monkeypatch.setattr(sanitized_host, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    monkeypatch.setattr(InThisProcess, "logs", {})
    host = SanitizedHost(CpuHost(1))
    return host, host.load(with_kernel(tmp_path, READS_UNSET), "k.cu", "k", {})


def test_unset_memory_fails_a_kernel_only_if_its_outputs_depend_on_it(
    sanitized: tuple[SanitizedHost, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, kernel = sanitized
    logs = InThisProcess.logs

    def product(mode: int) -> np.ndarray:
        y = run(host, kernel, 1, 32, X, X, np.int32(mode))
        host.settle()
        return y

    assert np.array_equal(product(0), X)
    assert not host.unset
    logs["initcheck"] = UNSET
    for _ in range(2):
        assert np.array_equal(product(0), X)
        assert host.unset == READ  # each once
    for mode in (1, 2):
        with pytest.raises(KernelFinding, match=r"memory at memset_error\.cu:41 that nothing has written") as caught:
            product(mode)
        assert caught.value.kind == "unset"
    logs["memcheck"] = OUTSIDE  # another finding is a failure, and the only one where outputs are the same
    with pytest.raises(KernelFinding, match=r"common\.cuh:39") as caught:
        product(0)
    assert not any("memset_error" in line for line in caught.value.lines)
    logs.clear()
    for mode in (1, 2):  # no tool says so
        with pytest.raises(KernelFinding, match="its output differs between processes, in which memory that") as caught:
            product(mode)
        assert caught.value.kind == "changing"
    with pytest.raises(
        KernelFinding, match="4 bytes of its output are as they were before the launch, the first"
    ) as caught:
        product(3)
    assert caught.value.kind == "unwritten"
    assert np.array_equal(product(0), X)


def test_memory_that_holds_something_before_a_launch(sanitized: tuple[SanitizedHost, Any]) -> None:
    """A kernel that reads what its output holds is right where that was written, in every process alike."""
    host, kernel = sanitized
    output = host.output(X.nbytes)
    host.begin(output, X[::-1].copy().view(np.uint8))
    host.launch(kernel, (1, 1, 1), (32, 1, 1), [output, host.upload(X), np.int32(2)])
    assert np.array_equal(host.download(output).view(np.uint32), X.view(np.uint32) ^ X[::-1].copy().view(np.uint32))
    host.settle()


def test_what_was_not_compared_is_a_finding(sanitized: tuple[SanitizedHost, Any]) -> None:
    host, kernel = sanitized
    InThisProcess.logs["initcheck"] = UNSET
    args = [host.output(X.nbytes), host.upload(X), np.int32(0)]
    host.launch(kernel, (1, 1, 1), (32, 1, 1), args)
    with pytest.raises(KernelFinding, match="that nothing has written"):
        host.settle()


def test_sums_in_any_order_may_differ(sanitized: tuple[SanitizedHost, Any]) -> None:
    """Then outputs are judged by the bound, the farthest ones; memory that nothing has written is a finding."""
    host, kernel = sanitized
    host.adds_floats = True
    y = run(host, kernel, 1, 32, X, X, np.int32(1))
    host.settle()
    with np.errstate(invalid="ignore"):
        assert (~(np.abs(y - X) < 1e-3)).all()
    InThisProcess.logs["initcheck"] = UNSET
    run(host, kernel, 1, 32, X, X, np.int32(1))
    with pytest.raises(KernelFinding, match="that nothing has written"):
        host.settle()
    nan, inf = np.nan, np.inf
    made = np.array([[1, 1, 1, 1], [1, nan, -inf, 1.5], [1, 1, 1, 1.25], [1, 1, 1, 0]], np.float32)
    found = sanitized_host._farthest(made.view(np.uint8)).view(np.float32)
    assert np.array_equal(found, np.array([1, nan, -inf, 0], np.float32), equal_nan=True)


#: Runs what follows its options, and says what a file beside it holds.
STAND_IN = """#!{python}
import subprocess, sys
arguments = sys.argv[1:]
if arguments in (["--help"], ["--version"]):
    sys.exit(print("Version 1.2.3.4 --initcheck-address-space"))
at = arguments.index("{python}")
done = subprocess.run(arguments[at:], close_fds=False)
log, tool = (arguments[arguments.index(name) + 1] for name in ("--log-file", "--tool"))
open(log, "w").write(open(f"{folder}/{{tool}}").read())
"""


def test_a_number_that_no_tool_writes() -> None:
    """The author of a kernel chooses names in the log, which may look like its words: it is no number, and no pass."""
    long = "9" * 5000
    for line in (f"ERROR SUMMARY: {long} errors", "ERROR SUMMARY: , errors", "ERROR SUMMARY: \u0665 errors"):
        with pytest.raises(EnvironmentFault, match="did not end as it should"):
            found_in(f"========= COMPUTE-SANITIZER\n========= {line}\n", "memcheck")
    log = (
        "========= Invalid __global__ read of size 4 bytes\n=========     at k+0x1 in k.cu:6\n"
        f"=========     and is {long} bytes after the nearest allocation at 0x7f of size {long} bytes\n"
        "========= ERROR SUMMARY: 1 error\n"
    )
    (found,) = found_in(log, "memcheck")
    assert (found.kind, found.lines) == ("outside", ("k.cu:6",))


def test_a_host_under_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a program in place of compute-sanitizer, and the CPU host in place of a card, in processes: the same bits
    where outputs do not depend on what was found, a finding where they do, and no pass where the tool did
    not end as it should."""
    stand_in = tmp_path / "compute-sanitizer"
    stand_in.write_text(STAND_IN.format(python=sys.executable, folder=tmp_path))
    stand_in.chmod(0o755)
    for cached in (compute_sanitizer.program, compute_sanitizer._help, compute_sanitizer.version):
        cached.cache_clear()
    monkeypatch.setattr(compute_sanitizer, "program", lambda: str(stand_in))
    monkeypatch.setattr(compute_sanitizer, "TOOLS", ("initcheck",))
    monkeypatch.setattr(sanitized_host, "_SIDES", ("behind",))
    assert compute_sanitizer.fault() is None
    assert compute_sanitizer.blind_to() is None
    host = SanitizedHost(CpuHost(1))
    root = with_kernel(tmp_path, READS_UNSET)
    kernel = host.load(root, "k.cu", "k", {})
    (tmp_path / "placed").mkdir()
    copy_emulator(root)
    built, _ = CpuHost(1).build_all(ForeignUnit(root, "k.cu", ("k",)))
    placed = built["k"].placed(tmp_path / "placed", "k")
    (tmp_path / "initcheck").write_text(UNSET)
    assert np.array_equal(run(host, host.load_placed(placed), 1, 32, X, X, np.int32(0)), X)
    host.settle()
    assert host.unset == READ
    with pytest.raises(KernelFinding, match=r"memset_error\.cu:41"):
        run(host, kernel, 1, 32, X, X, np.int32(1))
    (tmp_path / "initcheck").write_text("")
    assert np.array_equal(run(host, kernel, 1, 32, X, X, np.int32(0)), X)
    with pytest.raises(EnvironmentFault, match="did not end"):
        host.settle()
    host.close()
    compute_sanitizer._help.cache_clear()
