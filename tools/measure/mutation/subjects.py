"""The kernels and types with which a mutant of a source is tested."""

from __future__ import annotations

from pathlib import Path

from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.packed import Packed

from .recording import ELEMENTS_KERNEL, Subject
from .units import Unit, closure, header_of

#: Types that cover the distinctions in the sources of kernels: the kind of minimum, groups of 16, fifth bits, 8-bit
#: codes and signed codes.
_KINDS = ("Q4_0", "Q2_K", "Q5_1", "Q8_0")
_PACKED_KINDS = ("Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q6_K")
_PLAIN = ("q8_1_naive", "q8_1_dp4a", "f32_naive")
#: Types that together use each function of words.cuh and grid.cuh.
_OF_SHARED_HEADERS = ("Q4_0", "Q5_0", "Q3_K", "Q1_0", "Q2_K", "IQ2_XXS")
_BY_FILE = {
    "common.cuh": "q8_1_naive Q4_0, q8_1_naive Q2_K, q8_1_naive Q5_1, q8_1_dp4a_tiled Q4_0, q8_1_tiled Q2_K, "
                  "q8_1_tiled Q5_1",
    "packed.cuh": "q8_1_split_k Q8_0, q8_1_gemv Q8_0, q8_1_split_k Q5_1, q8_1_gemv Q5_1, q8_1_split_k Q4_0, "
                  "q8_1_gemv Q4_0, q8_1_split_k Q5_0, q8_1_gemv Q5_0, q8_1_split_k Q2_K, q8_1_split_k Q6_K",
    "interleaved.cuh": "q8_1_decode MXFP4, q8_1_decode Q3_K, q8_1_decode Q6_K",
    "gemm/add_parts.cu": "f16_wgmma Q4_0",
    "cluster.cuh": "q8_1_columns Q4_0, q8_1_decode Q2_K",
    "gemm/q8_1/activations.cuh": "q8_1_decode Q2_K, q8_1_gemv Q5_1, q8_1_columns Q4_0, q8_1_decode Q4_K",
    "gemm/f16/halves.cuh": "f16_wgmma Q4_0, f16_wgmma Q4_1, f16_wgmma Q8_0, f16_wgmma Q2_K, f16_wgmma Q6_K",
    "gemm/f16/mma.cuh": "f16_mma Q4_0",
    "gemm/f16/pipeline.cuh": "f16_wgmma Q4_0, f16_dequantized Q4_0",
    "gemm/f16/wgmma.cuh": "f16_dequantized Q4_0",
    "gemm/f16/words.cuh": "f16_mma Q4_0, f16_wgmma Q4_0, f16_wgmma Q4_1, f16_wgmma Q2_K",
    "pack/half_activations.cu": "f16_wgmma Q4_0",
    "pack/halves.cu": "f16_wgmma Q4_0, f16_wgmma Q4_1, f16_wgmma Q8_0, f16_wgmma Q2_K, f16_wgmma Q6_K",
    "quantize/float16.cu": "f16_naive Q4_0",
    "quantize/q8_1.cu": "q8_1_naive Q4_0",
    "quantize/q8_1.cuh": "q8_1_naive Q4_0, q8_1_wgmma Q4_0, q8_1_gemv Q4_0",
    "pack/activations.cu": "q8_1_wgmma Q4_0, q8_1_wgmma Q8_0, q8_1_split_k Q5_1, q8_1_split_k Q2_K, q8_1_split_k Q4_K",
    "pack/interleaved.cu": "q8_1_decode MXFP4, q8_1_decode Q3_K",
    "pack/weights.cu": "q8_1_wgmma Q4_0, q8_1_gemv Q5_1, q8_1_wgmma Q8_0, q8_1_wgmma Q2_K, q8_1_wgmma Q5_K",
}  # fmt: skip


def subjects(root: Path, file: str) -> list[Subject]:
    """Return the subjects that use a file below kernels/, the cheap ones first. A mutant is tried on them in turn until
    one kills it."""
    if file.endswith(".cu"):
        # sources that include this one come first: 09 includes 07 with smaller tiles and is faster on a CPU
        including = [s for s in KERNELS.values() if f'#include "{Path(file).name}"' in (root / s.file).read_text()]
        if of_file := [*including, *(s for s in KERNELS.values() if s.file == file)]:
            kinds = _PACKED_KINDS if isinstance(of_file[0].launch, Packed) else _KINDS
            return [Subject(spec.name, fmt) for spec in of_file for fmt in kinds if spec.covers(FORMATS[fmt])]
    elements = [f.name for f in ELEMENTS.values() if file in ("gemm/elements/01_naive.cu", header_of(f))]
    if elements:
        return [Subject(ELEMENTS_KERNEL, fmt) for fmt in elements]
    if file.startswith("formats/"):
        units = {name: Unit("formats/format.cuh", tuple(fmt.macros.items())) for name, fmt in FORMATS.items()}
        users = [name for name, unit in units.items() if file in closure(root, unit)]
        own = [name for name in users if header_of(FORMATS[name]) == file]
        some = own or [name for name in users if name in _OF_SHARED_HEADERS] or users[:2]
        packed = [Subject("q8_1_gemv", fmt) for fmt in own if KERNELS["q8_1_gemv"].covers(FORMATS[fmt])]
        return [Subject(kernel, fmt) for kernel in _PLAIN for fmt in some] + packed
    return [Subject(*names.split()) for names in _BY_FILE.get(file, "").split(", ") if names]


def row_of(file: str) -> str:
    """Return the row of a source in the score's table."""
    by_folder = {
        "formats": "format headers",
        "quantize": "quantizer",
        "pack": "packing",
        "packed.cuh": "packing",
        "interleaved.cuh": "packing",
    }
    return by_folder.get(file.split("/")[0], "GEMM sources")
