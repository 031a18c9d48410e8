"""Conditions that are the same for every product in a kernel's domain, against all products of a sample."""

from __future__ import annotations

import re

import pytest

from gguf_verify.kernels.foreign.declared import parse
from gguf_verify.kernels.foreign.impossible import impossible

DECLARED = """
formats = ["Q4_0", "Q8_0"]
semantics = "q8_1"
parameters = ["weights", "activations", "output", "int32 M", "int64 N", "uint32 K / 32", "int32 K"]
block = 128
grid = "M"
domain = { M = { most = 64 }, N = { multiple = 8 }, K = { least = 96, most = 4096 } }
"""
KERNEL = """
__device__ void helper(int m, int k) {{
    if (k % 32 != 0) return;
}}
__global__ void gemm(const void* w, const void* x, float* y, int m, int64_t n, unsigned blocks, int k) {{
    {code}
}}
"""


def never(code: str, declared: str = DECLARED) -> dict[str, str]:
    """The text of each line of the body that is never reached → why."""
    text = KERNEL.format(code=code.replace("\n", "\n    "))
    found = impossible(parse(declared), "gemm", {"k.cu": text}).get("k.cu", {})
    return {text.splitlines()[line - 1].strip(): why for line, why in found.items()}


#: A condition → its constant value, or None.
CONDITIONS = {
    "k % 32 != 0": False, "k % 32": False, "k & 31": False, "(k & 31) != 0": False, "k % 32 == 0u": True,
    "k % 64": None, "n % 8 == 0": True, "n % 16 == 0": None, "m > 64": False, "m >= 64": None, "m <= 0": None,
    "m < 0": False,
    "m < 1 || k < 32": None,
    "m > 64 || k < 32": False, "m < 1 || k < 128": None, "m <= 64 && k >= 96": True,
    "k == 100": False, "k == 128": None,
    "m == 65": False, "m != 65": True,
    "blocks * 32 == k": None, "blocks < 3": False, "blocks > 128": False, "k / 32 * 32 == 33": False,
    "k / 64 > 64": False, "m * 2 % 2 == 1": False, "n + 4 == 8 + 1": False, "(k + 32) % 32 == 1": False,
    "k % 24 == 1": False, "k % 24 == 8": None, "n < 0": False, "m - 1 < 0": None, "m * n > 5": None,
    "!(k % 32)": None, "k % 32 & 1": None, "threadIdx.x > 5000": None, "y == 0": None, "(int)m == 0": None,
    "1 < m < 70": None, "k % 32 == 1 == 0": None, "k << 1 == 1": None, "k /* rows */ % 32": False,
    "k % 32 // rest": False, "m == 64.5": None, "7": True, "0": False,
}  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions(condition: str) -> None:
    found = never(f"if ({condition}\n) y[0] = 1;\nelse y[0] = 2;")
    value = CONDITIONS[condition]
    assert bool(found) is (value is not None)
    assert ("else y[0] = 2;" in found) is (value is True)
    assert (") y[0] = 1;" in found) is (value is False)


@pytest.mark.parametrize(
    "condition", [c for c, value in CONDITIONS.items() if value is not None and "rest" not in c and "/*" not in c]
)
def test_constant_conditions_are_constant(condition: str) -> None:
    plain = re.sub(r"(\d)u\b", r"\1", condition.replace("||", " or ").replace("&&", " and ").replace("/", "//"))
    found = {
        bool(eval(plain, {"m": m, "n": n, "k": k, "blocks": k // 32}))
        for m in (0, 1, 2, 63, 64) for n in (8, 16, 24, 4096) for k in (96, 128, 160, 256, 4064, 4096)
    }  # fmt: skip
    assert found == {CONDITIONS[condition]}


def test_what_is_never_reached() -> None:
    found = never("if (k % 32) {\n    y[0] = 1;\n    y[1] = 2;\n}\ny[2] = 3;")
    assert [*found] == ["if (k % 32) {", "y[0] = 1;", "y[1] = 2;", "}"]
    assert {*found.values()} == {"k % 32 is false for every product in its domain"}
    assert [*never("if (k % 32)\n    y[0] = 1;\ny[2] = 3;")] == ["if (k % 32)", "y[0] = 1;"]
    assert [*never("if (k % 32 == 0)\n    y[0] = 1;\nelse {\n    y[2] = 3;\n}")] == [
        "if (k % 32 == 0)", "else {", "y[2] = 3;", "}",
    ]  # fmt: skip


def test_a_line_with_other_code_is_not_decided() -> None:
    """Its branches cannot be told apart."""
    assert not never("if (k % 32) y[0] = 1; if (m == 5) y[1] = 1;")
    assert not never("if (m == 5) if (k % 32) y[0] = 1;")
    assert not never("if (k % 32 == 0) y[0] = m == 5 ? 1 : 2;")
    assert [*never("if (m == 5) {\n    y[0] = 2;\n} else {if (k % 32) y[0] = 1;}")] == [
        "} else {if (k % 32) y[0] = 1;}"
    ]


@pytest.mark.parametrize(
    "code",
    [
        "k += 1;", "k = 5;", "++k;", "k--;", "change(&k);", "int k = 5;", "for (int k = 0; k < 5; ++k) y[k] = 1;",
        "\n#define k 33\n", "const int& k = m;", "auto f = [](int& k) { return k; };", "for (int& k : y) y[0] = 1;",
    ],
)  # fmt: skip
def test_a_parameter_that_may_be_something_else(code: str) -> None:
    assert never("if (k % 32) y[0] = 1;")
    assert not never(f"{code}\nif (k % 32) y[0] = 1;")


def test_reads_do_not_matter() -> None:
    assert never("y[k] = m * k + s.k;\nreturn k;\nif (k == 5) y[0] = n & k;\nif (k % 32) y[0] = 1;")


def test_all_launches_of_a_function_count() -> None:
    head, _, rest = DECLARED.partition("parameters")
    launch = '[[launches]]\nsymbol = "gemm"\nparameters' + rest.partition("domain")[0]
    once = f"{head}domain{rest.partition('domain')[2]}{launch}"
    assert never("if (k % 32) y[0] = 1;", once)
    assert not never("if (k % 32) y[0] = 1;", once + launch.replace('"int32 K"', '"int32 K + 1"'))


def test_a_macro_of_another_file_or_another_type_counts() -> None:
    text = KERNEL.format(code="if (k % 32) y[0] = 1;")
    assert impossible(parse(DECLARED), "gemm", {"k.cu": text, "k.cuh": "int x;"})["k.cu"]
    assert not impossible(parse(DECLARED), "gemm", {"k.cu": text, "k.cuh": "#define k 33"}).get("k.cu")
    assert not impossible(
        parse(DECLARED), "gemm", {"k.cu": text.replace("int k) {\n    if (k % 32) y", "short k) {\n    if (k % 32) y")}
    ).get("k.cu")


def test_all_types_count() -> None:
    """Rows of Q4_K have whole blocks of 256."""
    both = DECLARED.replace('"Q8_0"', '"Q4_K"').replace("q8_1", "q8_1")
    alone = both.replace('"Q4_0", ', "")
    assert never("if (k % 256) y[0] = 1;", alone)
    assert not never("if (k % 256) y[0] = 1;", both)


def test_a_function_of_another_name_or_several_of_one() -> None:
    assert not never("}\n__global__ void other(int k) {\nif (k % 32) y[0] = 1;")
    assert not never("}\nvoid gemm(int k) {\nif (k % 32) y[0] = 1;")
