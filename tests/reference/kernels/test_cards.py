"""Every shipped kernel compiles for every GPU, and spills no register."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gguf_verify.hosts import compute_sanitizer, cupy_host, nvrtc
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import sources, stack_bytes
from tests.support.needs import need, unmet

CARDS = ("75", "80", "86", "89", "90", "100", "120")
#: The oldest and the newest: `make test` compiles each source for one of them, `make test-all` for every GPU.
ENDS = ("75", "120")


@pytest.fixture(scope="module")
def supported() -> list[int]:
    need("nvrtc")
    return nvrtc.architectures()


@pytest.mark.parametrize("sm", CARDS)
def test_compiles_for_every_card(supported: list[int], sm: str) -> None:
    """And keeps all in registers: no local memory, so nothing spilled."""
    assert_compiled(supported, sm, sources())


@pytest.mark.parametrize("sm", [ENDS[0], ENDS[1]])
def test_compiles_for_the_oldest_or_the_newest_card(supported: list[int], sm: str) -> None:
    """In turns, so that each GPU gets some formats of every kernel."""
    assert_compiled(supported, sm, [s for i, s in enumerate(sources()) if ENDS[(i + i // 2) % 2] == sm])


def assert_compiled(supported: list[int], sm: str, some: list[tuple[str, str, dict[str, str]]]) -> None:
    if int(sm) not in supported:
        unmet("nvrtc", f"this version does not compile for sm_{sm}")

    def compiled(source: tuple[str, str, dict[str, str]]) -> list[int]:
        file, _, macros = source
        return list(stack_bytes(nvrtc.compile_cubin(kernel_root(), file, sm, macros)))

    with ThreadPoolExecutor(2) as pool:
        for source, stacks in zip(some, pool.map(compiled, some), strict=True):
            assert stacks, "the cubin does not say"
            assert not any(stacks), (sm, source, stacks)


def test_a_stack_is_seen(supported: list[int], tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        'extern "C" __global__ void k(const int* x, int* y, int n) {\n'
        "    int a[64] = {};\n    for (int i = 0; i < n; ++i) a[x[i] & 63] += i;\n    y[0] = a[n & 63];\n}\n"
    )
    for sm in CARDS:
        if int(sm) in supported:
            assert max(stack_bytes(nvrtc.compile_cubin(tmp_path, "k.cu", sm, {}))) == 256


def test_the_filler_of_shared_memory_compiles(supported: list[int]) -> None:
    filler = cupy_host._FILLER
    for sm in CARDS:
        if int(sm) in supported:
            assert not any(stack_bytes(nvrtc.compile_cubin(filler.parent, filler.name, sm, {}, lines=True))), sm
    assert f"void {compute_sanitizer.UNCHECKED}(" in filler.read_text()


@pytest.mark.parametrize("name", ["unit.cu", "program.cu", "default_program"])
def test_a_kernels_file_may_have_any_name(supported: list[int], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('extern "C" __global__ void k(int* y) { y[0] = 1; }\n')
    assert nvrtc.compile_cubin(tmp_path, name, "90", {}, lines=True)[:4] == b"\x7fELF"


def test_errors_of_nvrtc(supported: list[int], tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k() { no_such_name(); }\n")
    with pytest.raises(EnvironmentFault, match=r"could not compile k\.cu for sm_90: .*no_such_name"):
        nvrtc.compile_cubin(tmp_path, "k.cu", "90", {})
    with pytest.raises(EnvironmentFault, match="INVALID_OPTION"):
        nvrtc.compile_cubin(tmp_path, "k.cu", "13", {})
