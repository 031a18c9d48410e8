"""Templates of kernels: their texts. That they are right, `tests/rungs/cli/test_new_kernel.py` verifies."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.foreign.api import Shape
from gguf_verify.kernels.foreign.child import import_kernel
from gguf_verify.kernels.foreign.declared import parse
from gguf_verify.kernels.foreign.template import SEMANTICS, Template, flattened
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.semantics.definitions import SEMANTICS as DEFINITIONS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.support.errors import UsageError


@pytest.mark.parametrize("kind", FORMATS)
def test_a_template_in_python_of_every_type_is_right(kind: str, tmp_path: Path) -> None:
    fmt, (m, n) = FORMATS[kind], (3, 5)
    k = 2 * fmt.block_size
    x = np.random.default_rng(1).standard_normal((m, k)).astype(np.float32)
    rows = any_blocks(fmt, n * 2, 3).reshape(n, -1)
    for semantics in SEMANTICS:
        (path,) = (files := Template(fmt, semantics).files(tmp_path / f"{semantics}.py"))
        path.write_text(files[path])
        gemm = import_kernel(path, "gemm")
        assert (gemm.formats, gemm.semantics) == ((kind,), semantics)
        definition = DEFINITIONS[semantics]
        given = definition.bytes_of(x)
        y = gemm(rows, x if semantics == "f32" else given, Shape(kind, m, n, k))
        assert y.dtype == np.float32
        assert judge(y, product(definition, fmt, rows, given)).passed, semantics


@pytest.mark.parametrize("kind", FORMATS)
def test_the_header_of_every_type_stands_alone(kind: str) -> None:
    text = flattened(FORMATS[kind])
    assert "#include" not in text
    elsewhere = re.sub(r"#ifdef __CUDACC__\n.*?#else\n", "", text, flags=re.DOTALL)
    assert "asm(" not in elsewhere, "a CPU runs it too"
    assert f"struct {kind} {{" in text or f"struct alignas(4) {kind} {{" in text
    assert text.count("#pragma once") == 1
    tables = {table.name for table in FORMATS[kind].tables}
    for name in {table.name for fmt in FORMATS.values() for table in fmt.tables} - tables:
        assert f" {name.upper()}[" not in text


def test_a_declaration_says_what_was_asked_for() -> None:
    for kind in FORMATS:
        files = Template(FORMATS[kind], "q8_1").files(Path("a/my.cu"))
        assert [path.name for path in files] == [f"{kind.lower()}.cuh", "my.cu"]
        text = files[Path("a/my.cu")]
        inner = text.split("// [gguf-verify]\n")[1].split("// [/gguf-verify]")[0]
        declared = parse(inner.replace("// ", ""))
        assert (declared.of.formats, declared.of.semantics, declared.of.takes) == ((kind,), "q8_1", "")
        assert max(map(len, text.splitlines())) <= 120
    for what in ("half", "bfloat16"):
        dtype = {"half": "float16"}.get(what, what)
        text = Template(FORMATS["Q4_0"], "f32", dtype, dtype).files(Path("my.cu"))[Path("my.cu")]
        for part in (f'takes = "{dtype}"', f'output = "{dtype}"', f"{what}_to_float(token[", f"float_to_{what}(sum)"):
            assert part in text


@pytest.mark.parametrize(
    ("asked", "path", "said"),
    [
        (("Q4_O", "f32", "", "float32"), "a.cu", "no type of weights is called 'Q4_O'; did you mean"),
        (("Q4_0", "mmq", "", "float32"), "a.cu", "there is no template of 'mmq'; use one of f32, q8_1"),
        (("Q4_0", "q8_1", "float16", "float32"), "a.cu", "a template of q8_1 takes float32"),
        (("Q4_0", "f32", "", "float64"), "a.cu", "output 'float64' is not one of"),
        (("Q4_0", "f32", "bfloat16", "float32"), "a.py", "NumPy has no bfloat16"),
        (("Q4_0", "q8_1", "float32", "float32"), "a.py", "omit --takes"),
        (("Q4_0", "f32", "", "float32"), "a.cpp", "a kernel is FILE.cu or FILE.py, not 'a.cpp'"),
    ],
)
def test_what_there_is_no_template_of(asked: tuple[str, str, str, str], path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Template.of(*asked).files(Path(path))
