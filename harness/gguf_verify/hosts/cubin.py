"""Reader for the names of the functions in a cubin, an untrusted ELF file of 64 bits (System V ABI, chapter 4)."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

from ..support.errors import EnvironmentFault

_SYMBOLS, _FUNCTION = 2, 2
#: Sections of attributes (`.nv.info`), the form of entries with a payload of a given size, and the entries of
#: registers.
_INFO, _WITH_SIZE, _REGISTERS = 0x70000000, 4, (4, 0x2F, 8)
_MOST_SECTIONS, _MOST_SYMBOLS, _MOST_NAME = 1 << 16, 1 << 18, 1 << 14
#: Beginning of the name of a kernel that only exists for its name.
MARK = "gguf_verify_mark"
_SUBSTITUTION = re.compile(r"S[0-9A-Z]*_")


def functions(cubin: bytes) -> list[str]:
    """Return the names of its functions. Raises EnvironmentFault if the file is no cubin."""
    return [name for name, kind in _symbols(cubin, _sections(cubin)) if kind == _FUNCTION]


def registers(cubin: bytes) -> dict[str, int]:
    """Return its functions → the registers of a thread, as ptxas lists them. Raises EnvironmentFault."""
    sections = _sections(cubin)
    names = [name for name, _ in _symbols(cubin, sections)]
    found = {}
    for _, kind, _, _, offset, length, *_ in sections:
        at = offset
        while kind == _INFO and at + 12 <= min(offset + length, len(cubin)):
            form, what, size = struct.unpack_from("<BBH", cubin, at)
            symbol, value = struct.unpack_from("<II", cubin, at + 4)
            if (form, what, size) == _REGISTERS and symbol < len(names):
                found[names[symbol]] = value
            at += 4 + (size if form == _WITH_SIZE else 0)
    return found


def _sections(cubin: bytes) -> list[tuple[int, ...]]:
    try:
        if cubin[:5] != b"\x7fELF\x02":
            raise ValueError
        (at,) = struct.unpack_from("<Q", cubin, 40)
        size, count = struct.unpack_from("<HH", cubin, 58)
        return [struct.unpack_from("<IIQQQQIIQQ", cubin, at + i * size) for i in range(min(count, _MOST_SECTIONS))]
    except (struct.error, ValueError):
        raise EnvironmentFault("a compiler produced no readable cubin") from None


def _symbols(cubin: bytes, sections: Sequence[tuple[int, ...]]) -> list[tuple[str, int]]:
    """Return name and kind of each symbol."""
    try:
        found = []
        for _, kind, _, _, offset, length, link, _, _, each in sections:
            if kind != _SYMBOLS or each < 24:
                continue
            names = sections[link]
            strings = cubin[names[4] : names[4] + names[5]]
            for i in range(min(length // each, _MOST_SYMBOLS)):
                name, info = struct.unpack_from("<IB", cubin, offset + i * each)
                text = strings[name : name + _MOST_NAME].split(b"\0", 1)[0].decode("ascii", "replace")
                found.append((text, info & 15))
        return found
    except (struct.error, IndexError):
        raise EnvironmentFault("a compiler produced no readable cubin") from None


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
