"""vLLM's `ggml_dequantize` (vllm-gguf-plugin): the values of weights in three types.

It computes Q4_0 … Q6_K in float16, even if float32 or bfloat16 is requested, and the others in float32.
"""

from pathlib import Path

import gguf
import torch

from gguf_verify import kernel

torch.ops.load_library(str(Path(__file__).with_name("built") / "_C_gguf.so"))
IN_HALVES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
IN_FLOATS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_XS"]
#: For IQ4_NL it writes whole superblocks: see findings.toml.
WHOLE = {"K": {"multiple": 256}}
OFFERED = [("halves", IN_HALVES, "float16", {}), ("floats", IN_FLOATS, "float32", {}),
           ("iq4_nl", ["IQ4_NL"], "float32", WHOLE)]  # fmt: skip

for dtype in ("float32", "float16", "bfloat16"):
    for name, formats, arithmetic, domain in OFFERED:

        def values(weights, shape, dtype=dtype):
            kind = gguf.GGMLQuantizationType[shape.format]
            return torch.ops._C_gguf.ggml_dequantize(weights, kind, shape.n, shape.k, getattr(torch, dtype))

        given = {"output": dtype, "arithmetic": arithmetic, "arrays": "torch", "device": "cuda", "domain": domain}
        globals()[f"{name}_{dtype}"] = kernel(formats, computes="dequantize", **given)(values)
