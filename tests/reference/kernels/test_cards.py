"""Every shipped kernel compiles for every GPU, and spills no register."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.hosts import compute_sanitizer, cupy_host, nvrtc
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder.q8_1_gemv import Gemv
from gguf_verify.kernels.packed import Layout
from gguf_verify.kernels.tiling import LARGEST, tilings
from gguf_verify.support.errors import EnvironmentFault
from tests.reference.kernels.cubins import as_macros, cards, stack
from tests.support.kernel_inputs import sources, stack_bytes
from tests.support.needs import unmet
from tests.support.packed_kernels import OF_ALL_TYPES, TILINGS

CARDS = ("75", "80", "86", "89", "90", "100", "120")
#: The oldest and the newest: `make test` compiles each source for one of them, `make test-all` for every GPU.
ENDS = ("75", "120")


@pytest.fixture(scope="module")
def supported() -> list[int]:
    return cards()


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

    with ThreadPoolExecutor(2) as pool:
        for source, found in zip(some, pool.map(lambda source: stack(source[0], sm, source[2]), some), strict=True):
            assert not found, (sm, source)


@OF_ALL_TYPES
def test_packed_weights_compile_without_spills(supported: list[int], fmt: BlockFormat) -> None:
    """The kernels that take them: for Hopper, and sources that run elsewhere for every GPU."""
    layout = Layout.of(fmt)
    macros = {**fmt.macros, **layout.macros, "TOKENS": "64"}
    packing = macros | {"CHUNK_BYTES": str(layout.chunk)}
    sources = [("pack/weights.cu", packing, "90"), ("pack/activations.cu", macros, "90")]
    sources += [("gemm/q8_1/06_mma.cu", fmt.macros, sm) for sm in ("75", "80", "86", "89", "90", "120")]
    for tiling in TILINGS:
        if tiling == LARGEST and tiling not in tilings(fmt):
            continue
        sizes = {"TOKENS": str(tiling.tokens), "WARPGROUPS": str(tiling.groups), "CTAS": str(tiling.ctas)}
        sources += [("gemm/q8_1/07_wgmma.cu", macros | sizes | {"STAGES": "3"}, "90a")]
        if tiling.tokens <= 64:
            parts = {"STAGES": "3", "PART_STAGES": "16"}
            sources += [("gemm/q8_1/09_split_k.cu", macros | sizes | parts, "90a")]
    for sm in ("75", "90", "120") if fmt.legacy else ():
        sources += [("pack/weights.cu", packing | {"STRIPS": "1"}, sm)]
        shapes = [Gemv.shape(sm, Weights(fmt, 1, 4096, None), m) for m in (1, 2, 4)]
        shapes += [{"TOKENS": t, "STAGES": 4} for t in (8, 16)]
        sources += [("gemm/q8_1/08_gemv.cu", macros | as_macros(s), sm) for s in shapes]
    for file, defines, sm in sources:
        if int(sm.rstrip("a")) in supported:
            assert not stack(file, sm, defines), (file, fmt.name, sm)


def test_a_stack_is_seen(supported: list[int], tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        'extern "C" __global__ void k(const int* x, int* y, int n) {\n'
        "    int a[64] = {};\n    for (int i = 0; i < n; ++i) a[x[i] & 63] += i;\n    y[0] = a[n & 63];\n}\n"
    )
    for sm in CARDS:
        if int(sm) in supported:
            assert stack("k.cu", sm, {}, tmp_path) == 256


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
