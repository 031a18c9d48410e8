"""The examples with outputs of half and bfloat16: the right ones verify, faulty ones fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.rungs.generated_inputs import representable
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tests.support.foreign_runs import EXAMPLES, operands, verified
from tests.support.needs import need

DECLARED = {"py": 'semantics="q8_1"', "cu": '// semantics = "q8_1"'}
#: How each example gives a float, and how its twin gives a half.
TWINS = {
    ("numpy_q4_0.py", "float16"): [("return y", "return y.astype(np.float16)")],
    ("cuda_q4_0.cu", "float16"): [
        ("struct Q4_0 {", "#include <cuda_fp16.h>\nstruct Q4_0 {"), ("float* y, long", "__half* y, long"),
        ("y[i] = acc;", "y[i] = __float2half(acc);"),
    ],
    ("cuda_q4_0.cu", "bfloat16"): [
        ("struct Q4_0 {", "#include <cuda_bf16.h>\nstruct Q4_0 {"), ("float* y, long", "__nv_bfloat16* y, long"),
        ("y[i] = acc;", "y[i] = __float2bfloat16(acc);"),
    ],
}  # fmt: skip
#: Faults of each example, in its text; what float outputs show, halves must show, too.
FAULTS = {
    "numpy_q4_0.py": [("8 * s", "7.9 * s"), ('w["qs"] & 15, w["qs"] >> 4', 'w["qs"] >> 4, w["qs"] & 15')],
    "cuda_q4_0.cu": [("wb.qs[j] >> 4", "wb.qs[j] >> 3"), ("b < blocks;", "b < blocks - (n == 3);")],
}


def twin(folder: Path, example: str, output: str, *changes: tuple[str, str]) -> str:
    """The twin of an example, as `--kernel` takes it."""
    text = (EXAMPLES / example).read_text()
    kind = example[-2:]
    more = f', output="{output}"' if kind == "py" else f'\n// output = "{output}"'
    for old, new in ((DECLARED[kind], DECLARED[kind] + more), *TWINS[example, output], *changes):
        assert old in text, old
        text = text.replace(old, new)
    (folder / example).write_text(text)
    return f"{folder / example}:gemm"


@pytest.mark.parametrize(("example", "output"), list(TWINS))
def test_right_twins(tmp_path: Path, example: str, output: str) -> None:
    report = verified(twin(tmp_path, example, output), "blocks", "layers", tensor="blk.0.attn_k")
    assert report.exit_code == 0, report
    assert 0.5 < report.rung("layers").worst["kernel"].utilisation <= 1


@pytest.mark.parametrize(
    ("example", "output", "fault"),
    [(*key, fault) for key in TWINS if key[0] in FAULTS for fault in FAULTS[key[0]]],
    ids=str,
)
def test_faulty_twins(tmp_path: Path, example: str, output: str, fault: tuple[str, str]) -> None:
    kernel = open_foreign(twin(tmp_path, example, output, fault), CpuHost(1), 20.0)
    rows, x = operands()
    y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()
    definition = declared("q8_1", output=output)
    assert not judge(y, product(definition, FORMATS["Q4_0"], rows, definition.bytes_of(x))).passed


def test_torchs_halves(tmp_path: Path) -> None:
    need("torch")
    for output in ("float16", "bfloat16"):
        for wrong in (False, True):
            path = tmp_path / f"{output}_{wrong}.py"
            path.write_text(
                f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\nimport torch\nimport torch_q4_0\n"
                f'from gguf_verify import kernel\n@kernel(formats=["Q4_0"], semantics=torch_q4_0.gemm.semantics, '
                f'takes=torch_q4_0.gemm.takes, output="{output}")\ndef gemm(w, x, shape):\n'
                f"    y = torch.as_tensor(torch_q4_0.gemm(w, x, shape))\n"
                f"    return (y {'* 1.01' if wrong else ''}).to(torch.{output})\n"
            )
            kernel = open_foreign(f"{path}:gemm", CpuHost(1), 20.0)
            rows, x = operands()
            y = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
            definition = kernel.definition
            kernel.close()
            assert judge(y, product(definition, FORMATS["Q4_0"], rows, definition.bytes_of(x))).passed != wrong


def test_generated_activations_stay_in_a_halfs_range() -> None:
    """Tokens that would overflow are multiplied by a power of two, others stay as they are."""
    rows, x = operands()
    x[1] *= np.float32(1e7)
    x[2] = 0
    narrow = declared("q8_1", output="float16")
    less = representable(narrow, FORMATS["Q4_0"], rows, x)
    assert np.array_equal(less[[0, 2, 3, 4]], x[[0, 2, 3, 4]])
    ratio = np.unique(x[1] / less[1])
    assert len(ratio) == 1
    assert np.frexp(ratio[0])[0] == 0.5
    exact = product(narrow, FORMATS["Q4_0"], rows, narrow.bytes_of(less)).exact
    assert np.isfinite(exact).all()
    assert np.abs(exact[1]).max() > 50
    assert representable(SEMANTICS["q8_1"], FORMATS["Q4_0"], rows, x) is x
