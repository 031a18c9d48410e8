"""Which files a CUDA source includes, by three scanners: the copies of it, NVRTC's cache, and a compiler's makefile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gguf_verify.hosts.includes import included
from gguf_verify.kernels.foreign.cuda import included_files
from gguf_verify.support.errors import UsageError
from gguf_verify.support.sources import combined, of_makefile
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.refusals import refused_in_one_line

OTHERS = {"a.h": '#include "b.h"\n', "b.h": '#include "a.h"\n', "c d.h": "", "e.cuh": "#define E 1\n"}
#: Characters that a compiler escapes in the names of `of_makefile`.
ESCAPED = re.compile(r"([ \t#])")


def seeds() -> Iterator[bytes]:
    """Sources that include in every way, and makefile rules."""
    for line in (
        '#include "a.h"', "#include <b.h>", '  #  include\t"c d.h" // x', "#include NAME", '%:include "a.h"',
        '??=include "a.h"', "#if __has_include(<x>)", '/* x */ #include "a.h"', "/*\n*/ include <b.h>",
        '#inclu\\\nde "a.h"', '#define NAME "a.h"\n#include NAME', '#import "a.h"', '#embed "a.h"',
        "#include /**/ <b.h>",
               '// #include "a.h"', '#include "/dev/zero"', '#include ".."', '#include ""', '#include "missing.h"',
        '#include "a.h" /*', '#include "\0"', '#include "' + "x" * 5000 + '"', "#include <e.cuh>\r\n#include NAME\r",
        "x.o: a.h b.h \\\n c\\ d.h e$$.cuh f\\#.h \\\\x", "x.o:", "", ":", "\\\n", "x: y: z", "a\\\\ b:c\\",
    ):  # fmt: skip
        yield f"{line}\n".encode()


def check(folder: Path, data: bytes) -> None:
    """The scanners end and name existing files, each once; a file that one copies is found by the other."""
    for name, text in OTHERS.items():
        if not (folder / name).exists():
            (folder / name).write_text(text)
    path = folder / "k.cu"
    path.write_bytes(data)
    for macros in ({}, {"NAME": '"a.h"'}):
        found = included(folder, "k.cu", (), macros)
        assert found == included(folder, "k.cu", (), macros)
        if found is not None:
            assert len(set(found)) == len(found)
            assert str(path) in found
    with refused_in_one_line(UsageError):
        copied = included_files(path)
        assert list(copied)[0] == str(path)  # noqa: RUF015 - it is the first
        plain = included(folder, "k.cu", (), {})
        if plain is not None:
            assert {Path(name).resolve() for name in copied} <= {Path(name).resolve() for name in plain}
    text = data.decode("utf-8", "surrogateescape")
    names = of_makefile(text)
    assert all(names)
    combined([(name.encode("utf-8", "backslashreplace").decode(), None) for name in names])
    if all(c.isprintable() or c == " " for name in names for c in name) and not any("\\" in n for n in names):
        rule = "x.o: " + " \\\n ".join(ESCAPED.sub(r"\\\1", name).replace("$", "$$") for name in names)
        assert of_makefile(rule) == names


TARGET = Target(
    "source-files", "a CUDA source, or a compiler's makefile", seeds, check,
    mutations.of_lines(
        ('#include "a.h"', "#include <b.h>", "include", "#", "%:", "??=", "/*", "*/", "//", "\\\n", "define", "NAME",
         '"', "<", ">", "__has_include", "import", "embed", " \\", "$$", "$", "\\ ", "\\#", ":", "\x0c", "\x85"),
    ),
    inputs=170, covered=("gguf_verify.hosts.includes",),
)  # fmt: skip
