"""vLLM's CUDA kernels for experts (vllm-gguf-plugin): `ggml_moe_a8_vec` for few tokens, `ggml_moe_a8` for many.

The first takes the experts of each token, the second the lists of vLLM's `moe_align_block_size`, by blocks of 4.
"""

from pathlib import Path

import gguf
import torch

from gguf_verify import kernel

torch.ops.load_library(str(Path(__file__).with_name("built") / "_C_gguf.so"))
TYPE = gguf.GGMLQuantizationType
SUPERBLOCKS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
GRIDS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_M", "IQ4_NL", "IQ4_XS"]


def _offer(name, formats, padded, **declared):
    """Make NAME_float32, NAME_float16 and NAME_bfloat16 of this module."""
    lists = ["sorted_token_ids", "expert_ids", "num_tokens_post_padded"] if padded else ["ids"]

    taken = {"block_m": 4, "lists": ["ids", *lists]} if padded else {"lists": lists}
    if padded:  # other K: see "read behind" in findings.toml
        declared["domain"] = {"K": {"multiple": 512}}
    for dtype in ("float32", "float16", "bfloat16"):

        def product(weights, x, shape, **of_tokens):
            kind, ops = TYPE[shape.format], torch.ops._C_gguf
            if padded:
                slots, experts, used = (of_tokens[name] for name in lists)
                top_k = of_tokens["ids"].shape[1]
                return ops.ggml_moe_a8(x, weights, slots, experts, used, kind, shape.n, top_k, shape.m)
            return ops.ggml_moe_a8_vec(x, weights, of_tokens["ids"], of_tokens["ids"].shape[1], kind, shape.n, shape.m)

        given = {"takes": dtype, "output": dtype, "arrays": "torch", "device": "cuda", "experts": taken, **declared}
        globals()[f"{name}_{dtype}"] = kernel(formats, computes="experts", **given)(product)


_offer("vec", ["Q4_0", "Q5_0", "Q8_0", *SUPERBLOCKS, *GRIDS], False, semantics="q8_1")
_offer("vec_half", ["Q4_1", "Q5_1"], False, semantics="q8_1_half")
_offer("mat", ["Q4_0", "Q8_0", "Q2_K", "Q3_K", "Q6_K"], True, semantics="q8_1")
_offer("mat_integer", ["Q5_0"], True, activations="q8_1", term="integers")
_offer("mat_half", ["Q4_1", "Q5_1"], True, semantics="q8_1_half")
_offer("mat_minima", ["Q4_K", "Q5_K"], True, activations="q8_1", term="superblock_sums")
