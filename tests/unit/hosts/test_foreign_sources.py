"""What a compiler of a foreign source leaves is read with limits; the sources are compiled by processes that end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from gguf_verify.hosts import compiler, nvcc
from gguf_verify.hosts.author_cubin import OF_NVCC, author_cubin
from gguf_verify.hosts.branches import not_compiled
from gguf_verify.hosts.compilation import ForeignUnit
from gguf_verify.hosts.conversion_notes import Noting
from gguf_verify.hosts.for_cpu import ForCpu
from gguf_verify.hosts.foreign_sources import ForeignSource, as_foreign, foreign_source, read_limited
from gguf_verify.hosts.includes import included
from gguf_verify.hosts.narrow import Preprocessed
from gguf_verify.support.errors import EnvironmentFault


def test_what_a_compiler_left(tmp_path: Path) -> None:
    (tmp_path / "unit.o").write_bytes(b"12345")
    assert read_limited(tmp_path / "unit.o", 5) == b"12345"
    assert read_limited(tmp_path / "unit.o", 4, cut=True) == b"1234"
    with pytest.raises(EnvironmentFault, match="made more than 4 bytes"):
        read_limited(tmp_path / "unit.o", 4)
    with pytest.raises(EnvironmentFault, match=r"left no \.so: No such file"):
        read_limited(tmp_path / "none.so")
    os.mkfifo(tmp_path / "pipe.o")
    with pytest.raises(EnvironmentFault, match=r"left no regular file as its \.o"):
        read_limited(tmp_path / "pipe.o")
    (tmp_path / "link.o").symlink_to(tmp_path / "unit.o")
    with pytest.raises(EnvironmentFault, match=r"left no \.o: "):
        read_limited(tmp_path / "link.o")


def test_a_list_of_files_has_a_limit(tmp_path: Path) -> None:
    listed = tmp_path / "unit.d"
    listed.write_text("made: a.h b\\ c.h")
    assert [Path(name).name for name in compiler._read_files(listed, tmp_path)] == ["a.h", "b c.h"]
    listed.write_text("made: " + " ".join(f"{i}.h" for i in range(10_001)))
    with pytest.raises(EnvironmentFault, match="includes more than 10,000 files"):
        compiler._read_files(listed, tmp_path)


def test_only_what_lies_there_is_foreign(tmp_path: Path) -> None:
    assert as_foreign(tmp_path) is None
    with foreign_source(tmp_path, 60.0):
        assert as_foreign(tmp_path / "emulator") is None
        foreign = as_foreign(tmp_path)
        assert foreign is not None
        done = foreign.run([sys.executable, "-c", "import sys; sys.exit('x.cu:1: error: no')"], tmp_path)
    assert (done.returncode, done.stderr) == (1, "x.cu:1: error: no")
    assert as_foreign(tmp_path) is None


def test_all_commands_share_one_time(tmp_path: Path) -> None:
    foreign = ForeignSource(tmp_path, 0.0)
    with pytest.raises(EnvironmentFault, match="did not compile within 0 s"):
        foreign.run([sys.executable, "-c", "input()"], tmp_path)


def test_half_of_the_time_leaves_the_other_half(tmp_path: Path) -> None:
    foreign = ForeignSource(tmp_path, 20.0)
    with ExitStack() as halves:
        for _ in range(6):
            halves.enter_context(foreign.half())
        with pytest.raises(EnvironmentFault, match=r"did not compile within 0\.[0-9]+ s"):
            foreign.run([sys.executable, "-c", "import time; time.sleep(30)"], tmp_path)
    assert foreign.run([sys.executable, "-c", ""], tmp_path).returncode == 0


@pytest.mark.parametrize("which", ["-E", "-fsyntax-only", "-c"])
def test_a_limit_that_ends_the_list_of_conversions_ends_nothing_else(which: str, tmp_path: Path) -> None:
    """The list alone is lost, which is reported."""

    def run(command: Sequence[str]) -> CompletedProcess[str]:
        if which in command and "/bin/sh" not in command[: which == "-c"]:
            raise EnvironmentFault("the kernel's source did not compile within 30 s")
        (tmp_path / "unit.ii").touch()
        (tmp_path / "unit.json").write_text("[]")
        return CompletedProcess(command, 0)

    made = Noting(["g++"], "/cpu/", run).compile(tmp_path / "unit.cpp", tmp_path / "unit.o", [])
    assert made == (False, "its conversions are not observed: the kernel's source did not compile within 30 s")


def test_a_macro_of_a_condition_stays_what_the_preprocessor_takes() -> None:
    body = "((x) > 4 ? 1 : 0)"
    text = f"#define BIG(x) {body}\n#define SMALL(x) {body}\n#if BIG(8)\nint y = SMALL(8);\n#endif\n"
    first, second, *_ = ForCpu().rewritten(text, "k.cu").splitlines()
    assert first == f"#define BIG(x) {body}"
    assert second != f"#define SMALL(x) {body}"


#: A line of preprocessed code → the same with reports of the values that a type of few bits may not hold.
NARROW = {
    "y[(unsigned short)(i + 1)] = (short)-i;": "y[(unsigned short)C(unsigned short)(i + 1)] = (short)C(short)-i;",
    "p = static_cast<int>(i) + float(i % N) + float(int(x));": (
        "p = static_cast<int>(V(int)i) + float(V(float)i % N) + float(V(float)int(V(int)x));"
    ),
    "using T = short; typedef unsigned char B; a = (T)n + B(n);": (
        "using T = short; typedef unsigned char B; a = (T)C(T)n + B(V(B)n);"
    ),
    "while (t < n) ++t, u--, a[i++] = 0;": "while (t < n) ++S(t), S(u)--, a[S(i)++] = 0;",
    "unsigned short a[2] = {1, 2}; const short* p = (const short*)w;": None,
    "auto l = [](int) {}; int count(int x), size = sizeof(short); if (x == (y)) return;": None,
    "int operator=(int v); std::function<float(int)> f; a < float(unsigned); ++p->i; q.i++;": None,
}


def shortened(text: str) -> str:
    text = re.sub(r"::cuda_on_cpu::Fits<([^<>,]*), 0>\(\) = ", r"V(\1)", text)
    return re.sub(r"\(::cuda_on_cpu::Narrows<([^<>]*)>\)", r"C(\1)", text).replace("::cuda_on_cpu::stored(", "S(")


def preprocessed(lines: str) -> Preprocessed:
    return Preprocessed(
        f'# 1 "unit.cpp"\nint a = (short)b;\n# 7 "/author/k.cu" 1\n{lines}\n# 3 "unit.cpp" 2\n', "/author/"
    )


@pytest.mark.parametrize("line", NARROW)
def test_casts_to_numbers_of_few_bits_are_reported(line: str) -> None:
    unit = preprocessed(line)
    assert shortened(unit.noting(unit.conversions([]))) == unit.text.replace(line, NARROW[line] or line)


def diagnostic(option: str, first: int, last: int, line: int = 4) -> dict[str, Any]:
    ends = [{"file": "gguf-verify", "line": line, "byte-column": at} for at in (first, last)]
    message = "conversion from 'int' to 'idx_t' {aka 'short int'} may change value"
    return {"kind": "warning", "option": option, "message": message,
            "locations": [{"caret": ends[0], "start": ends[0], "finish": ends[1]}]}  # fmt: skip


def test_conversions_are_reported_where_the_compiler_lists_them() -> None:
    unit = preprocessed("i = f(a + b); i += n; i = (c);")
    listed = [diagnostic("-Wconversion", *at) for at in ((7, 11), (15, 20), (7, 12), (30, 40), (27, 27), (28, 28))]
    wanted = "i = f((V(short int)a + b)); (V(short int)S(i) += n); i = ((V(short int)c));"
    made = unit.noting(unit.conversions([*listed, diagnostic("-Wunused", 1, 1), {}, {"locations": 3}]))
    assert shortened(made) == unit.text.replace("i = f(a + b); i += n; i = (c);", wanted)
    assert unit.scanned(made).splitlines()[2] == '# 4 "gguf-verify" 1'


def test_conversions_on_lines_with_errors_are_left_out() -> None:
    unit = preprocessed("a = (short)b;\nc = (short)d;")
    noted = unit.conversions([])
    error = {**diagnostic("", 1, 1, 5), "kind": "error"}
    assert [unit.line_of(one) for one in unit.without(noted, [error])] == [4]
    assert unit.without(noted, [{**error, "locations": []}]) == []


CASTS = [
    "r = static_cast<std::int16_t>(n);", "r = (const short)n;", "r = (short const)n;", "r = (::int16_t)n;",
    "r = static_cast<Traits<Q4_0>::index>(n);", "r = (Traits<Q4_0>::index)n;", "enum Row : short { A }; r = (Row)n;",
    "r = (long long)(short)n;", "r = std::int16_t(n);",
]  # fmt: skip


@pytest.mark.parametrize("line", CASTS)
def test_casts_by_any_name_are_reported(line: str) -> None:
    unit = preprocessed(f"struct Traits {{ using index = short; }}; {line}")
    noted = unit.noting(unit.conversions([]))
    assert "Fits<" in noted or noted.count("Narrows<") == 1 + ("long long" in line)


def test_a_line_directive_hides_no_code() -> None:
    """Neither behind one that was preprocessed, nor in a header that suppresses warnings."""
    assert ForCpu().rewritten('int a;\n#line 100 "gen.py"\nint b;\n# 5\n', "k.cu").split() == ["int", "a;", "int", "b;"]
    text = '# 1 "unit.cpp"\n# 1 "/author/k.cu" 1\n# 100 "gen.py"\nr = (short)n;\n# 3 "unit.cpp" 2\nr = (short)n;\n'
    unit = Preprocessed(text, "/author/")
    assert unit.noting(unit.conversions([])).count("Narrows<short>") == 1
    system = Preprocessed('# 1 "/author/k.h" 1 3\n#pragma GCC system_header\nint a;\n', "/author/")
    assert system.scanned(system.text).splitlines()[:2] == ['# 2 "gguf-verify" 1', ""]


# ---- includes --------------------------------------------------------------------------------------------------------
# The scanner of #include: what it is asked to read may be a device, a pipe, or the source itself.


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_what_has_no_end_is_not_read(tmp_path: Path, kind: str) -> None:
    """The source is then compiled each time."""
    match kind:
        case "device":
            (tmp_path / "x.h").symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(tmp_path / "x.h")
        case _:
            (tmp_path / "x.h").mkdir()
    (tmp_path / "k.cu").write_text('#include "x.h"\n')
    assert included(tmp_path, "k.cu", (), {}) is None


def test_a_source_that_includes_itself(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text('#include "k.cu"\n')
    assert included(tmp_path, "k.cu", (), {}) == [str(tmp_path / "k.cu")]


# ---- nvcc ------------------------------------------------------------------------------------------------------------
# What nvcc is given with a kernel that is not this project's.


SOURCE = """
typedef float (*Function)(float);
static __device__ float twice(float x) { return 2 * x; }
template <int K, Function F>
__global__ void kernel(float* y) { *y = F(K + MORE(K)); }
"""


@pytest.mark.needs("nvcc")
def test_macros_hold_commas_and_parameters(tmp_path: Path) -> None:
    """nvcc itself would take what follows a comma in -D for further macros."""
    (tmp_path / "kernel.cu").write_text(SOURCE)
    defines = {"OF": "3, twice", "MORE(k)": "(k + 1)"}
    cubin, names = nvcc.compile_cubin(ForeignUnit(tmp_path, "kernel.cu", ("kernel<OF>",), defines), "90")
    assert cubin[:4] == b"\x7fELF"
    assert "kernelILi3E" in names["kernel<OF>"]


@pytest.mark.needs("nvcc")
@pytest.mark.parametrize("include", ['#include "{}"', '#define OTHER "{}"\n#include OTHER'])
def test_what_it_reads_is_noted(tmp_path: Path, include: str) -> None:
    """Also where the source does not say which file it is: nvcc lists it."""
    root, header = tmp_path / "source", tmp_path / "other.h"
    root.mkdir()
    header.write_text("#define MORE(k) (k)\n")
    source = SOURCE.replace("template", "template<int, Function> __global__ void kernel(float*);\ntemplate", 1)
    (root / OF_NVCC).write_text(f"{include.format(header)}\n{source}")
    with foreign_source(root, 300.0, (header,)) as noted:
        author_cubin(ForeignUnit(root, OF_NVCC, ("kernel<3, twice>",)), "90", by="nvcc")
    assert str(header) in noted.opened
    assert not [path for path in noted.opened if path.startswith(("what ", f"{root}/", str(nvcc.include_folder())))]


# ---- branches --------------------------------------------------------------------------------------------------------
# Branches of `#if` that are not compiled: macros of a foreign source are text, and never a template or a bomb.


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
