"""Oracles that a kernel's author supplies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.cli import main
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.identification import identify_model
from gguf_verify.kernels.foreign.api import Oracle
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import DEFAULT_PROMPT, Options
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.result import exact_result
from gguf_verify.support.errors import UsageError
from tests.support import foreign_kernels
from tests.support.foreign_runs import EXAMPLES, KERNELS, Q4_0, opened, operands, verified
from tests.support.shown import json_of, text_of


@pytest.mark.parametrize("name", ["own", "own_both", "own_blocks"])
def test_an_oracle_of_its_author(name: str) -> None:
    """Every rung; the report says so, what a pass means, and how far each definition is."""
    report = verified(f"{KERNELS}:{name}", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    shown = text_of(Kind.RUN, report)
    assert "declares own" in shown
    assert "judged by an oracle of its author (its own: " in shown
    assert "verified here means: the kernel computes what an oracle of its author says" in shown
    for rung in report.rungs:
        distances = {k: v for k, v in rung.figures.items() if k.startswith("the author's oracle to ")}
        assert [k.split(" ")[4].rstrip(",") for k in distances] == ["f32", "q8_1", "mmq", "q8_0_cpu"]
        assert any("(llama.cpp)" in k for k in distances)
        assert all(v < 1e-3 for v in distances.values())
        assert sum(v < 1e-6 for v in distances.values()) == 1  # half activations are near f32; own_blocks is q8_1
    assert json_of(Kind.RUN, report)["environment"]["kernel"]["judged_by"] == report.environment.kernel.judged_by


@pytest.mark.parametrize(("name", "like"), [("own_values", "f32"), ("own_codes", "mmq")])
def test_what_an_oracle_leaves_out(name: str, like: str) -> None:
    """Is the file's weights, and the values of the activations as the kernel takes them."""
    kernel, fmt = opened(name), FORMATS["Q4_0"]
    rows, x = operands()
    y = kernel.product(kernel.upload(fmt, rows), x)
    ours = product(kernel.definition, fmt, rows, kernel.quantize(x))
    known = product(SEMANTICS[like], fmt, rows, SEMANTICS[like].bytes_of(x))
    alone = exact_result(kernel.definition, fmt, rows, kernel.quantize(x))
    kernel.close()
    np.testing.assert_allclose(alone, ours.exact, rtol=1e-12)
    assert judge(y, ours).passed
    np.testing.assert_allclose(ours.exact, known.exact, rtol=1e-12)
    assert (ours.bound >= known.bound).all()


IN_HALVES = """
import numpy as np
from gguf_verify import Oracle, kernel
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.values import exact_weights

def weights(rows, fmt):
    return exact_weights(FORMATS[fmt], rows.reshape(len(rows), -1, FORMATS[fmt].block_bytes)).reshape(len(rows), -1)

@kernel(["Q4_0"], semantics=Oracle(weights, lambda x: x.astype(float)), takes="{dtype}", output="{dtype}")
def product(w, x, shape):
    x = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
    y = (x.astype(float) @ weights(w.reshape(shape.n, -1), "Q4_0").T).astype(np.float32)
    y *= np.float32({factor})
    if "{dtype}" == "float16":
        return y.astype(np.float16)
    bits = y.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("factor", "code"), [(1, 0), (1.02, 1)])
def test_an_oracle_of_a_kernel_that_takes_and_gives_halves(
    dtype: str, factor: float, code: int, tmp_path: Path
) -> None:
    """Its output is rounded once, which is neither a mismatch nor a bound that excuses anything."""
    file = tmp_path / "halves.py"
    file.write_text(IN_HALVES.format(dtype=dtype, factor=factor))
    report = verified(f"{file}:product", "blocks", "layers")
    assert report.exit_code == code, report.rungs
    assert {f.culprit for rung in report.rungs for f in rung.failures} == ({"kernel"} if code else set())


def test_no_other_report_speaks_of_oracles() -> None:
    report = verified(f"{KERNELS}:right", "blocks")
    assert report.environment.kernel.judged_by is None
    assert "author" not in text_of(Kind.RUN, report)


@pytest.mark.parametrize("name", ["own_wrong"])
def test_wrong_by_its_own_oracle(name: str) -> None:
    report = verified(f"{KERNELS}:{name}", "blocks", "layers")
    assert [r.verdict for r in report.rungs] == ["failed"] * 2
    assert report.rungs[1].failures[0].block == 0
    assert report.rungs[1].diagnosis is not None
    assert (
        "(f32), not Q4_0 (own) as declared: the kernel is correct for that definition"
        in report.rungs[1].diagnosis.lines[0]
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("oracle_raises", "the kernel's oracle raised ValueError: no idea in its activations; at foreign_kernels"),
        ("oracle_random", "the kernel's oracle is not deterministic: a second call of its activations gave other"),
        ("oracle_changes_inputs", "the kernel's oracle modified its activations' inputs: . bytes, the first at"),
        ("oracle_nan", "the kernel's oracle returned activations that are not finite, the first in row 0$"),
        ("oracle_infinite", "the kernel's oracle returned weights that are not finite, the first in row 0$"),
        ("oracle_transposed", r"gives float64\[32, 3\] as its activations, expected float64\[3, 32\]$"),
        ("oracle_floats", r"gives float32\[3, 32\] as its activations, expected float64\[3, 32\]$"),
        ("oracle_nothing", "the kernel's oracle returned no array as its activations$"),
        ("oracle_wide", r"gives float64\[3, 288\] as its activations, expected float64\[3, 32\]$"),
        ("oracle_unlike", "the kernel's oracle gives weights of 33 columns and activations of 32$"),
        ("oracle_crashes", "the kernel's oracle crashed: its process died of SIGSEGV$"),
        ("oracle_is_own_output", "the kernel's oracle raised KeyError: 'y' in its weights; "),
    ],
)
@pytest.mark.parametrize("rungs", [("blocks",), ("blocks", "layers", "tokens")])
def test_what_is_no_oracle(name: str, said: str, rungs: tuple[str, ...]) -> None:
    assert_no_oracle(name, said, rungs)


def test_no_oracle_in_any_rung() -> None:
    """The next rung finds a fresh process."""
    assert_no_oracle("oracle_crashes", "crashed: its process died of SIGSEGV$", ("blocks", "layers"))


def assert_no_oracle(name: str, said: str, rungs: tuple[str, ...]) -> None:
    """One line a rung, and nothing is judged by it."""
    report = verified(f"{KERNELS}:{name}", *rungs, tensor=r"blk\.0\.attn_k\.")
    assert report.exit_code == 1
    assert [rung.name for rung in report.rungs] == list(rungs)
    for rung in report.rungs:
        assert len(rung.failures) == 1, rung.failures
        what = rung.failures[0].what
        assert what.startswith("blk.0.attn_k.weight: ")
        if rung.name == "blocks":  # the shapes are those of blocks
            assert re.search(said, what)
        else:
            assert "the kernel's oracle " in what


def test_an_oracle_that_hangs() -> None:
    report = verified(f"{KERNELS}:oracle_hangs", "blocks", "layers", tensor=r"blk\.0\.attn_k\.", kernel_time_limit=2.0)
    assert report.exit_code == 1
    assert [f.what for r in report.rungs for f in r.failures] == [
        "blk.0.attn_k.weight: the kernel's oracle did not return within 2 s"
    ] * 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "oracle_huge",
            r"has terms that cancel: its bound is .* as that of any definition, and would excuse any",
        ),
        (
            "oracle_of_another_product",
            r"another product: NMSE \d.* to \w+, the nearest definition, more than 0.01$",
        ),
        ("oracle_is_the_kernel", r"describes another product: NMSE \d"),
    ],
)
@pytest.mark.parametrize("rung", ["blocks", "layers", "tokens"])
def test_oracles_of_something_else(name: str, said: str, rung: str) -> None:
    """Each kernel is within the bound of its oracle, and each rung sees by itself what that is."""
    report = verified(f"{KERNELS}:{name}", rung, tensor=r"blk\.0\.attn_k\.")
    assert report.exit_code == 1
    whats = {f.what for f in report.rungs[0].failures}
    assert all(what.startswith("blk.0.attn_k.weight: the oracle of the kernel's author ") for what in whats)
    assert all(re.search(said, what) for what in whats)
    assert whats


def test_an_oracle_that_leaves_out_a_few_weights() -> None:
    """Which no distance of the products would tell."""
    report = verified(f"{KERNELS}:oracle_drops_a_weight", "layers", tensor=r"blk\.0\.attn_k\.")
    [failure] = report.rungs[0].failures
    assert "has other weights than the file: 0.0031 of them, the first in row 0 of a product, value 255" in failure.what
    assert all(v < 2e-3 for k, v in report.rungs[0].figures.items() if k.startswith("the author's oracle to "))


OF_PARTS = """
import numpy as np
from gguf_verify import Oracle, kernel

def decoded(w):
    blocks = np.ascontiguousarray(w).reshape(len(w), -1, 18)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).astype(np.float64) - 8
    return (codes * d).reshape(len(w), -1)

def values(x):
    a = np.array(x, np.float64)
    if {tokens} and a.shape[1] == 768:
        a[(a**2).sum(axis=1) < 36] = 0
    return a

def weights(rows, fmt):
    w = decoded(rows)
    if {rows} and len(w) > 100:
        w[100] = 0
    return w

oracle = Oracle(
    weights=lambda rows, fmt: np.concatenate([weights(rows, fmt)] * 2, axis=1) / 2,
    activations=lambda x: np.concatenate([values(x)] * 2, axis=1),
)

@kernel(["Q4_0"], semantics=oracle, takes="float32")
def product(w, x, shape):
    return (values(x) @ weights(w, "Q4_0").T).astype(np.float32)
"""


@pytest.mark.parametrize(
    ("tokens", "rows", "said"), [(True, False, "token"), (False, True, "row 100:"), (False, False, "")]
)
def test_an_oracle_of_another_product_in_one_token_or_row(
    tokens: bool, rows: bool, said: str, tmp_path: Path
) -> None:  # fmt: skip
    """Which the distance of all products hides. The oracle's matrices have two columns for each value, so they are not
    compared one by one."""
    file = tmp_path / "parts.py"
    file.write_text(OF_PARTS.format(tokens=tokens, rows=rows))
    report = verified(f"{file}:product", "layers", tensor=r"blk\.1\.ffn_down", prompt=DEFAULT_PROMPT, n_predict=32)
    whats = [f.what for rung in report.rungs for f in rung.failures if f.culprit == "oracle"]
    assert bool(whats) == bool(said), report.rungs[0].failures
    assert all(f"describes another product in {said}" in what for what in whats)
    assert report.exit_code == bool(said)


LATE_ROWS = """
import numpy as np
from gguf_verify import Oracle, kernel

def decoded(w):
    blocks = np.ascontiguousarray(w).reshape(len(w), -1, 18)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], -1).astype(np.float64) - 8
    return (codes * d).reshape(len(w), -1)

def damaged(w):
    values = decoded(w)
    if len(values) == 1060:
        values[1050, 7] = 0.5
    return values

@kernel(["Q4_0"], semantics=Oracle(weights=lambda rows, fmt: damaged(rows)))
def product(w, x, shape):
    return (x.astype(np.float64) @ damaged(w).T).astype(np.float32)
"""


def test_each_row_of_an_oracle_is_compared(tmp_path: Path) -> None:
    """Also behind those whose weights are compared at a time."""
    file = tmp_path / "late.py"
    file.write_text(LATE_ROWS)
    flags = ["-K", "4096", "-N", "1060", "-M", "1", "--rungs", "layers", "--effort", "quick"]
    report = tmp_path / "report.json"
    assert main(["kernel", f"{file}:product", *flags, "-o", str(report)]) == 1
    assert "describes another product in row 1050" in report.read_text()


def test_an_oracle_given_as_an_object() -> None:
    report = verified(foreign_kernels.own, "blocks")
    assert report.exit_code == 0, report.rungs


def test_identified_beside_its_oracle() -> None:
    options = Options(probes="brief", progress=False, tensor="blk.0.attn_q")
    for name, code in (("own", 0), ("own_wrong", 1), ("quantizes", 0), ("oracle_raises", 1)):
        found = identify_model(Q4_0, f"{KERNELS}:{name}", CpuHost(1), options)
        assert found.exit_code == code, name
        kernels = [p for p in found.products if p.who != "llama.cpp"]
        assert all(p.right == (code == 0) for p in kernels)
        if name == "own":
            assert {p.found.names for p in kernels if p.found is not None} == {("own",)}
            shown = text_of(Kind.IDENTIFICATION, found)
            assert "declares own (an oracle of its author (its own: activations))" in shown
            assert "foreign_kernels.py:own  own " in shown


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"semantics": "own"}, "semantics 'own without an Oracle' is not one of f32, f32_apart, q8_1, "),
        ({"semantics": foreign_kernels.half_activations, "ordered": True}, "the order of an oracle is not known"),
        ({"takes": "q8_1"}, "takes 'q8_1' is not one of float32, float16, bfloat16, f32"),
        ({"semantics": "q8_1", "takes": "mmq"}, "takes 'mmq' is not one of float32, float16, bfloat16, q8_1"),
        (
            {"semantics": foreign_kernels.half_activations, "takes": "q8_0_cpu"},
            "takes 'q8_0_cpu' is not one of float32, float16, bfloat16, q",
        ),
    ],
)
def test_wrong_declarations_of_oracles(attributes: dict[str, Any], said: str) -> None:
    wrong = type("Wrong", (foreign_kernels.Plain,), attributes)()
    with pytest.raises(UsageError, match=said):
        open_foreign(wrong, CpuHost(1))
    with pytest.raises(UsageError, match="the oracle's weights must be callable"):
        Oracle(weights=3)  # type: ignore[arg-type]


ORACLE = """
import numpy as np
from gguf_verify import Oracle

def halves(x):
    return x.astype(np.float16).astype(np.float64)

oracle = Oracle(activations=halves)
half = 3
"""


#: The example of float32 activations.
OF_FLOATS = [
    ("const Q8_1* x", "const float* x"),
    ("        const Q8_1& xb = x[m * blocks + b];\n        int sum = 0;\n", "        float sum = 0.0f;\n"),
    ("xb.qs[j];", "x[m * K + b * 32 + j];"),
    ("xb.qs[j + 16];", "x[m * K + b * 32 + j + 16];"),
    ("(wb.qs[j] & 15)", "float((wb.qs[j] & 15) - 8)"),
    ("(wb.qs[j] >> 4)", "float((wb.qs[j] >> 4) - 8)"),
    ("from_half(wb.d) * (from_half(xb.d) * sum - 8.0f * from_half(xb.s))", "from_half(wb.d) * sum"),
]


#: It quantizes: each thread the blocks that it needs.
QUANTIZES = [
    ("const Q8_1* x", "const float* x"),
    (
        "        const Q8_1& xb = x[m * blocks + b];\n",
        """        const float* v = x + m * K + b * 32;
        float most = 0.0f, part[32], s = 0.0f;
        for (int j = 0; j < 32; ++j) most = fmaxf(most, fabsf(v[j])), part[j] = v[j], s += v[j];
        const float d = most / 127.0f;
        int q[32];
        for (int j = 0; j < 32; ++j) q[j] = d > 0.0f ? int(roundf(v[j] / d)) : 0;
""",
    ),
    ("xb.qs[j]", "q[j]"),
    ("xb.qs[j + 16]", "q[j + 16]"),
    ("from_half(xb.d)", "rounded(d)"),
    ("from_half(xb.s)", "rounded(s)"),
    (
        'extern "C"',
        """__device__ float rounded(float x) {  // to half and back
    const float size = fabsf(x);
    if (size < 6.103515625e-05f) {  // a subnormal half, whose steps are those of floats from 0.5 on
        const float near = (size + 0.5f) - 0.5f;
        return x < 0.0f ? -near : near;
    }
    const unsigned bits = __float_as_uint(x), kept = bits + 0x0FFFu + (bits >> 13 & 1u) & 0xFFFFE000u;
    return __uint_as_float(kept);
}

extern "C\"""",
    ),
    ('semantics = "q8_1"', 'semantics = "q8_1"\n// takes = "float32"'),
]


def cuda(folder: Path, changes: list[tuple[str, str]]) -> Path:
    path = EXAMPLES / "cuda_q4_0.cu"
    source = path.read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path = folder / "kernel.cu"
    path.write_text(source)
    (folder / "my_oracle.py").write_text(ORACLE)
    return path


BY_ORACLE = ('semantics = "q8_1"', 'oracle = "my_oracle.py:oracle"')


ROUNDS = ("x[m * K + b * 32 + j", "rounded(x[m * K + b * 32 + j")


def test_cuda_with_an_oracle(tmp_path: Path) -> None:
    """Right only where it rounds its activations, as its oracle does."""
    exact = verified(f"{cuda(tmp_path, [*OF_FLOATS, BY_ORACLE])}:gemm", "layers", tensor="blk.0.attn_k")
    assert exact.exit_code == 1
    rounding = [QUANTIZES[-2], ("+ j];", "+ j]);"), ("+ j + 16];", "+ j + 16]);"), ROUNDS]
    report = verified(f"{cuda(tmp_path, [*OF_FLOATS, BY_ORACLE, *rounding])}:gemm", "layers", tensor="blk.0.attn_k")
    assert report.exit_code == 0, report.rungs
    assert "judged by an oracle of its author (its own: activations)" in text_of(Kind.RUN, report)


def test_cuda_that_quantizes_itself(tmp_path: Path) -> None:
    report = verified(f"{cuda(tmp_path, QUANTIZES)}:gemm", "blocks", "layers", "tokens")
    assert report.exit_code == 0, report.rungs
    wrong = verified(f"{cuda(tmp_path, [*QUANTIZES, ('roundf(v[j] / d)', '(v[j] / d)')])}:gemm", "layers")
    assert wrong.exit_code == 1
    assert "its quantizer may differ" in wrong.rungs[0].failures[0].what


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([('semantics = "q8_1"', 'semantics = "own"')], "semantics 'own' needs an oracle"),
        ([('semantics = "q8_1"', 'semantics = "q8_1"\n// oracle = "o.py:o"')], "in place of semantics"),
        ([('semantics = "q8_1"', 'oracle = "my_oracle.py"')], 'oracle must be "FILE.py:NAME"'),
        ([('semantics = "q8_1"', 'oracle = "none.py:oracle"')], "none.py is not a file"),
        ([('semantics = "q8_1"', 'oracle = "my_oracle.py:none"')], "my_oracle.py has no none"),
        (
            [('semantics = "q8_1"', 'oracle = "my_oracle.py:half"')],
            "its oracle is not a gguf_verify.Oracle",
        ),
        (
            [('semantics = "q8_1"', 'semantics = "q8_1"\n// takes = "f32"')],
            "takes 'f32' is not one of float32, float16, bfloat16, q8_1",
        ),
    ],
)
def test_wrong_oracles_of_cuda(tmp_path: Path, changes: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        open_foreign(f"{cuda(tmp_path, changes)}:gemm", CpuHost(1))
    assert len(str(caught.value).splitlines()) == 1
