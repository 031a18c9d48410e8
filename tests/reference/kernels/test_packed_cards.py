"""The kernels that take packed weights compile for their GPUs, and spill no register."""

from __future__ import annotations

from gguf_verify.formats import BlockFormat
from gguf_verify.hosts import nvrtc
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder.q8_1_gemv import Gemv
from gguf_verify.kernels.packed import Layout
from gguf_verify.kernels.tiling import LARGEST, tilings
from gguf_verify.support.paths import kernel_root
from tests.support.kernel_inputs import (
    stack_bytes,
)
from tests.support.needs import need
from tests.support.packed_kernels import OF_ALL_TYPES, TILINGS


@OF_ALL_TYPES
def test_compiles_without_spills(fmt: BlockFormat) -> None:
    """For Hopper, and sources that run elsewhere for every GPU."""
    need("nvrtc")
    supported = nvrtc.architectures()
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
        sources += [("gemm/q8_1/08_gemv.cu", macros | {k: str(v) for k, v in s.items()}, sm) for s in shapes]
    for file, defines, sm in sources:
        if int(sm.rstrip("a")) in supported:
            stacks = list(stack_bytes(nvrtc.compile_cubin(kernel_root(), file, sm, defines)))
            assert stacks
            assert not any(stacks), (file, fmt.name, sm, stacks)
