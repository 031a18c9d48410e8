"""Content of tensors: every block decoded by us and by llama.cpp in one pass, compared and counted.

`kernels/emulator/scan.hpp` does this with `unpack` and `value` of `kernels/formats/`, which the kernels decode with.
The format descriptions in `gguf_verify.formats` decode a hundred times slower: they are compared with llama.cpp on some
blocks of each tensor, and in the tests on every code and scale.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..formats.block import decodes_rightly
from ..formats.tensor_types import ELEMENTS, FLOAT_TYPES, TensorType, decode_elements
from ..gguf.file import Tensor
from ..gguf.records import MAX_PER_RULE, Finding, finding
from ..gguf.rules import RULES
from ..llama.files import Scan, Scanned, ScannerOf
from ..llama.library import Llama, WithoutLlama
from ..support.command_line import cores
from ..support.errors import Culprit, EnvironmentFault
from ..support.paths import kernel_root
from ..support.protocol import evenly
from ..support.text import quoted
from ..support.threads import initializer, is_over
from .fingerprint import patterns_of

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

#: Number of blocks per tensor that NumPy decodes as well, from the format's description.
DESCRIBED = 64
#: Types in which every value is valid.
INTEGERS = ("I8", "I16", "I32", "I64")
#: Type name → lock held while its scanner is compiled.
_COMPILING: dict[str, threading.Lock] = {}


@dataclass(frozen=True)
class BadBlock:
    """A block with a finding.

    Args:
        row, block: its place in the tensor. In a type without blocks, `block` is the index of the value.
        what: what is wrong, in words.
        got, expected: our value and llama.cpp's, if they differ.
        culprit: who is at fault.
    """

    row: int
    block: int
    what: str
    got: float | None = None
    expected: float | None = None
    culprit: Culprit = "file"


@dataclass(frozen=True)
class Content:
    """Results of scanning one tensor.

    Args:
        tensor: the tensor.
        scan: the counts; None if there is nothing to judge (integers, an empty tensor) or nothing can be judged.
        unverified: why nothing can be judged, or "".
        described: indices of the sampled blocks that `gguf_verify.formats` decodes differently from llama.cpp.
        bad: the first blocks that are not finite, and the first that are decoded differently.
        different: the largest number of different codes in a sampled block; None if not counted.
    """

    tensor: Tensor
    scan: Scan | None = None
    unverified: str = ""
    described: tuple[int, ...] = ()
    bad: tuple[tuple[BadBlock, ...], tuple[BadBlock, ...]] = ((), ())
    different: int | None = None

    @property
    def differing(self) -> list[int]:
        """Indices of the first blocks that are decoded differently from llama.cpp."""
        return sorted({*(self.scan.first_differing if self.scan else ()), *self.described})

    @property
    def n_differing(self) -> int:
        """Lower bound of the number of such blocks."""
        return max(self.scan.differing if self.scan else 0, len(self.differing))


def scanner_options(kind: TensorType) -> list[str]:
    """Return the compiler options for the scanner of a type."""
    fmt = kind.format
    if fmt is None:
        element = ELEMENTS[kind.name]
        macros = {**element.macros, "SMALLEST_NORMAL": f"{element.smallest_normal.hex()}f"}
    else:
        macros = {**fmt.macros, "CODE_LOW": str(fmt.low), "CODE_BITS": str(fmt.bits)}
    return [f"-D{name}={value}" for name, value in macros.items()]


def scanner(kind: TensorType) -> bytes:
    """Compile the scanner of a type, a shared library; waits if another thread is compiling it. Raises
    EnvironmentFault."""
    from ..hosts.compiler import compile_alone, sound_library

    with _COMPILING.setdefault(kind.name, threading.Lock()):
        return sound_library(kernel_root(), '#include "emulator/scan.hpp"\n', scanner_options(kind), compile_alone)


def compile_scanners(tensors: Sequence[Tensor]) -> None:
    """Compile the scanners for these tensors ahead of `contents`, while they are needed. Errors are ignored
    here: they are raised when the scanner is used."""

    def one(kind: TensorType) -> None:
        if not is_over():
            with suppress(EnvironmentFault):
                scanner(kind)

    kinds = {t.type.name: t.type for t in tensors if _to_scan(t)}
    with ThreadPoolExecutor(max(1, cores() // 2), initializer=initializer()) as pool:
        deque(pool.map(one, kinds.values()), 0)


def contents(
    tensors: Sequence[Tensor],
    llama: Llama | WithoutLlama,
    threads: int = 1,
    on_bytes: Callable[[int], object] = lambda _n: None,
) -> Generator[Content]:
    """Scan tensors in llama.cpp's process, in order.

    Raises EnvironmentFault if llama.cpp dies or a scanner does not compile, LlamaRefused if the file changed.
    """
    scanners: dict[str, ScannerOf] = {}
    scanned = [t for t in tensors if _to_scan(t)]
    for kind in {t.type.name: t.type for t in scanned}.values():
        rules = [rule.masks for rule in patterns_of(kind.format)] if kind.format else []
        scanners[kind.name] = ScannerOf(scanner(kind), rules, DESCRIBED if kind.format else 0)
    left = deque(tensors)
    with closing(llama.files.scans(scanned, scanners, threads, on_bytes)) as found:
        at = 0
        for some in found:
            of_some = scanned[at : at + len(some)]
            described = _described(of_some, some) if isinstance(llama, Llama) else [_NOT_DESCRIBED] * len(some)
            for of_tensor, (differs, different) in zip(some, described, strict=True):
                yield from _unscanned(left)
                yield replace(_content(left.popleft(), of_tensor, differs), different=different)
            at += len(some)
    yield from _unscanned(left)


def _unscanned(left: deque[Tensor]) -> Iterator[Content]:
    """Yield the contents of tensors up to the next one that is scanned."""
    while left and not _to_scan(left[0]):
        tensor = left.popleft()
        harmless = not tensor.nbytes or tensor.type.name in INTEGERS
        yield Content(tensor, unverified="" if harmless else f"type {tensor.type.name} is not covered")


def _to_scan(tensor: Tensor) -> bool:
    return bool(tensor.nbytes) and (tensor.type.format is not None or tensor.type.name in FLOAT_TYPES)


def _content(tensor: Tensor, found: Scanned, differs: Indices) -> Content:
    scan = found.scan
    theirs = dict(zip(scan.first_differing, found.theirs_differing, strict=True))
    if len(differs):
        drawn = evenly(scan.blocks, DESCRIBED)
        theirs |= {drawn[i]: found.theirs[i] for i in differs}
    content = Content(tensor, scan, described=tuple(sorted(theirs.keys() - set(scan.first_differing))))
    if not theirs and not scan.not_finite:
        return content
    not_finite = tuple(_not_finite(tensor, number) for number in scan.first_not_finite[:MAX_PER_RULE])
    differing = tuple(_differing(tensor, number, theirs[number]) for number in content.differing[:MAX_PER_RULE])
    return replace(content, bad=(not_finite, differing))


#: Indices of blocks, and the largest number of different codes in a block.
_Described = tuple[Indices, int | None]
_NOT_DESCRIBED: _Described = (np.empty(0, np.int64), None)


def _described(tensors: Sequence[Tensor], scanned: Sequence[Scanned]) -> list[_Described]:
    """Decode the sampled blocks by the formats' descriptions, all blocks of a type together.

    Returns for each tensor the indices of blocks that differ from llama.cpp's decoding, and the largest number of
    different codes in a block.
    """
    out = [_NOT_DESCRIBED] * len(tensors)
    for fmt in {t.type.name: t.type.format for t in tensors}.values():
        if fmt is None:
            continue
        of = [i for i, t in enumerate(tensors) if t.type.format is fmt]
        blocks = np.concatenate([scanned[i].blocks for i in of])
        with np.errstate(invalid="ignore"):
            ours = fmt.decode(blocks)
        wrong = np.any(_unequal(ours, np.concatenate([scanned[i].theirs for i in of])), axis=1)
        codes = np.sort(np.asarray(fmt.codes(blocks)).reshape(len(blocks), -1), axis=1)
        different = 1 + (codes[:, 1:] != codes[:, :-1]).sum(axis=1)
        at = 0
        for i in of:
            own = slice(at, at + len(scanned[i].blocks))
            out[i] = np.flatnonzero(wrong[own]), int(different[own].max())
            at = own.stop
    return out


def _unequal(ours: Floats, theirs: Floats) -> npt.NDArray[np.bool_]:
    """Compare bits. Any NaN equals any other NaN."""
    return np.asarray((ours.view(np.uint32) != theirs.view(np.uint32)) & ~(np.isnan(ours) & np.isnan(theirs)))


def content_findings(content: Content) -> Iterator[Finding]:
    """Yield one finding for each rule that a scan found broken, at the first such block."""
    tensor, scan = content.tensor, content.scan
    if scan is None:
        return
    quantized = tensor.type.quantized

    def some(count: int, one: str, many: str) -> str:
        unit = "block" if quantized else "value"
        what = one if count == 1 else many
        return f"{count:,} {unit}{'' if count == 1 else 's'} of {quoted(tensor.name)} ({tensor.type.name}) {what}"

    if content.n_differing:
        first = content.bad[1][0]
        count = some(content.n_differing, "decodes", "decode")
        found = f"{count} differently, first {_place(tensor, first)}: {first.what}"
        yield finding_at(content, content.differing[0], "decode-differs", "llama.cpp's to_float in every bit", found)
    if scan.not_finite:
        first = content.bad[0][0]
        found = f"{some(scan.not_finite, 'is', 'are')} not finite, first {_place(tensor, first)}: {first.what}"
        slug = "scale-not-finite" if quantized else "value-not-finite"
        yield finding_at(content, scan.first_not_finite[0], slug, "finite numbers", found)
    if scan.subnormal_scales and quantized:
        found = f"{some(scan.subnormal_scales, 'has', 'have')} a subnormal scale"
        yield finding_at(content, scan.first_subnormal, "scale-subnormal", "scales that are normal numbers", found)


def affected(content: Content) -> dict[str, int]:
    """Return the id of each rule of `content_findings` → the number of blocks, or values, that break it."""
    scan, quantized = content.scan, content.tensor.type.quantized
    if scan is None:
        return {}
    found = {
        "decode-differs": content.n_differing,
        "scale-not-finite" if quantized else "value-not-finite": scan.not_finite,
        "scale-subnormal": scan.subnormal_scales if quantized else 0,
    }
    return {RULES[slug].id: n for slug, n in found.items() if n}


#: Least number of nonzero codes for judging their signs. If the signs of weights were independent and one of them as
#: rare as 1 %, all of these would have the same sign with probability 0.99^4096, less than 1e-17.
_SIGNED_CODES = 4096


def codes_by_side(content: Content) -> tuple[int, int]:
    """Count the codes below and above the one that means zero, in a quantized tensor without minima."""
    fmt, scan = content.tensor.type.format, content.scan
    assert fmt is not None
    assert scan is not None
    centre = fmt.offset - fmt.low
    return int(scan.codes[:centre].sum()), int(scan.codes[centre + 1 : 1 << fmt.bits].sum())


def sign_findings(contents: Sequence[Content]) -> Iterator[Finding]:
    """Yield a finding for each tensor whose weights all have one sign; one for a type if all its tensors are like that.

    Only types without a minimum are judged, whose weights are d·(code - offset). A block has one scale with one sign,
    so codes on both sides are weights of both signs.
    """
    by_type: dict[str, list[tuple[Content, bool]]] = {}
    for content in contents:
        fmt, scan = content.tensor.type.format, content.scan
        if fmt is None or scan is None or fmt.has_min:
            continue
        below, above = codes_by_side(content)
        # codes of blocks with a scale of zero mean nothing
        if below + above - scan.zero_scales * fmt.block_size >= _SIGNED_CODES:
            by_type.setdefault(fmt.name, []).append((content, not below or not above))
    for name, judged in by_type.items():
        wrong = [content for content, one_sided in judged if one_sided]
        if len(wrong) == len(judged) > 1:
            found = f"all {len(judged)} tensors of {name} have codes on only one side of zero"
            yield finding_at(wrong[0], 0, "signs-lost", "codes of both signs", found)
            continue
        for content in wrong:
            found = f"{quoted(content.tensor.name)} ({name}) has codes on only one side of zero"
            yield finding_at(content, 0, "one-sided", "codes of both signs", found)


def _raw_block(tensor: Tensor, number: int) -> tuple[int, int, npt.NDArray[np.uint8]]:
    """Return row, block and uint8[1, block_bytes]."""
    row, block = divmod(number, tensor.blocks_per_row)
    return row, block, np.array(tensor.blocks(row, row + 1)[:, block])


def _not_finite(tensor: Tensor, number: int) -> BadBlock:
    row, block, raw = _raw_block(tensor, number)
    fmt = tensor.type.format
    if fmt is None:
        value = float(decode_elements(tensor.type.name, raw[0])[0])
        return BadBlock(row, block, f"the value is {value}, not a finite number")
    with np.errstate(invalid="ignore", over="ignore"):
        d, m = fmt.scales(raw)[0], fmt.minima(raw)[0]
    finite = np.isfinite(d) & np.isfinite(m)
    if finite.all():  # MXFP4: the exponent 255, or one that makes a code infinite
        return BadBlock(row, block, f"the scale stands for NaN, or a value overflows float32 (d = {d.max():g})")
    bad = int(np.argmin(finite))
    stored = f"d = {d[bad]:g}, m = {m[bad]:g}" if fmt.has_min else f"d = {d[bad]:g}"
    of_group = f" of group {bad}" if fmt.groups > 1 else ""
    return BadBlock(row, block, f"the scale or minimum{of_group} is not finite ({stored})")


def _differing(tensor: Tensor, number: int, theirs: Floats) -> BadBlock:
    row, block, raw = _raw_block(tensor, number)
    fmt = tensor.type.format
    with np.errstate(invalid="ignore"):
        ours = fmt.decode(raw)[0] if fmt else decode_elements(tensor.type.name, raw[0])
    unequal = _unequal(ours, theirs)
    if not unequal.any():
        words = "the header in kernels/formats decodes it differently from llama.cpp; the Python decoder does not"
        return BadBlock(row, block, words, culprit="verifier")
    i = int(np.argmax(unequal))
    what = f"value {i} decodes differently from llama.cpp's to_float"
    culprit: Culprit = "llama.cpp"
    if fmt is not None and not decodes_rightly(fmt, raw):
        what += ", and from gguf-verify's second decoder"
        culprit = "verifier"
    return BadBlock(row, block, what, float(ours[i]), float(theirs[i]), culprit)


def _place(tensor: Tensor, bad: BadBlock) -> str:
    return f"row {bad.row} {'block' if tensor.type.quantized else 'element'} {bad.block}"


def finding_at(content: Content, number: int, slug: str, expected: str, found: str) -> Finding:
    """Make a finding at the block of this index."""
    tensor = content.tensor
    row, block = divmod(number, tensor.blocks_per_row)
    start = tensor.block_offset(row, block)
    stop = start + tensor.type.block_bytes
    return replace(finding(slug, start, stop, expected, found, tensor.name), part=tensor.part)
