"""The way to a first verdict: what a user forgets is named, with the text to paste."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from gguf_verify.kernels.foreign.api import table_of
from gguf_verify.kernels.foreign.child import import_kernel
from gguf_verify.kernels.foreign.cuda import CudaSource
from gguf_verify.kernels.foreign.names import Further
from gguf_verify.kernels.foreign.opening import named
from gguf_verify.support.errors import EnvironmentFault, UsageError
from tests.support.tools import ROOT

ONE = (ROOT / "examples" / "cuda_q4_0.cu").read_text()
LEFT = """\
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "q8_1"
// parameters = ["weights", "activations", "output",
//   "float32 ?", "int32 M", "int32 N", "int32 K"]
// block = 128
// grid = "ceil(M * N, 128)"
// [/gguf-verify]
extern "C" __global__ void gemm(const void* w, const void* x, float* y, float scale, int M, int N, int K) {}
"""


@pytest.fixture
def write(tmp_path: Path) -> object:
    def made(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return made


def test_the_only_function_needs_no_name(write) -> None:
    one, python = write("one.cu", ONE), write("one.py", "import numpy\n\n\ndef gemm(w, x, shape): ...\n")
    assert (named(one, Further()).symbol, named(one, Further()).shown) == ("gemm", "one.cu:gemm")
    assert named(python, Further()).symbol == "gemm"
    helper = "def helper(): ...\n@kernel(formats=['Q4_0'], semantics='q8_1')\ndef product(w, x, s): ...\n"
    assert named(write("two.py", helper), Further()).symbol == "product", "the only one with a declaration"
    cached = helper.replace("def helper", "@functools.cache\ndef helper").replace("@kernel", "@gguf_verify.kernel")
    assert named(write("three.py", cached), Further()).symbol == "product"
    disabled = f"#if 0\n#ifdef X\n{ONE.replace('gemm', 'old')}\n#else\n#endif\n#else\n{ONE}\n#endif\n"
    assert named(write("two.cu", disabled), Further()).symbol == "gemm"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "k.cu",
            "__global__ void a(int x) {}\n__global__ void b(int x) {}",
            r"2 functions; name one: k\.cu:a, k",
        ),
        ("k.cu", "void f() {}", r"it has no __global__ function.*k\.cu:NAME"),
        ("k.py", "def a(): ...\ndef b(): ...", r"name one: k\.py:a, k\.py:b"),
        ("k.py", "@a\ndef a(): ...\n@b\ndef b(): ...", r"name one: k\.py:a, k\.py:b"),
        ("k.py", "x = 1\nthis is no Python", r"/k\.py:2: SyntaxError: invalid syntax$"),
        ("k.py", "x = 1", r"it has no function; one that it imports is named by k\.py:NAME$"),
        ("k.cu", "#if 0\n__global__ void a(int x) {}\n#endif", "it has no __global__ function"),
    ],
)
def test_several_or_no_functions_are_named(write, name: str, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        named(write(name, text), Further())


INSIDE = ONE.replace('extern "C" __global__', "{before}__global__").replace("{", "{{").replace("}", "}}")
INSIDE = INSIDE.replace("{{before}}", "{before}") + "{after}"


@pytest.mark.parametrize(
    ("before", "after", "symbol", "said"),
    [
        ("namespace mine { ", "}", "mine::gemm", "gemm is in a namespace: name it mine::gemm"),
        (
            "template <int A, class B> ", "", "gemm",
            "gemm is a template: name an instance, gemm<…>, with values for int A, class B",
        ),
        ("", "", "gemm", "c++ could not compile k.cu: unit.cpp:9:9: error: of the kernel's name"),
    ],
)  # fmt: skip
def test_a_kernel_in_a_namespace_or_a_template_is_named_in_full(
    write, before: str, after: str, symbol: str, said: str
) -> None:
    """Where the compiler refuses its name; what it says of the author's own lines stays."""
    path = write("k.cu", INSIDE.format(before=before, after=after))
    assert named(path, Further()).symbol == symbol
    with contextlib.closing(CudaSource(Path(path), "gemm")) as source:
        refused, own = (
            f"c++ could not compile k.cu: {at} error: of the kernel's name" for at in ("unit.cpp:9:9:", "k.cu:9:9:")
        )
        assert str(source.plain(EnvironmentFault(refused))) == said
        assert str(source.plain(EnvironmentFault(own))) == own


def test_a_missing_file_is_no_question_of_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        named(str(tmp_path / "no.cu"), Further())


def test_a_wrong_name_lists_those_that_exist(write) -> None:
    with pytest.raises(UsageError, match="it has no function gem; it has gemm"):
        CudaSource(Path(write("k.cu", ONE)), "gem")
    with pytest.raises(UsageError, match="has no gem; it has gemm"):
        import_kernel(Path(write("k.py", "import math\ndef gemm(w, x, s): ...\n")), "gem")


def test_a_question_mark_that_is_left_is_named_with_its_parameter_and_line(write) -> None:
    with pytest.raises(UsageError, match=r"k\.cu:5: parameter 4, float scale, is still 'float32 \?': write a number"):
        CudaSource(Path(write("k.cu", LEFT)), "gemm")
    declared = "\n".join(line.removeprefix("// ") for line in LEFT.splitlines()[1:-2])
    write("m.toml", declared)
    with pytest.raises(UsageError, match=r"m\.toml:4: parameter 4, float scale, is still"):
        CudaSource(Path(write("m.cu", LEFT.splitlines()[-1])), "gemm")
    source = CudaSource(Path(write("n.cu", LEFT.replace("?", "1"))), "gemm")
    source.close()


def test_a_plain_function_gets_the_decorator_to_paste() -> None:
    def gemm(weights, activations, shape): ...

    with pytest.raises(UsageError) as raised:
        table_of(gemm)
    said = str(raised.value)
    assert '@gguf_verify.kernel(formats=["Q4_0"], semantics="q8_1")' in said
    assert "harness/" not in said


def test_a_missing_module_says_which_python_looked_for_it(write) -> None:
    with pytest.raises(UsageError, match="No module named 'torch_of_no_one'") as raised:
        import_kernel(Path(write("k.py", "import torch_of_no_one\n")), "gemm")
    assert f"; {sys.executable} looked for it in the kernel's folder" in str(raised.value)
