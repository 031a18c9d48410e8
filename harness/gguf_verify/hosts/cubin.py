"""Reader for a cubin: the names of its functions, and the registers that they use."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from ..support.errors import EnvironmentFault
from .elf import FUNCTION, Elf, Symbol, readable

#: Sections of attributes (`.nv.info`), the form of entries with a payload of a given size, and the entries of
#: registers.
_INFO, _WITH_SIZE, _REGISTERS = 0x70000000, 4, (4, 0x2F, 8)
#: Beginning of the name of a kernel that only exists for its name.
MARK = "gguf_verify_mark"
_SUBSTITUTION = re.compile(r"S[0-9A-Z]*_")


def functions(cubin: bytes) -> list[str]:
    """Return the names of its functions. Raises EnvironmentFault if the file is no cubin."""
    with readable("cubin"):
        return [_name(symbol) for symbol in Elf(cubin).symbols if symbol.kind == FUNCTION]


def registers(cubin: bytes) -> dict[str, int]:
    """Return its functions → the registers of a thread, as ptxas lists them. Raises EnvironmentFault."""
    with readable("cubin"):
        of = Elf(cubin)
    found = {}
    for section in of.sections:
        at = section.offset
        while section.kind == _INFO and at + 12 <= min(section.offset + section.size, len(cubin)):
            form, what, size = struct.unpack_from("<BBH", cubin, at)
            symbol, value = struct.unpack_from("<II", cubin, at + 4)
            if (form, what, size) == _REGISTERS and symbol < len(of.symbols):
                found[_name(of.symbols[symbol])] = value
            at += 4 + (size if form == _WITH_SIZE else 0)
    return found


def _name(symbol: Symbol) -> str:
    return symbol.name.decode("ascii", "replace")


def marks(entries: Sequence[str]) -> str:
    """Return CUDA C++ to append to a source: it instantiates each of its kernels, in a function whose name contains
    theirs.
    """
    head = f"template <auto GGUF_VERIFY_KERNEL, int GGUF_VERIFY_NUMBER> __global__ void {MARK}() {{}}"
    return "\n".join(
        [head, *(f"template __global__ void {MARK}<&{entry}, {i}>();" for i, entry in enumerate(entries)), ""]
    )


def lowered(found: Sequence[str], entries: Sequence[str]) -> dict[str, str]:
    """Map kernels to their names in a cubin made from a source with `marks`. Raises EnvironmentFault.

    A mark's mangled name (Itanium C++ ABI, 5.1) contains the kernel's, `XadL_Z…E`, but counts the substitutions in it
    from the mark's own name on. So the two are compared without their numbers.
    """
    out = {}
    kernels = {_plain(name): name for name in found if not name.startswith(f"_Z{len(MARK)}{MARK}")}
    for i, entry in enumerate(entries):
        if entry in found:
            out[entry] = entry  # extern "C"
            continue
        mark = re.compile(rf"_Z{len(MARK)}{MARK}IXadL(_Z\w+)EELi{i}EEvv")
        held = [match[1] for name in found if (match := mark.fullmatch(name))]
        names = [kernels[_plain(name)] for name in held[:1] if _plain(name) in kernels]
        if not names:
            raise EnvironmentFault(f"the compiler made no kernel {entry[:80]}")
        out[entry] = names[0]
    return out


def _plain(name: str) -> str:
    return _SUBSTITUTION.sub("S_", name)
