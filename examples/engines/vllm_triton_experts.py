"""vLLM's Triton kernels for experts (vllm_gguf_plugin/triton/fused_moe), by the lists of `moe_align_block_size`."""

import sys
import types
from pathlib import Path

import gguf

from gguf_verify import kernel

package = types.ModuleType("vllm_gguf_plugin")  # its own __init__ imports all of vLLM
package.__path__ = [str(Path(__file__).with_name("built") / "vllm_gguf_plugin")]
sys.modules.setdefault(package.__name__, package)

from vllm_gguf_plugin.triton.fused_moe import interface, utils  # noqa: E402

TYPES = ["Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S",
         "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS"]  # fmt: skip
LISTS = ["ids", "sorted_token_ids", "expert_ids", "num_tokens_post_padded"]


def _product(weights, x, shape, ids, sorted_token_ids, expert_ids, num_tokens_post_padded):
    kind, lists = int(gguf.GGMLQuantizationType[shape.format]), (sorted_token_ids, expert_ids, num_tokens_post_padded)
    return interface.ggml_moe_a8_triton(x, weights, *lists, kind, shape.n, ids.shape[1], shape.m)


def _offer(dtype, **declared):
    for suffix, formats in (("", TYPES), ("_q4_0", ["Q4_0"])):
        block = utils.get_triton_moe_block_m(int(gguf.GGMLQuantizationType[formats[0]]))
        given = {"output": dtype, "arrays": "torch", "device": "cuda", "experts": {"block_m": block, "lists": LISTS}}
        made = kernel(formats, computes="experts", **given, **declared)(lambda *a, **lists: _product(*a, **lists))
        globals()[f"product_{dtype}{suffix}"] = made


_offer("float32", semantics="f32")
_offer("float16", activations="float16", term="half_steps", accumulates="tensor")
_offer("bfloat16", activations="bfloat16", term="bfloat16_steps", accumulates="tensor")
