"""The mutator: every mutant is one edit, and no place or kind of edit is missing."""

from __future__ import annotations

import random
import re

import pytest

from gguf_verify.support.paths import kernel_root
from tools.measure.mutation import mutator, population, report
from tools.measure.mutation.subjects import row_of, subjects

KERNELS = kernel_root()
FILES = mutator.sources(KERNELS)
NAIVE = "gemm/q8_1/01_naive.cu"
TEXTS = {file: (KERNELS / file).read_text() for file in FILES}


@pytest.mark.parametrize("file", FILES)
def test_tokens_are_the_source(file: str) -> None:
    """Nothing but white space lies between them, and their places are right."""
    text, at = TEXTS[file], 0
    lines = text.splitlines(keepends=True)
    for token in mutator.tokens(text):
        assert text[at : token.start].strip() == ""
        assert lines[token.line - 1][token.column - 1 :].startswith(token.text.split("\n")[0])
        at = token.end
    assert text[at:].strip() == ""


def test_tokens_of_every_kind() -> None:
    text = "a<<=0x1p-14f; // x + 1\n#define B 1 + \\\n 2\nf(\"a+b\", 'c', 1.5f, .5e-3, 0xFFu, 12L)->x ? y::z : !w;"
    found = [(t.kind, t.text) for t in mutator.tokens(text)]
    assert ("float", "0x1p-14f") in found
    assert ("op", "<<=") in found
    assert ("comment", "// x + 1") in found
    assert ("directive", "#define B 1 + \\\n 2") in found
    assert [t for k, t in found if k == "text"] == ['"a+b"', "'c'"]
    assert [t for k, t in found if k in ("float", "int")] == ["0x1p-14f", "1.5f", ".5e-3", "0xFFu", "12L"]
    with pytest.raises(ValueError, match=r"line 2: no token begins with '@'"):
        mutator.tokens("a\n@")


def code(text: str) -> list[str]:
    return [t.text for t in mutator.tokens(text) if t.kind != "comment"]


@pytest.mark.parametrize("file", FILES)
def test_each_mutant_is_one_edit(file: str) -> None:
    """One token replaced, or something inserted or left out in one place; never a comment, string or directive."""
    text = TEXTS[file]
    original = code(text)
    left_alone = [(t.start, t.end) for t in mutator.tokens(text) if t.kind in ("comment", "text", "directive")]
    mutants = mutator.mutants(file, text)
    assert mutants == mutator.mutants(file, text)
    assert len({m.id for m in mutants}) == len(mutants)
    for mutant in mutants:
        assert not any(a <= mutant.start < b for a, b in left_alone), mutant.id
        assert mutant.old != mutant.new
        assert text[mutant.start :].startswith(mutant.old)
    for mutant in random.Random(1).sample(mutants, min(12, len(mutants))):
        changed = code(mutant.applied(text))
        assert changed != original, mutant.id
        first = next(i for i in range(len(original) + 1) if changed[i : i + 1] != original[i : i + 1])
        last = next(i for i in range(len(original)) if changed[-1 - i] != original[-1 - i])
        gone, came = original[first : len(original) - last], changed[first : len(changed) - last]
        one = max(len(gone), len(came)) <= 4  # `]` → `+ 1]`, `?` → `== 0 ?`, a function → a cast
        left_out = mutant.operator == "statement-left-out" and len(came) <= 1
        moved = mutant.operator in ("statement-doubled", "statements-swapped")
        assert one or left_out or moved, (
            mutant.id,
            gone,
            came,
        )


def test_ids_hold_a_place_and_an_operator() -> None:
    mutants = {m.id: m for m in mutator.mutants(NAIVE, TEXTS[NAIVE])}
    place = next(i for i in mutants if i.endswith(":op+=to-="))
    assert re.fullmatch(re.escape(NAIVE) + r":\d+:\d+:op\+=to-=", place)
    line = TEXTS[NAIVE].splitlines()[mutants[place].line - 1]
    assert line[mutants[place].column - 1 :].startswith("+=")
    assert "⟦+= → -=⟧" in mutants[place].diff(TEXTS[NAIVE])
    with pytest.raises(ValueError, match="does not read"):
        mutants[place].applied("x" + TEXTS[NAIVE])


def test_operators_of_a_synthetic_source() -> None:
    """What each operator makes of a source that has one place for it."""
    text = (
        "struct alignas(4) B {\n    uint8_t qs[16];\n};\n"
        "#ifdef __CUDACC__\nint left = alone + 1;\n#else\nint too = 2;\n#endif\n"
        "void f(int low, int n) {\n"
        "    if (low < 0x0F) __syncthreads();\n"
        "    y[low] = -1.5f * fminf(a << 4, b >> 2) + (n % 3 ? 1 : 0);\n"
        "    acc = __fmaf_rn(a->d, b, acc);\n}\n"
    )
    made = {(m.old, m.new) for m in mutator.mutants("gemm/made.cu", text)}
    for pair in (
        ("0x0F", "0xF0"), ("<", "<="), ("if", "IF_NOT"), ("__syncthreads", "LEFT_OUT"), ("]", " + 1]"), ("-", ""),
        ("1.5f", "2.5f"), ("1.5f", "0.0f"), ("fminf", "fmaxf"), ("<<", ">>"), ("4", "3"), (">>", "<<"), ("%", "/"),
        ("?", "== 0 ?"), ("*", "+"), ("+", "-"), ("__fmaf_rn", "UNFUSED"), ("d", "s"), ("low", "high"),
        ("acc = __fmaf_rn(a->d, b, acc)", ""), ("uint8_t", "int8_t"),
    ):  # fmt: skip
        assert pair in made, pair
    of_lines = {m.line for m in mutator.mutants("gemm/made.cu", text)}
    assert not of_lines & {4, 5, 6, 7, 8}
    unobservable = [m for m in mutator.mutants("gemm/made.cu", text) if m.unobservable]
    assert {m.line for m in unobservable} == {1}


def test_mutated_sources() -> None:
    assert {"common.cuh", "packed.cuh", "quantize/q8_1.cuh", "pack/weights.cu", "formats/q4_0.cuh", NAIVE} <= set(FILES)
    assert not any("host" in f or f == "hopper.cuh" for f in FILES)
    for file in FILES:
        assert subjects(KERNELS, file) or not mutator.mutants(file, TEXTS[file]), file
        assert row_of(file) in report.ROWS


def test_a_larger_sample_holds_a_smaller_one() -> None:
    """Each kind of mutant is in it, as often as in all of them."""
    everything = [m for file in (NAIVE, "common.cuh") for m in mutator.mutants(file, TEXTS[file])]
    few, more = (population.sampled(everything, n, 3) for n in (30, 90))
    assert abs(len(few) - 30) < 4
    assert set(few) < set(more) < set(everything)
    assert {m.file for m in few} == {NAIVE, "common.cuh"}
    assert any(m.operator.startswith("statement") for m in few)
    assert population.sampled(everything, 30, 4) != few


def test_statements() -> None:
    """Left out, twice, and behind the next one, be it a block or a declaration."""
    text = (
        "void f(int n) {\n    async_commit();\n    wait<1>();\n"
        "    for (int i = 0; i < n; ++i) {\n        y[i] = 0;\n    }\n"
        "    if (n) stop();\n    else go(n);\n    y[0] = 1;\n    const int k = n;\n    return;\n}\n"
    )
    of = {(m.operator, m.old): m.new for m in mutator.mutants("gemm/made.cu", text) if "statement" in m.operator}
    assert of["statement-left-out", "async_commit()"] == ""
    assert of["statement-doubled", "async_commit()"] == "async_commit(); async_commit()"
    assert of["statement-doubled", "stop()"] == "{ stop(); stop(); }"
    swapped = {" ".join(new.split()) for (operator, _), new in of.items() if operator == "statements-swapped"}
    loop = "for (int i = 0; i < n; ++i) { y[i] = 0; }"
    assert swapped == {"wait<1>(); async_commit();", f"{loop} wait<1>();", "const int k = n; y[0] = 1;"}
