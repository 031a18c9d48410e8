"""What a compiler of a foreign source leaves is read with limits; the sources are compiled by processes that end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gguf_verify.hosts import compiler
from gguf_verify.hosts.for_cpu import ForCpu
from gguf_verify.hosts.foreign_sources import ForeignSource, as_foreign, foreign_source, read_limited
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


def test_a_macro_of_a_condition_stays_what_the_preprocessor_takes() -> None:
    body = "((x) > 4 ? 1 : 0)"
    text = f"#define BIG(x) {body}\n#define SMALL(x) {body}\n#if BIG(8)\nint y = SMALL(8);\n#endif\n"
    first, second, *_ = ForCpu().rewritten(text, "k.cu").splitlines()
    assert first == f"#define BIG(x) {body}"
    assert second != f"#define SMALL(x) {body}"


#: A line of a kernel → the same with notes of the values that a type of few bits may not hold.
NARROW = {
    "const short m = i / N, n = f(i, 2);": "const short m =V(short) i / N, n =V(short) f(i, 2);",
    "y[(unsigned short)(i + 1)] = (short)i;": "y[(unsigned short) C(unsigned short)(i + 1)] = (short) C(short)i;",
    "p = static_cast<int>(i) + float(i % N);": "p = static_cast<int>(V(int) i) + float(V(float) i % N);",
    "for (int j = 0, e = (M); j < e; ++j)": "for (int j =V(int) 0, e =V(int) (M); j < e; ++j)",
    "#define LOW(x) ((short)(x))": "#define LOW(x) ((short) C(short)(x))",
    "template <class T, int N = 4> float f(short, const int (&a)[N], int = 3);": (
        "template <class T, int N =V(int) 4> float f(short, const int (&a)[N], int = 3);"
    ),
    "unsigned short a[2] = {1, 2}; const short* p = (const short*)w;": None,
    "unsigned long long v = (long long)i; double d = (double)i; auto l = [](int) {};": None,
    "int count(int x), size = sizeof(short); if (x == (y)) return;": None,
    "constexpr int ALONG = 2 * N; static constexpr short S = 3;": None,
    "int operator=(int v); std::function<float(int)> f; a < float(unsigned);": None,
}


@pytest.mark.parametrize("line", NARROW)
def test_values_that_become_numbers_of_few_bits_are_noted(line: str) -> None:
    made = ForCpu().rewritten(line, "k.cu")
    made = made.replace(" GGUF_VERIFY_NARROWED(", "V(").replace("GGUF_VERIFY_NARROWED(", "V(")
    assert made.replace("GGUF_VERIFY_NARROWS(", "C(") == (NARROW[line] or line)
