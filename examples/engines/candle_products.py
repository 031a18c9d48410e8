"""candle's CUDA kernels for GGUF (candle-kernels/src): `mmvq_gguf` for up to eight tokens, `mmq_gguf` for any number.

`build.py` beside this file compiles them into libraries from candle's sources. The launches, their scratch memory and
their order are those of candle-core/src/quantized/fast_mmvq.rs and fast_mmq.rs.
"""

import ctypes
from pathlib import Path

import torch

from gguf_verify import kernel

BUILT = Path(__file__).with_name("built")
MMVQ, MMQ = ctypes.CDLL(str(BUILT / "candle_mmvq.so")), ctypes.CDLL(str(BUILT / "candle_mmq.so"))
TAG = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
LAYOUT = {"Q4_0": "DS4", "Q4_1": "DS4", "Q5_1": "DS4", "Q4_K": "DS4", "Q5_K": "DS4", "Q2_K": "D2S6"}
ALL = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def _call(library, name, *arguments):
    """Call a launcher: tensors as pointers, numbers as 32 bits or what they are; the last parameter is the stream."""
    numbers = [ctypes.c_int(a) if type(a) is int else a for a in arguments]
    numbers = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in numbers]
    getattr(library, name)(*numbers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))


def mmvq(weights, x, shape):
    m, n, k = shape.m, shape.n, shape.k
    padded, tag = -(-k // 512) * 512, TAG[str(x.dtype)[6:]]
    codes = torch.empty(m * padded // 32 * 36, dtype=torch.uint8, device="cuda")
    y = torch.empty((m, n), dtype=x.dtype, device="cuda")
    _call(MMVQ, f"launch_mmvq_gguf_quantize_q8_1_{tag}", x, codes, k, padded, m)
    _call(MMVQ, f"launch_mmvq_gguf_{shape.format.lower()}_{tag}_plain", weights, codes, y, k, n, padded // 32, n, m)
    return y


def mmq(weights, x, shape):
    m, n, k, long = shape.m, shape.n, shape.k, ctypes.c_int64
    padded, card = -(-k // 512) * 512, torch.cuda.get_device_properties(0)
    codes = torch.empty((m * padded // 128 + 128) * 144, dtype=torch.uint8, device="cuda")
    fixup = torch.empty(256 * 128 * 128, dtype=torch.float32, device="cuda")
    y = torch.empty((m, n), dtype=torch.float32, device="cuda")
    sizes = [long(v) for v in (k, k, 0, 0, padded, m, 1, 1)]
    _call(MMQ, f"launch_mmq_quantize_q8_1_{LAYOUT.get(shape.format, 'D4')}", x, None, codes, 0, *sizes)
    block = 256 if shape.format.endswith("_K") else 32
    sizes = [long(v) for v in (k, n, m, k // block, n)]
    cc, shared = 100 * card.major + 10 * card.minor, long(card.shared_memory_per_block_optin)
    name = f"launch_mmq_gguf_{shape.format.lower()}"
    _call(MMQ, name, fixup, weights, codes, y, *sizes, cc, card.multi_processor_count, shared, 32)
    return y


# candle allocates zeros for 512 values after a matrix (MATRIX_ROW_PADDING)
CARD = {"arrays": "torch", "device": "cuda", "operands": {"weights": {"tail": "512 / BLOCK * BYTES"}}}
mmq_ds4 = kernel(["Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K"], semantics="mmq", takes="float32", **CARD)(mmq)
mmq_d4 = kernel(["Q5_0", "Q8_0", "Q3_K", "Q6_K"], semantics="mmq_d4", takes="float32", **CARD)(lambda *a: mmq(*a))
for dtype in TAG:
    given = {"takes": dtype, "output": dtype, "domain": {"M": {"most": 8}}, **CARD}
    globals()[f"mmvq_{dtype}"] = kernel(ALL, semantics="q8_1", **given)(lambda *a: mmvq(*a))
