"""Templates of kernels to begin from: complete, correct and naive, for any type of weights (`gguf-verify new-kernel`).

A kernel in CUDA C++ comes with a header that decodes the type: the project's own, with all that it includes, in one
file. So the kernel needs no include path, neither here nor where its author compiles it. A kernel in Python calls the
project's decoder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...formats import FORMATS, BlockFormat
from ...hosts.tables import headers
from ...support.errors import UsageError
from ...support.near import nearest
from ...support.paths import kernel_root

#: Definitions with a template, and the types of activations and outputs.
SEMANTICS = ("f32", "q8_1")
TAKES = ("float32", "float16", "bfloat16")
#: Type in CUDA C++, expression that reads a value, expression that writes one.
_ELEMENTS = {
    "float32": ("float", "{}", "{}"), "float16": ("uint16_t", "half_to_float({})", "float_to_half({})"),
    "bfloat16": ("uint16_t", "bfloat16_to_float({})", "float_to_bfloat16({})"),
}  # fmt: skip
_COMMON = "../common.cuh"
_INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.M)
#: The names that a paragraph of a header defines at its outermost level.
_DEFINED = re.compile(
    r"^(?:__device__ |__forceinline__ |static |const |constexpr |inline |typedef )*"
    r"(?:struct|enum class|[\w:]+[ \w]*?[ *&]) ?(\w+)(?=[;({ \[=])",
    re.M,
)


@dataclass(frozen=True)
class Template:
    """The options of a new kernel.

    Args:
        fmt: the weights' type.
        semantics: one of `SEMANTICS`.
        takes: the declared type of activations; "": the definition's.
        output: the dtype of the outputs.

    Raises UsageError if there is no such template.
    """

    fmt: BlockFormat
    semantics: str = "f32"
    takes: str = ""
    output: str = "float32"

    @classmethod
    def of(cls, kind: str, semantics: str, takes: str, output: str) -> Template:
        """Build it from names. Raises UsageError."""
        if kind not in FORMATS:
            there = f"there are: {', '.join(FORMATS)}"
            raise UsageError(f"no type of weights is called {ascii(kind)[:60]}; {nearest(kind, FORMATS)}{there}")
        return cls(FORMATS[kind], semantics, takes, output)

    def __post_init__(self) -> None:
        if self.semantics not in SEMANTICS:
            raise UsageError(
                f"there is no template of {ascii(self.semantics)[:60]}; use one of {', '.join(SEMANTICS)}, and change "
                "the code and its declaration"
            )
        may = TAKES if self.semantics == "f32" else ("float32",)
        if self.takes and self.takes not in may:
            raise UsageError(f"a template of {self.semantics} takes {', '.join(may)}, not {ascii(self.takes)[:60]}")
        if self.output not in TAKES:
            raise UsageError(f"output {ascii(self.output)[:60]} is not one of {', '.join(TAKES)}")

    @property
    def header(self) -> str:
        """The name of the header that decodes the type."""
        return f"{self.fmt.name.lower()}.cuh"

    def files(self, path: Path) -> dict[Path, str]:
        """Return the files of a new kernel: path → text. Raises UsageError for an unknown suffix."""
        if path.suffix == ".py":
            return {path: self._python(path)}
        if path.suffix == ".cu":
            return {path.with_name(self.header): flattened(self.fmt), path: self._cuda(path)}
        raise UsageError(f"a kernel is FILE.cu or FILE.py, not {ascii(path.name)[:60]}")

    # ---- CUDA C++ ----------------------------------------------------------------------------------------------------

    def _cuda(self, path: Path) -> str:
        fmt, quantized = self.fmt, self.semantics == "q8_1"
        inside = quantized and self.takes == "float32"
        given = self.takes or "float32"
        kind, _, write = _ELEMENTS[self.output]
        what = "Q8_1 activations" if quantized and not inside else f"{given} activations"
        activations = "Q8_1" if quantized and not inside else _ELEMENTS[given][0]
        declared = [
            f'formats = ["{fmt.name}"]', f'semantics = "{self.semantics}"',
            *([f'takes = "{self.takes}"'] if self.takes and (inside or given != "float32") else []),
            *([f'output = "{self.output}"'] if self.output != "float32" else []),
            'parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]', "block = 128",
            'grid = "ceil(M * N, 128)"',
        ]  # fmt: skip
        lines = "\n".join(f"// {line}" for line in declared)
        each = "M rows of K/32 blocks" if quantized and not inside else "M rows of K values"
        return f"""\
// A naive kernel to begin from: {fmt.name} weights × {what}, one thread an output.
//
//     gguf-verify kernel {path.name}:gemm                   is it correct on random data?
//     gguf-verify MODEL.gguf --kernel {path.name}:gemm      is it correct on a model, compared with llama.cpp?
//
// The declaration for the verifier, in TOML. `semantics` names the kernel's definition: if you do not know it,
// --identify finds it from the outputs. Some other keys: takes, output, domain = {{ M = 1, K = {{ multiple = 256 }} }}.
//
// [gguf-verify]
{lines}
// [/gguf-verify]

#include "{self.header}"  // {fmt.name}: its {fmt.block_bytes} bytes, and how they are decoded
{_Q8_1 if quantized else ""}{_QUANTIZED if inside else ""}
// weights: N rows of K/{fmt.block_size} blocks, as in the file
// activations: {each}
// output: M rows of N values
extern "C" __global__ void gemm(const {fmt.name}* weights, const {activations}* activations, {kind}* output,
                                long long M, long long N, long long K) {{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;  // M·N may be more than 2^31
    if (i >= M * N) return;
    const {fmt.name}* row = weights + i % N * (K / {fmt.block_size});
{self._loop(given, inside)}
    output[i] = {write.format("sum")};
}}
"""

    def _loop(self, given: str, inside: bool) -> str:
        fmt = self.fmt
        if self.semantics == "f32":
            read = _ELEMENTS[given][1].format(f"token[{fmt.block_size} * b + 32 * s + j]")
            return f"""\
    const {_ELEMENTS[given][0]}* token = activations + i / N * K;
    float sum = 0.0f;
    for (long long b = 0; b < K / {fmt.block_size}; ++b) {{
        for (int s = 0; s < {fmt.block_size // 32}; ++s) {{  // 32 values of the block at a time
            int8_t codes[32];
            row[b].unpack(s, codes);
            for (int j = 0; j < 32; ++j) {{
                const float weight = {fmt.name}::value(row[b].scale(s, j / 16), row[b].minimum(s, j / 16), codes[j]);
                sum += {read} * weight;
            }}
        }}
    }}"""
        at = f"{fmt.block_size // 32} * b + s"
        token = (
            "const float* token = activations + i / N * K;"
            if inside
            else ("const Q8_1* token = activations + i / N * (K / 32);")
        )
        taken = f"quantized(token + 32 * ({at}))" if inside else f"token[{at}]"
        of_s = fmt.min_times_sum and (fmt.has_min or bool(fmt.offset))
        of_codes = fmt.has_min and not fmt.min_times_sum
        width = 16 if fmt.group == 16 else 32
        h, span = ("h", "16 * h; j < 16 * h + 16") if width == 16 else ("0", "0; j < 32")
        body = [
            "int products = 0" + (", total = 0" if of_codes else "") + ";",
            f"for (int j = {span}; ++j) products += codes[j] * x.qs[j];",
            *([f"for (int j = {span}; ++j) total += x.qs[j];"] if of_codes else []),
            f"sum += row[b].scale(s, {h}) * d * products;",
            *([f"sum += row[b].minimum(s, {h}) * d * total;  // the minimum of these weights"] if of_codes else []),
        ]  # fmt: skip
        if width == 16:
            body = [
                "for (int h = 0; h < 2; ++h) {  // 16 weights share a scale",
                *(f"    {line}" for line in body),
                "}",
            ]
        if of_s:
            why = "the minimum of these weights" if fmt.has_min else f"a weight is d·(q - {fmt.offset})"
            body.append(f"sum += row[b].minimum(s, 0) * half_to_float(x.s);  // {why}")
        inner = "\n".join(f"            {line}" for line in body)
        return f"""\
    {token}
    float sum = 0.0f;
    for (long long b = 0; b < K / {fmt.block_size}; ++b) {{
        for (int s = 0; s < {fmt.block_size // 32}; ++s) {{  // 32 values of the block at a time
            int8_t codes[32];
            row[b].unpack(s, codes);
            const Q8_1 x = {taken};
            const float d = half_to_float(x.d);
{inner}
        }}
    }}"""

    # ---- Python ------------------------------------------------------------------------------------------------------

    def _python(self, path: Path) -> str:
        fmt = self.fmt
        if self.semantics == "q8_1" and self.takes:
            raise UsageError("a template in Python of q8_1 takes blocks of Q8_1: omit --takes")
        if "bfloat16" in (self.takes, self.output):
            raise UsageError("NumPy has no bfloat16: use a template in CUDA C++")
        more = f', takes="{self.takes}"' if self.takes not in ("", "float32") else ""
        more += f', output="{self.output}"' if self.output != "float32" else ""
        widened = ".astype(np.float32)" if self.takes == "float16" else ""
        rounded = f".astype(np.{self.output})" if self.output != "float32" else ""
        given = f"{self.takes or 'float32'}[M, K]" if self.semantics == "f32" else "uint8[M, K/32·36], blocks of Q8_1"
        body = _PYTHON_F32 if self.semantics == "f32" else self._python_q8_1()
        return f'''\
"""A naive kernel to begin from: {fmt.name} weights in NumPy. PyTorch, Triton and CuPy work the same way.

    gguf-verify kernel {path.name}:gemm                   is it correct on random data?
    gguf-verify MODEL.gguf --kernel {path.name}:gemm      is it correct on a model, compared with llama.cpp?
"""

import numpy as np

from gguf_verify import kernel
from gguf_verify.formats import FORMATS
{_PYTHON_Q8_1 if self.semantics == "q8_1" else ""}

@kernel(formats=["{fmt.name}"], semantics="{self.semantics}"{more})
def gemm(weights, activations, shape):
    """{self.output}[M, N], of

    weights       uint8[N, K/{fmt.block_size}·{fmt.block_bytes}]: N rows of blocks, as in the file
    activations   {given}
    shape         m tokens, n rows, k columns, and the format's name
    """
    fmt = FORMATS[shape.format]
    blocks = weights.reshape(shape.n, -1, fmt.block_bytes)
{body.format(widened=widened, rounded=rounded)}'''

    def _python_q8_1(self) -> str:
        fmt = self.fmt
        of_s = fmt.min_times_sum and (fmt.has_min or bool(fmt.offset))
        of_codes = fmt.has_min and not fmt.min_times_sum
        width = min(fmt.group, 32)
        lines = [
            f"    x, width = activations.view(Q8_1), {width}  # this many weights share a scale",
            "    d = x['d'].astype(np.float32)",
            f"    scales = np.repeat(fmt.scales(blocks), {fmt.group // width}, axis=-1).reshape(shape.n, -1)",
            *(
                [f"    minima = np.repeat(fmt.minima(blocks), {fmt.group // width}, axis=-1).reshape(shape.n, -1)"]
                if of_s or of_codes else []
            ),
            "    codes = fmt.codes(blocks).reshape(shape.n, -1, width).astype(np.float32)",
            "    given = x['qs'].reshape(shape.m, -1, width).astype(np.float32)",
            "    y = np.zeros((shape.m, shape.n), np.float32)",
            "    for g in range(shape.k // width):",
            "        b = g * width // 32  # the block of activations",
            "        products = given[:, g] @ codes[:, g].T  # of integers: exact",
            "        y += products * d[:, b, None] * scales[:, g]",
        ]  # fmt: skip
        if of_s:
            lines.append("        y += x['s'][:, b, None].astype(np.float32) * minima[:, g]")
        if of_codes:
            lines.append("        y += given[:, g].sum(axis=1)[:, None] * d[:, b, None] * minima[:, g]")
        text = "\n".join([*lines, "    return y"]).replace("'", '"')
        return text.replace("{", "{{").replace("}", "}}") + "{rounded}\n"


_Q8_1 = """
struct Q8_1 {        // 36 bytes, 32 activations
    uint16_t d;      // half: max|x| / 127
    uint16_t s;      // half: the sum of the 32 values before they were quantized
    int8_t qs[32];   // x / d, rounded
};
"""
_QUANTIZED = """
__device__ Q8_1 quantized(const float* x) {  // 32 values
    float most = 0.0f, sum = 0.0f;
    for (int j = 0; j < 32; ++j) {
        most = fmaxf(most, fabsf(x[j]));
        sum += x[j];
    }
    const float d = most / 127.0f;
    Q8_1 made;
    made.d = float_to_half(d);
    made.s = float_to_half(sum);
    for (int j = 0; j < 32; ++j) made.qs[j] = d == 0.0f ? 0 : (int8_t)roundf(x[j] / d);
    return made;
}
"""
_PYTHON_Q8_1 = """
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])  # 36 bytes: the scale, the sum, 32 codes
"""
_PYTHON_F32 = """\
    values = fmt.decode(blocks).reshape(shape.n, shape.k)  # float32, as llama.cpp decodes them
    return (activations{widened} @ values.T){rounded}
"""


# ---- the header ------------------------------------------------------------------------------------------------------


def flattened(fmt: BlockFormat) -> str:
    """Return the header of a type with all that it includes, without functions and tables that it does not use.

    The conversions of `standalone.cuh` are kept whole, so that all kernels of the type can include the same file.
    """
    root = kernel_root()
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        table = headers().get(name)
        file = root / "standalone.cuh" if name == _COMMON else root / "formats" / name
        text = file.read_text() if table is None else table
        texts[name] = ""  # marks it as visited; its place is after its own includes
        for included in _INCLUDE.findall(text):
            add(included)
        del texts[name]
        texts[name] = _INCLUDE.sub("", text.replace("#pragma once\n", ""))

    add(f"{fmt.name.lower()}.cuh")
    common = texts.pop(_COMMON).strip()
    *included, own = texts.values()
    kept, used = [own], own
    for paragraph in reversed([p for text in included for p in _paragraphs(text)]):
        names = _DEFINED.findall(paragraph)
        if any(re.search(rf"\b{name}\b", used) for name in names):
            kept.insert(0, paragraph)
            used += paragraph
    head = f"// {fmt.name}, decoded. From gguf-verify (MIT licence), in one file that needs no other."
    return "\n\n".join([head, "#pragma once", common.partition("\n\n")[2], *(text.strip() for text in kept)]) + "\n"


def _paragraphs(text: str) -> list[str]:
    """Return the declarations at the outermost level of a header, each with the comment above it."""
    found = re.split(r"\n\n(?=\S)", text.strip())
    return [p for p in found if not all(line.startswith("//") for line in p.splitlines())]
