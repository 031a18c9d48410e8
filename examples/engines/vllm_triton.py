"""vLLM's Triton kernels for GGUF (vllm_gguf_plugin/triton), used if its CUDA kernels are missing or disabled.

They dequantize in the type of the activations, each step rounded, and multiply by `tl.dot` or by sums in float32.
"""

import sys
import types
from pathlib import Path

import gguf

from gguf_verify import kernel

BUILT = Path(__file__).with_name("built")
package = types.ModuleType("vllm_gguf_plugin")  # its own __init__ imports all of vLLM
package.__path__ = [str(BUILT / "vllm_gguf_plugin")]
sys.modules.setdefault(package.__name__, package)

from vllm_gguf_plugin.triton.dequantize.interface import ggml_dequantize_triton  # noqa: E402
from vllm_gguf_plugin.triton.gemm.interface import ggml_mul_mat_a8_triton  # noqa: E402

DOTS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
GRIDS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS"]
ON_CUDA = {"arrays": "torch", "device": "cuda"}


def _product(weights, activations, shape):
    return ggml_mul_mat_a8_triton(weights, activations, int(gguf.GGMLQuantizationType[shape.format]), shape.n)


def _offer(name, **declared):
    globals()[name] = kernel([*DOTS, *GRIDS], **declared, **ON_CUDA)(lambda *given: _product(*given))


_offer("product_float32", semantics="f32")
_offer("product_float16", activations="float16", term="half_steps", output="float16", accumulates="tensor")
_offer("product_bfloat16", activations="bfloat16", term="bfloat16_steps", output="bfloat16", accumulates="tensor")

for dtype in ("float32", "float16", "bfloat16"):

    def values(weights, shape, dtype=dtype):
        import torch

        kind = int(gguf.GGMLQuantizationType[shape.format])
        return ggml_dequantize_triton(weights, kind, shape.n, shape.k, getattr(torch, dtype))

    declared = {"computes": "dequantize", "arithmetic": "float32", "output": dtype, **ON_CUDA}
    globals()[f"dequantize_{dtype}"] = kernel([*DOTS, *GRIDS], **declared)(values)
