"""Branches of `#if` that are not compiled: macros of a foreign source are text, and never a template or a bomb."""

from __future__ import annotations

import pytest

from gguf_verify.hosts.branches import not_compiled


def found(text: str) -> list[str]:
    return not_compiled({"k.cu": text}, "k.cu", {"__CUDA_ARCH__": "900"}, lambda _of, _name: None, lambda name: name)


@pytest.mark.parametrize("value", ["'\\q'", "'\\1'", "\\g<x>", "'\\n'", "{0}", "%s"])
def test_the_value_of_a_macro_is_no_template(value: str) -> None:
    text = f"#define A {value}\n#if A && __CUDA_ARCH__ < 800\nint x;\n#endif\n"
    assert found(text + "#if __CUDA_ARCH__ < 800\nint y;\n#endif\n") == ["#if __CUDA_ARCH__ < 800 at k.cu:5"]


def test_what_a_macro_stands_for_is_taken_in_place_of_it() -> None:
    text = "#define OLD (__CUDA_ARCH__ < LEAST)\n#define LEAST 800\n#if OLD\nint x;\n#endif\n#if !OLD\nint y;\n#endif\n"
    assert found(text) == ["#if OLD at k.cu:3"]


@pytest.mark.parametrize("value", ["A " * 100_000, "B " * 100_000, "1 + " * 100_000 + "1"])
def test_long_macros_are_not_expanded(value: str) -> None:
    """They are not reported. Each of half a million names would expand to half a million others."""
    long = f"#define B B B\n#define A {value}\n#if __CUDA_ARCH__ < {'A ' * 100_000}\nint x;\n#endif\n"
    short = f"#define A {value}\n#if __CUDA_ARCH__ < A\nint x;\n#endif\n"
    assert found(long) == found(short) == []
