"""What the source of a kernel in CUDA C++ says of its declaration."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gguf_verify.kernels.foreign.api import kernel
from gguf_verify.kernels.foreign.declared import parse
from gguf_verify.kernels.foreign.signature import full_names, kernels_in, misfit, proposed, there_is, unlike
from gguf_verify.support.errors import UsageError

SOURCE = """
// __global__ void commented(int x) {}
#define MAKE(NAME) extern "C" __global__ void of_##NAME(const void* x) {}
template <int B> static __global__ void __launch_bounds__(B, 1) inner(const float* __restrict__ w) {}
extern "C" __global__ void __launch_bounds__(128)
mul_mat_vec_q4_0_q8_1(const void * __restrict__ vx, const void* vy, float *dst, /* K */ const int ncols_x,
                      const int nrows_x, const int nrows_y) {
}
extern "C" __global__ void gemv_q4_K(const uint8_t* w, const half* x, __nv_bfloat16* y, size_t hidden,
    long long rows) {}
extern "C" __global__ void nothing() {}
__global__ void declared_only(int x);
"""


def test_kernels_are_found_with_their_parameters() -> None:
    found = kernels_in(SOURCE)
    assert list(found) == ["inner", "mul_mat_vec_q4_0_q8_1", "gemv_q4_K", "nothing"]
    assert found["nothing"] == ()
    assert [(p.type, p.pointer, p.constant, p.name) for p in found["gemv_q4_K"]] == [
        ("uint8_t", True, True, "w"), ("half", True, True, "x"), ("__nv_bfloat16", True, False, "y"),
        ("size_t", False, False, "hidden"), ("long long", False, False, "rows"),
    ]  # fmt: skip


def test_a_block_to_paste_is_made_of_the_source() -> None:
    """What is left to say is marked; all else is a declaration that can be read."""
    found = kernels_in(SOURCE)
    vector = "\n".join(proposed("mul_mat_vec_q4_0_q8_1", found["mul_mat_vec_q4_0_q8_1"]))
    assert '["weights", "activations", "output", "int32 K", "int32 N", "int32 ?"]' in vector
    assert "# for int nrows_y write M, N or K in place of ?" in vector
    corrected = vector.replace("?", "N", 1).replace("// [gguf-verify]\n", "").replace("// [/gguf-verify]", "")
    declared = parse(corrected.replace("// ", ""))
    assert (declared.of.formats, declared.of.semantics, declared.of.domain.m.most) == (("Q4_0",), "q8_1", 1)
    other = "\n".join(proposed("gemv_q4_K", found["gemv_q4_K"]))
    for line in ('formats = ["Q4_K"]', 'semantics = "f32"', 'takes = "float16"', 'output = "bfloat16"'):
        assert line in other
    assert '"int64 M", "int64 N", "int64 K"' in "\n".join(proposed("of_a_macro", None))


def test_parameters_that_cannot_be_passed_and_those_of_what_is_fused() -> None:
    text = "__global__ void f(const block_q8_0* w, const half* x, float* y, const float* bias, float beta, %s v) {}"
    block = "\n".join(proposed("f", kernels_in(text % "int")["f"]))
    assert 'formats = ["Q8_0"]' in block
    assert '"float32 ?", "int32 ?"' in block
    assert '// epilogue = ["bias"]' in block
    assert "for float beta write its value" in block
    of_struct, of_bool = (kernels_in(text % kind)["f"] for kind in ("Pair", "bool"))
    declared = ["weights", "activations", "output", "bias", "float32 1", "int32 N"]
    assert "the parameter bool v, which cannot be passed" in misfit("f", of_bool, declared)
    assert "the parameter Pair v, which cannot be passed" in misfit("f", of_struct, [*declared, "int32 K"], {"Pair"})
    assert misfit("f", of_struct, declared, {"Pair"}) is None, "one of 4 bytes is passed as a number"


MOE = """
__global__ void moe(const uint8_t* w, const float* x, const int* ids, float* dst, int n_experts, int top_k, int ncols,
                    int nrows, int n_tokens) {}
"""
TWO = """
struct Weights { half d; uint8_t qs[32 / 2]; };
struct Codes { half d; int8_t qs[32]; };  // 34 bytes
struct Sizes { int m, n; };
extern "C" __global__ void gemm(const Codes* w, const void* x, float* y, int rows, int tokens, int K, Sizes more) {
  int r = blockIdx.y * 8 + threadIdx.y, t = blockIdx.x * blockDim.x + threadIdx.x;
  if (r < rows && t < tokens) { y[0] = 0; }
}
extern "C" __global__ void other(const Weights* w, const void* x, float* y, int M, int N, int K) {
  int t = blockIdx.y;
}
"""


def test_a_block_to_paste_knows_experts_structs_and_thread_blocks() -> None:
    experts = "\n".join(proposed("moe", kernels_in(MOE)["moe"], MOE))
    assert 'computes = "experts"' in experts
    assert (
        '["weights", "activations", "ids", "output", "int32 E", "int32 TOP_K", "int32 K", "int32 N", "int32 M"]'
        in experts
    )
    assert 'grid = "ceil(M * TOP_K * N, 128)"' in experts
    two = "\n".join(proposed("gemm", kernels_in(TWO)["gemm"], TWO))
    assert 'formats = ["Q8_0"]' in two, "the only type whose blocks have 34 bytes"
    assert '"? more"]' in two
    assert "Sizes more cannot be passed" in two
    assert "block = [16, 16]" in two
    assert 'grid = ["ceil(M, 16)", "ceil(N, 16)"]' in two, "x counts tokens here"
    other = "\n".join(proposed("other", kernels_in(TWO)["other"], TWO))
    assert 'formats = ["Q4_0"]' in other, "the size of an array is an expression, which is not evaluated"
    assert 'grid = ["ceil(N, 128)", "M"]' in other


def test_what_cannot_be_the_parameters_is_told_before_anything_is_compiled() -> None:
    parameters = kernels_in(SOURCE)["gemv_q4_K"]
    right = ["weights", "activations", "output", "uint64 K", "int64 N"]
    assert misfit("gemv", parameters, right) is None
    assert misfit("gemv", parameters, right[:4]) == (
        'gemv has 5 parameters, but 4 are declared; write parameters = ["weights", "activations", "output", '
        '"uint64 K", "int64 N"]'
    )
    assert 'the parameter long long rows, but "int32 N" is declared' in misfit("g", parameters, [*right[:4], "int32 N"])
    assert "the parameter __nv_bfloat16* y" in misfit("g", parameters, [*right[:2], "int64 M", *right[3:]])
    assert "a null pointer cannot be passed; y is" in misfit("g", parameters, [*right[:2], "int64 0", *right[3:]])
    unknown = [p._replace(type="index_t") if p.name == "rows" else p for p in parameters]
    assert misfit("gemv", unknown, [*right[:4], "int32 N"]) is None, "a type that is not known says nothing"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("const Q4_0* w, const Q8_1* x, float* y, int M, int N, int K", None),
        ("const Q4_0* w, const Q8_1* x, half* y, int M, int N, int K", 'declare output = "float16"'),
        ("const Q4_0* w, const float* x, float* y, int M, int N, int K", 'declare takes = "float32"'),
        ("const Q4_0* w, const Q8_1* x, float* y, int N, int M, int K", "its parameter n is declared as M; is it N?"),
        ("const Q4_0* w, const void* x, void* y, int a, int b, int c", None),
    ],
)
def test_what_the_source_writes_otherwise_is_a_hint(source: str, said: str | None) -> None:
    (parameters,) = kernels_in(f"__global__ void gemm({source}) {{").values()
    roles = ["weights", "activations", "output", "int32 M", "int32 N", "int32 K"]
    found = unlike(parameters, roles, "", "float32")
    assert not found if said is None else said in " ".join(found)


def test_functions_that_may_be_meant_are_named() -> None:
    names = [f"mul_mat_q{i}" for i in range(20)]
    assert there_is("mul_mat_q7", names).startswith("it has mul_mat_q7, ")
    assert there_is("mul_mat_q7", names).endswith(" and 15 more")
    assert there_is("x", []) == 'it has no extern "C" __global__ function'


def test_a_hostile_source_takes_no_time() -> None:
    start = time.monotonic()
    kernels_in("__global__ void a(" * 200_000)
    kernels_in("__global__ " + "x " * 1_000_000 + "(" * 1_000_000)
    kernels_in("__global__ __launch_bounds__" * 100_000)
    assert time.monotonic() - start < 60, "quadratic: it would take hours"


# ---- declared twice --------------------------------------------------------------------------------------------------
# A function has one declaration: a second one would change what the first name stands for.


def product(w: Any, x: Any, shape: Any) -> Any:
    return x


def test_a_second_declaration_that_differs_is_refused() -> None:
    declared = kernel(["Q4_0"], semantics="q8_1", takes="float32")(product)
    assert kernel(["Q4_0"], semantics="q8_1", takes="float32")(product) is declared
    with pytest.raises(UsageError, match=r"'product' already has another declaration: .*lambda \*given: product"):
        kernel(["Q4_0"], semantics="q8_1", takes="float16", output="float16")(product)
    assert getattr(declared, "takes", "") == "float32"
    other = kernel(["Q4_0"], semantics="q8_1", takes="float16", output="float16")(lambda *given: product(*given))
    assert getattr(other, "takes", "") == "float16"


SCOPES = """// template <int X> in a comment
namespace a { namespace b::c {
struct S { int x; };
extern "C" {
template <typename T, int BLOCK = 32>
__global__ void __launch_bounds__(128) gemm(const T* w) { if (1) { } }
}
} }
namespace { __global__ void hidden(int* y) {} }
#define MACRO namespace of_a_macro {
template <class A> struct Q { A a; };
__global__ void last(int* y) { char* s = "namespace x {"; }
"""


def test_full_names_have_namespaces_and_template_parameters() -> None:
    names = {"gemm": "a::b::c::gemm<typename T, int BLOCK=32>", "hidden": "hidden", "last": "last"}
    assert {name: full.replace(" = ", "=") for name, full in full_names(SCOPES).items()} == names


@pytest.mark.parametrize("text", ["}}}", "template <", "__global__", "namespace", "template <<<<", "namespace {"])
def test_full_names_of_what_is_no_program(text: str) -> None:
    assert set(full_names(f"{text}\n__global__ void f(int n) {{}}")) >= {"f"}


def test_a_declaration_without_a_list_of_formats_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a declaration has arguments, such as @kernel\(formats="):
        kernel(product)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r'formats is not a list of strings: write formats = \["Q4_0"\]'):
        kernel("Q4_0", semantics="q8_1")
