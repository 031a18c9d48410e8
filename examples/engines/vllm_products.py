"""vLLM's CUDA kernels for GGUF: `ggml_mul_mat_vec_a8` for few tokens and `ggml_mul_mat_a8` for many, in three types.

`build.py` beside this file compiles them from the sources in the wheel of vllm-gguf-plugin for the installed PyTorch.
Both quantize their activations to Q8_1 by IEEE division and add in float32; outputs have the activations' type.
"""

from pathlib import Path

import gguf
import torch

from gguf_verify import Oracle, kernel
from gguf_verify.semantics.definitions import SEMANTICS

torch.ops.load_library(str(Path(__file__).with_name("built") / "_C_gguf.so"))
TYPE = gguf.GGMLQuantizationType
SUPERBLOCKS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
GRIDS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_M", "IQ4_NL", "IQ4_XS"]


def iq1_s_weights(rows, fmt):
    """Split values into codes and the offsets ±1/8 - 1, which the kernel multiplies by the stored sums s."""
    blocks = rows.reshape(len(rows), -1, 50)
    d, qh = blocks[..., :2].copy().view("<f2").astype(float), blocks[..., 34:].copy().view("<u2")
    scale = d * (2 * (qh >> 12 & 7) + 1.0)  # of 32 values
    delta = scale * ((qh >> 15) * -0.25 - 0.875)
    values = gguf.dequantize(rows, TYPE.IQ1_S).astype(float).reshape(*delta.shape, 32) - delta[..., None]
    return torch.cat([torch.tensor(v).reshape(len(rows), -1) for v in (values, delta)], 1).numpy()


def codes_and_sums(x):
    blocks = SEMANTICS["q8_1"].encode(x).reshape(len(x), -1, 36)
    d, s = (blocks[..., i : i + 2].copy().view("<f2").astype(float) for i in (0, 2))
    values = d * blocks[..., 4:].view("i1")
    return torch.cat([torch.tensor(v).reshape(len(x), -1) for v in (values, s)], 1).numpy()


def _offer(name, op, formats, **declared):
    """Make NAME_float32, NAME_float16 and NAME_bfloat16 of this module."""
    for dtype in ("float32", "float16", "bfloat16"):

        def product(weights, activations, shape):
            return getattr(torch.ops._C_gguf, op)(weights, activations, TYPE[shape.format], shape.n)

        given = {"takes": dtype, "output": dtype, "arrays": "torch", "device": "cuda", **declared}
        globals()[f"{name}_{dtype}"] = kernel(formats, **given)(product)


VEC, MAT = "ggml_mul_mat_vec_a8", "ggml_mul_mat_a8"
FEW = {"M": {"most": 65535}}  # a grid has 65,535 blocks in y
MANY = {"M": {"most": 262140}, "K": {"multiple": 512}}  # of 4 tokens each; other K: see "read behind" in findings.toml
_offer("vec", VEC, ["Q4_0", "Q5_0", "Q8_0", *SUPERBLOCKS, *GRIDS], semantics="q8_1", domain=FEW)
_offer("vec_half", VEC, ["Q4_1", "Q5_1"], semantics="q8_1_half", domain=FEW)
_offer("vec_iq1_s", VEC, ["IQ1_S"], semantics=Oracle(iq1_s_weights, codes_and_sums), domain=FEW)
_offer("mat", MAT, ["Q4_0", "Q8_0", "Q2_K", "Q3_K", "Q6_K"], semantics="q8_1", domain=MANY)
_offer("mat_integer", MAT, ["Q5_0"], activations="q8_1", term="integers", domain=MANY)
_offer("mat_half", MAT, ["Q4_1", "Q5_1"], semantics="q8_1_half", domain=MANY)
_offer("mat_minima", MAT, ["Q4_K", "Q5_K"], activations="q8_1", term="superblock_sums", domain=MANY)
