"""Templates of kernels to begin from: complete, correct and naive, for any type of weights (`gguf-verify new-kernel`).

Their texts are the files of `templates/`. A kernel in CUDA C++ comes with a header that decodes the type: the project's
own, with all that it includes, in one file. So the kernel needs no include path, neither here nor where its author
compiles it. A kernel in Python calls the project's decoder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...formats.block import BlockFormat
from ...formats.tensor_types import FORMATS
from ...hosts.tables import headers
from ...support.errors import UsageError
from ...support.near import nearest
from ...support.paths import kernel_root

#: Definitions with a template, and the types of activations and outputs.
SEMANTICS = ("f32", "q8_1")
TAKES = ("float32", "float16", "bfloat16")
#: Type in CUDA C++, expression that reads a value, expression that writes one.
_ELEMENTS = {
    "float32": ("float", "{}", "{}"), "float16": ("uint16_t", "half_to_float({})", "float_to_half({})"),
    "bfloat16": ("uint16_t", "bfloat16_to_float({})", "float_to_bfloat16({})"),
}  # fmt: skip
TEMPLATES = Path(__file__).parent / "templates"
_COMMON = "../common.cuh"
_INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.M)
#: The names that a paragraph of a header defines at its outermost level.
_DEFINED = re.compile(
    r"^(?:__device__ |__forceinline__ |static |const |constexpr |inline |typedef )*"
    r"(?:struct|enum class|[\w:]+[ \w]*?[ *&]) ?(\w+)(?=[;({ \[=])",
    re.M,
)


@dataclass(frozen=True)
class Template:
    """The options of a new kernel.

    Args:
        fmt: the weights' type.
        semantics: one of `SEMANTICS`.
        takes: the declared type of activations; "": the definition's.
        output: the dtype of the outputs.

    Raises UsageError if there is no such template.
    """

    fmt: BlockFormat
    semantics: str = "f32"
    takes: str = ""
    output: str = "float32"

    @classmethod
    def of(cls, kind: str, semantics: str, takes: str, output: str) -> Template:
        """Build it from names. Raises UsageError."""
        if kind not in FORMATS:
            there = f"there are: {', '.join(FORMATS)}"
            raise UsageError(f"no type of weights is called {ascii(kind)[:60]}; {nearest(kind, FORMATS)}{there}")
        return cls(FORMATS[kind], semantics, takes, output)

    def __post_init__(self) -> None:
        if self.semantics not in SEMANTICS:
            raise UsageError(
                f"there is no template of {ascii(self.semantics)[:60]}; use one of {', '.join(SEMANTICS)}, and change "
                "the code and its declaration"
            )
        may = TAKES if self.semantics == "f32" else ("float32",)
        if self.takes and self.takes not in may:
            raise UsageError(f"a template of {self.semantics} takes {', '.join(may)}, not {ascii(self.takes)[:60]}")
        if self.output not in TAKES:
            raise UsageError(f"output {ascii(self.output)[:60]} is not one of {', '.join(TAKES)}")

    @property
    def header(self) -> str:
        """The name of the header that decodes the type."""
        return f"{self.fmt.name.lower()}.cuh"

    def files(self, path: Path) -> dict[Path, str]:
        """Return the files of a new kernel: path → text. Raises UsageError for an unknown suffix."""
        if path.suffix == ".py":
            return {path: self._python(path)}
        if path.suffix == ".cu":
            return {path.with_name(self.header): flattened(self.fmt), path: self._rendered("kernel.cu.jinja", path)}
        raise UsageError(f"a kernel is FILE.cu or FILE.py, not {ascii(path.name)[:60]}")

    def _rendered(self, template: str, path: Path) -> str:
        """Return the text of a kernel, from a file of `TEMPLATES`."""
        from jinja2 import Environment, FileSystemLoader  # late: only `new-kernel` needs it

        quantized, given = self.semantics == "q8_1", self.takes or "float32"
        inside = quantized and self.takes == "float32"
        blocks = quantized and not inside
        fmt, (made, _, write) = self.fmt, _ELEMENTS[self.output]
        element, read, _ = _ELEMENTS[given]
        environment = Environment(
            loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
        )
        return environment.get_template(template).render(
            fmt=fmt,
            semantics=self.semantics,
            name=path.name,
            header=self.header,
            given=given,
            output=self.output,
            inside=inside,
            blocks=blocks,
            taken="Q8_1" if blocks else element,
            read=read,
            made=made,
            write=write,
            # the minimum is multiplied by Q8_1's sum of the activations, or by the sum of their codes
            minima_of_sum=fmt.min_times_sum and (fmt.has_min or bool(fmt.offset)),
            minima_of_codes=fmt.has_min and not fmt.min_times_sum,
        )

    def _python(self, path: Path) -> str:
        if self.semantics == "q8_1" and self.takes:
            raise UsageError("a template in Python of q8_1 takes blocks of Q8_1: omit --takes")
        if "bfloat16" in (self.takes, self.output):
            raise UsageError("NumPy has no bfloat16: use a template in CUDA C++")
        return self._rendered("kernel.py.jinja", path)


# ---- the header ------------------------------------------------------------------------------------------------------


def flattened(fmt: BlockFormat) -> str:
    """Return the header of a type with all that it includes, without functions and tables that it does not use.

    The conversions of `standalone.cuh` are kept whole, so that all kernels of the type can include the same file.
    """
    root = kernel_root()
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        table = headers().get(name)
        file = root / "standalone.cuh" if name == _COMMON else root / "formats" / name
        text = file.read_text() if table is None else table
        texts[name] = ""  # marks it as visited; its place is after its own includes
        for included in _INCLUDE.findall(text):
            add(included)
        del texts[name]
        texts[name] = _INCLUDE.sub("", text.replace("#pragma once\n", ""))

    add(f"{fmt.name.lower()}.cuh")
    common = texts.pop(_COMMON).strip()
    *included, own = texts.values()
    kept, used = [own], own
    # The declarations at the outermost level of the headers, each with the comment above it.
    paragraphs = [p for text in included for p in re.split(r"\n\n(?=\S)", text.strip())]
    for paragraph in reversed(paragraphs):
        if all(line.startswith("//") for line in paragraph.splitlines()):
            continue
        names = _DEFINED.findall(paragraph)
        if any(re.search(rf"\b{name}\b", used) for name in names):
            kept.insert(0, paragraph)
            used += paragraph
    head = f"// {fmt.name}, decoded. From gguf-verify (MIT licence), in one file that needs no other."
    return "\n\n".join([head, "#pragma once", common.partition("\n\n")[2], *(text.strip() for text in kept)]) + "\n"
