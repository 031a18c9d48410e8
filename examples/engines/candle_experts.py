"""candle's `moe_gemm_gguf` (candle-kernels/src/moe/moe_gguf.cu): experts by a sorted list of slots, float32.

`build.py` beside this file compiles it into a library.
"""

import ctypes
from pathlib import Path

import torch

from gguf_verify import kernel

LIBRARY = ctypes.CDLL(str(Path(__file__).with_name("built") / "candle_moe.so"))
NUMBER = {"Q8_0": 0, "Q4_K": 1, "Q2_K": 2, "Q3_K": 3, "Q5_K": 4, "Q6_K": 5}
LISTS = ["ids", "sorted_token_ids", "expert_ids"]


@kernel(
    list(NUMBER), computes="experts", semantics="q8_1", takes="float32", arrays="torch", device="cuda",
    experts={"block_m": 1, "lists": LISTS},
)  # fmt: skip
def product(weights, activations, shape, ids, sorted_token_ids, expert_ids):
    y = torch.empty((ids.numel(), shape.n), dtype=torch.float32, device="cuda")
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (activations, weights, sorted_token_ids, expert_ids)]
    numbers = (len(weights), ids.shape[1], ids.numel(), shape.n, shape.k, NUMBER[shape.format])
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    LIBRARY.moe_gemm_gguf(*pointers, None, ctypes.c_void_p(y.data_ptr()), *map(ctypes.c_int, numbers), stream)
    return y
