"""The judge is apart: what a foreign kernel's process does is seen by the verifier, whatever that process says; what it
says has limits. Its sources are compiled where they can do no harm, and loaded in its process alone."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import nvrtc
from gguf_verify.hosts.choice import HOSTS
from gguf_verify.hosts.compiler import checks_fault
from gguf_verify.hosts.cpu_host import Buffer, CpuHost
from gguf_verify.hosts.foreign_sources import foreign_source
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.foreign import launcher, opening, sources
from gguf_verify.kernels.foreign.child import serve
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.processes.child import ChildProcess, Forked, Spawned
from gguf_verify.processes.sandbox import sandboxed
from gguf_verify.support.errors import EnvironmentFault, KernelFault, KernelFinding, OracleFault, UsageError
from tests.support.foreign_runs import EXAMPLES, M, N, altered, multiplied, operands, verified
from tests.support.processes import children, gone, kept
from tests.support.tools import ROOT

LYING = ROOT / "tests" / "support" / "lying_kernels.py"
INVALID = "the kernel's process sent an answer that is not valid$"


def opened(name: str, time_limit: float = 60.0) -> ForeignKernel:
    return open_foreign(f"{LYING}:{name}", CpuHost(1), time_limit)


def product(kernel: ForeignKernel) -> np.ndarray:
    rows, x = operands()
    return kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)


# -- what its process does ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("writes_outside", "wrote outside its output: 0 bytes before, 8 after$"),
        ("writes_before", "wrote outside its output: 4 bytes before, 0 after$"),
        ("writes_weights", "modified its weights: 1 byte, the first at 3$"),
        ("writes_activations", "modified its activations: 1 byte, the first at 539$"),
        ("random", "not deterministic: .* changed 1 of 35 outputs, the first row 0 token 0"),
        ("leaves", "does not always write its outputs: .*row 0 token 0 was never written"),
        ("forges", "wrote outside its output: 0 bytes before, 8 after$"),
    ],
)
def test_its_process_cannot_hide_what_it_does(name: str, said: str) -> None:
    """Each takes away all checks that its process could make, or answers by itself."""
    kernel = opened(name)
    for _ in range(2):
        with pytest.raises(KernelFault, match=said):
            product(kernel)
    kernel.close()


def test_an_oracle_cannot_hide_that_it_changes() -> None:
    kernel = opened("oracle_random")
    _, x = operands()
    with pytest.raises(
        OracleFault, match=r"not deterministic: a second call of its activations returned other values$"
    ):
        kernel._oracle.activations(kernel.quantize(x))
    kernel.close()


def test_lies_are_mismatches() -> None:
    report = verified(f"{LYING}:random", "layers")
    assert report.exit_code == 1
    assert any("not deterministic" in failure.what for failure in report.rungs[0].failures)


def test_memory_keeps_its_size() -> None:
    """Else the verifier would die where it reads what is gone."""
    kernel = opened("truncates")
    assert multiplied(kernel)
    kernel.close()


# -- what its process says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["deep", "long", "huge", "no_object", "no_text", "unnumbered", "no_machine", "answers_twice"]
)
def test_answers_that_are_none(name: str) -> None:
    kernel = opened(name)
    with pytest.raises(KernelFault, match=INVALID):
        product(kernel)
    kernel.close()


@pytest.mark.parametrize("name", ["negative", "none", "many", "fraction", "text", "yes"])
def test_numbers_that_are_none(name: str) -> None:
    kernel = opened(f"Columns.{name}")
    _, x = operands()
    with pytest.raises(OracleFault, match=r"oracle's process sent an answer that is not valid$"):
        kernel._oracle.activations(kernel.quantize(x))
    kernel.close()


def test_a_slow_answer_has_one_deadline() -> None:
    """No byte of it is late by itself; all of them would take a quarter of a minute."""
    kernel = opened("drips", 1.0)
    start = time.monotonic()
    with pytest.raises(KernelFault, match="did not return within 1 s"):
        product(kernel)
    assert time.monotonic() - start < 10
    kernel.close()


@pytest.mark.parametrize("adds", [False, True])
def test_it_cannot_say_that_it_adds_floats(adds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would excuse other bits: that its source could is seen in the source."""
    text = (EXAMPLES / "cuda_q4_0.cu").read_text()
    (tmp_path / "k.cu").write_text(text + ("// atomicAdd\n" if adds else ""))
    kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))
    under = kernel.under(Schedule("descending"))
    y = np.zeros((M, N), np.float32)
    said = {"adds_floats": True, "unset": "no list"}
    monkeypatch.setattr(kernel.loaded, "call", lambda *_: ([{"output": y}], said))
    assert np.array_equal(product(under), y)
    assert under.adds_floats == adds
    assert under.unset == ()
    kernel.close()


# -- what is compiled --------------------------------------------------------------------------------------------------

#: Says in which process it was loaded.
TELLS = r"""
extern "C" int getpid();
__attribute__((constructor)) static void tell() {
    FILE* file = fopen("%s", "a");
    fprintf(file, "%%d\n", getpid());
    fclose(file);
}
"""


def test_a_process_without_compiler_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets what it runs, ordinary and under schedules, and no other process loads it."""
    nowhere = dict.fromkeys(("XDG_CACHE_HOME", "HOME", "TMPDIR", "CXX"), "/dev/null/none")
    monkeypatch.setattr(sources, "Spawned", partial(Spawned, environment=nowhere))
    text = (EXAMPLES / "cuda_q4_0.cu").read_text()
    at = text.index("struct Q4_0")
    told = tmp_path / "told"
    (tmp_path / "k.cu").write_text(text[:at] + "#include <cstdio>\n" + TELLS % told + text[at:])
    with sandboxed("none"):  # it tells by a file
        kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))
    expected = product(kernel)
    pid = kept(kernel._conversation.process.pid)
    for schedule in (Schedule("descending"), Schedule("seeded", 1), Schedule(checked=True)):
        under = kernel.under(schedule)
        if under is not None:  # checks need GCC
            assert np.array_equal(product(under), expected)
    assert multiplied(kernel)
    kernel.close()
    assert set(told.read_text().split()) == {str(pid)}


@pytest.mark.parametrize(
    ("index", "schedule", "said"),
    [
        ("[n * blocks + b + (b + 1 == blocks && n + 1 == N)]", Schedule("descending"), "past the end of its weights"),
        ("[n * blocks + b - (b == 0 && n == 0)]", Schedule("seeded", 1), "before its weights"),
    ],
)
def test_mapped_operands_lie_between_walls(index: str, schedule: Schedule, said: str, tmp_path: Path) -> None:
    path = altered(tmp_path, "cuda_q4_0.cu", "w[n * blocks + b]", f"w{index}")
    kernel = open_foreign(f"{path}:gemm", CpuHost(1))
    with pytest.raises(KernelFault, match=f"reads outside its buffers: .* {said}"):
        product(kernel.under(schedule))
    kernel.close()


WIDE = """// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output", "int32 N"]
// block = 1024
// grid = ["N", "M"]
// [/gguf-verify]
__device__ int calls;
extern "C" __global__ void gemm(const unsigned char* w, const void* x, float* y, int N) {
    if (threadIdx.x == 0) y[blockIdx.y * N + blockIdx.x] = GIVES;
}
"""


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ("w[N * 18] * 1e-30f", "past the end of"),
        ("(blockIdx.x == 303 ? w[N * 18] : 0) * 1e-30f", "past the end of"),
        ("(unsigned long long)w % 4096 == 0", "address"),
        ("calls++", "not deterministic"),
        ("atomicAdd(&calls, 1) * 0 + (blockIdx.x == 301 && (unsigned long long)w % 4096 == 0)", "address"),
        ("atomicAdd(&calls, 1) * 0 + 3", None),
        ("N * 0.5f", None),
    ],
)
def test_later_runs_of_many_threads_have_some_of_the_blocks(gives: str, said: str | None, tmp_path: Path) -> None:
    """Faults of blocks are still found; if one block might depend on others, all of them run."""
    (tmp_path / "k.cu").write_text(WIDE.replace("GIVES", gives))
    kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))
    rng = np.random.default_rng(1)
    x, rows = rng.standard_normal((1, 32), np.float32), rng.integers(0, 256, (600, 18), np.uint8)
    found = nullcontext() if said is None else pytest.raises(KernelFault, match=said)
    with found:
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("calls == 3", "count"),  # the third run of the first call, in which the operands lie elsewhere
        ("calls % 3 == 2", "count"),
        ("calls > 4 && (unsigned long long)w % 4096 == 0", "address"),
        ("calls % 4 > 1 && (unsigned long long)w % 4096 == 0", "changing"),  # neither of them alone
    ],
)
def test_addresses_and_numbers_of_calls_are_told_apart(condition: str, kind: str, tmp_path: Path) -> None:
    counted = f"    static int calls; if (i == 0) {{ calls++; acc += {condition}; }}\n    y[i] = acc;"
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', '    y[i] = acc;', counted)}:gemm", CpuHost(1))
    rows, x = operands()
    weights = kernel.upload(FORMATS["Q4_0"], rows)
    with pytest.raises(KernelFinding) as found:
        [kernel.product(weights, x) for _ in range(4)]
    kernel.close()
    assert found.value.kind == kind


def test_an_output_that_some_of_the_blocks_leave_is_found(tmp_path: Path) -> None:
    """They are those that run again, in the run with weights at no multiple of 16 bytes."""
    leaves = "if (threadIdx.x == 0 && !(blockIdx.x % 4 == 1 && (unsigned long long)w % 16))"
    text = WIDE.replace("GIVES", "3").replace("if (threadIdx.x == 0)", leaves)
    (tmp_path / "k.cu").write_text(text)
    kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))
    weights, x = kernel.upload(FORMATS["Q4_0"], np.zeros((600, 18), np.uint8)), np.ones((1, 32), np.float32)
    with pytest.raises(KernelFault, match="never written"):
        [kernel.product(weights, x) for _ in range(4)]  # not every call has such weights
    kernel.close()


def test_later_runs_have_the_blocks_at_the_ends_of_rows(tmp_path: Path) -> None:
    """Their numbers in a grid of one dimension depend on the kernel."""
    text = WIDE.replace('["N", "M"]', '"M * N"').replace("blockIdx.y * N + blockIdx.x", "i")
    text = text.replace("    if (", "    const int i = blockIdx.x * 1009 % gridDim.x;\n    if (", 1)
    text = text.replace("GIVES", "(unsigned long long)w % 16 && i % N == N - 1")
    (tmp_path / "k.cu").write_text(text)
    kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))
    rows = np.zeros((500, 18), np.uint8)
    with pytest.raises(KernelFault, match="outputs change with"):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), np.ones((3, 32), np.float32))
    kernel.close()


def test_the_whole_run_of_many_threads_has_aligned_operands(tmp_path: Path) -> None:
    """As most callers pass them: one block goes wrong there, which is none of those that run again."""
    (tmp_path / "k.cu").write_text(WIDE.replace("GIVES", "blockIdx.x == 303 && (unsigned long long)w % 16 == 0"))
    kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))
    rows = np.zeros((600, 18), np.uint8)
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), np.ones((1, 32), np.float32))
    kernel.close()
    assert np.flatnonzero(y).tolist() == [303]


class _Card(CpuHost):
    """A host with memory of its own: kernels run on copies."""

    def over(self, memory: np.ndarray, what: str, output: bool = False) -> None:
        return None

    def upload(self, array: np.ndarray, what: str = "input") -> Buffer:
        return super().upload(array.copy(), what)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("y[i] = acc;", None),
        ("y[i] = acc; ((Q8_1*)x)[m].d ^= 1;", "modified its activations: 5 bytes, the first at 0$"),
        ("y[i] = acc; ((Q4_0*)w)[0].d = 1;", "modified its weights: 2 bytes, the first at 0$"),
        ("y[i + 1] = acc;", "wrote outside its output: 0 bytes before, 4 after"),
    ],
)
def test_a_host_with_memory_of_its_own(
    new: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a card is: what lies there is copied to where the verifier looks."""

    def launched_in_a_fork(source: sources.File, verbose: bool, stall: float, oracle: bool = False) -> ChildProcess:
        def run(link: Connection) -> None:
            monkeypatch.setattr(launcher, "make_host", lambda *_: _Card(1))
            serve(link, lambda: launcher.Launcher(source._asked))

        return Forked(run, verbose, stall)

    monkeypatch.setattr(sources.File, "start", launched_in_a_fork)
    kernel = open_foreign(f"{altered(tmp_path, 'cuda_q4_0.cu', 'y[i] = acc;', new)}:gemm", CpuHost(1))
    if said is None:
        assert multiplied(kernel)
    else:
        with pytest.raises(KernelFault, match=said):
            product(kernel)
    kernel.close()


def test_the_header_says_who_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = open_foreign(f"{EXAMPLES / 'cuda_q4_0.cu'}:gemm", CpuHost(1))
    assert kernel.runs_on().words.endswith("in its own process")
    monkeypatch.setattr(CpuHost, "runs_on_mapped", False)
    assert kernel.runs_on().words.endswith("in its own process, which copies its outputs")
    kernel.close()


#: 2^30 instances of a template.
_BOMB = """
template <int N, int I> struct Tree { enum { value = Tree<N - 1, 2 * I>::value + Tree<N - 1, 2 * I + 1>::value }; };
template <int I> struct Tree<0, I> { enum { value = 0 }; };
static_assert(Tree<30, 0>::value == 0);
"""


def test_a_source_that_never_ends_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compilation has a time limit of its own, and no process of it is left."""
    monkeypatch.setattr(opening, "_COMPILE_LEAST", 2.0)
    path = tmp_path / "k.cu"
    path.write_text(_BOMB + (EXAMPLES / "cuda_q4_0.cu").read_text())
    CpuHost(1).check()
    before = children(os.getpid())
    with pytest.raises(UsageError, match=r"^kernel k\.cu:gemm: the kernel's source did not compile within 2 s$"):
        open_foreign(f"{path}:gemm", CpuHost(1), 0.2)
    assert gone(set(children(os.getpid())) - set(before))


@pytest.mark.needs("nvrtc")
def test_nvrtc_reads_foreign_sources_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "right.cu").write_text('extern "C" __global__ void k() {}\n')
    (tmp_path / "wrong.cu").write_text("#error what it says\n")
    (tmp_path / "endless.cu").write_text(f'#include "{tmp_path}/endless.h"\n')
    os.mkfifo(tmp_path / "endless.h")
    here = nvrtc.compile_cubin(tmp_path, "right.cu", "90", {})
    monkeypatch.setattr(nvrtc, "compiled_here", lambda *_: pytest.fail("it was compiled in this process"))
    with foreign_source(tmp_path, 60.0):
        assert nvrtc.compile_cubin(tmp_path, "right.cu", "90", {}) == here
        with pytest.raises(EnvironmentFault, match=r"^NVRTC could not compile wrong\.cu for sm_90: .*what it says$"):
            nvrtc.compile_cubin(tmp_path, "wrong.cu", "90", {})
        assert nvrtc.cubin_key(tmp_path, "endless.cu", "90", {}) is None
    with foreign_source(tmp_path, 2.0), pytest.raises(EnvironmentFault, match="did not compile within 2 s"):
        nvrtc.compile_cubin(tmp_path, "endless.cu", "90", {})


def test_checks_of_a_card_and_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """compute-sanitizer needs sockets, which a confined kernel has not: that is no fault of the kernel's."""
    monkeypatch.setitem(HOSTS, "cpu", replace(HOSTS["cpu"], emulated=False))
    checked = Schedule(checked=True)
    kernel = open_foreign(f"{EXAMPLES / 'cuda_q4_0.cu'}:gemm", CpuHost(1))
    assert "add --sandbox none" in kernel.check_fault()
    assert kernel.under(checked) is None
    assert kernel.under(Schedule("descending")) is not None
    with sandboxed("none"):
        assert kernel.check_fault() == checks_fault()
    kernel.close()
