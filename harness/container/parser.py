"""The parser: untrusted bytes in, a `GgufFile` out.

    +--------+-------------------+--------------------+-------+---------------------------------+
    | header | key-value pairs   | tensor infos       | 0...0 | data, 0...0 | data, 0...0 | ... |
    +--------+-------------------+--------------------+-------+---------------------------------+
    0        24                                               data_offset: a multiple of alignment

    header       "GGUF", u32 version, i64 number of tensors, i64 number of keys
    string       u64 length, that many bytes of UTF-8
    key-value    string key, u32 value type, value
    array value  u32 element type, u64 count, the elements without padding
    tensor info  string name, u32 number of dimensions, i64 each, u32 type, u64 offset from data_offset

It reads front to back and takes nothing on trust: every length is compared with the bytes that remain before it is
used, so no allocation and no loop is larger than the file; sizes are Python integers, so no product wraps; arrays in
arrays are read with a stack of bounded depth, not by recursion. What cannot be read on from raises `Refused`, which
`parse` catches. Where the data of the tensors lie is judged by `layout.py`, when all descriptions are read.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

import numpy as np

from ..formats import TensorType, tensor_type
from .file import Bytes, GgufFile, Mapped, Tensor
from .layout import Info, Layout
from .records import Finding, Range, Refused, capped, finding, refuse
from .text import printable, quoted

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
ALIGNED_TO = 8  # the GGUF specification asks for alignments that are multiples of it
MAX_KEY = 65535  # bytes, by the GGUF specification
MAX_TENSOR_NAME = 63  # bytes: ggml's GGML_MAX_NAME less the NUL
MAX_STRING = 1 << 30  # bytes: llama.cpp's GGUF_MAX_STRING_LENGTH
MAX_ELEMENTS = 1 << 30  # llama.cpp's GGUF_MAX_ARRAY_ELEMENTS
MAX_DIMENSIONS = 4
MAX_NESTING = 4  # levels of arrays in arrays, the innermost included; no known file has more than one
INT64_MAX = (1 << 63) - 1
REMOVED_TYPES = {4, 5, 31, 32, 33, 36, 37, 38}

# The shortest key-value pair, tensor info, string and array value: what bounds a count before it is looped over.
MIN_PAIR = 8 + 4 + 1
MIN_INFO = 8 + 4 + 4 + 8
MIN_STRING = 8
MIN_ARRAY = 4 + 8

# The value types by number: a name, and the layout of those that have a fixed size.
VALUE_TYPES = (
    ("uint8", "<B"), ("int8", "<b"), ("uint16", "<H"), ("int16", "<h"), ("uint32", "<I"), ("int32", "<i"),
    ("float32", "<f"), ("bool", "<B"), ("string", ""), ("array", ""), ("uint64", "<Q"), ("int64", "<q"),
    ("float64", "<d"),
)  # fmt: skip
TYPE_NAMES = tuple(name for name, _ in VALUE_TYPES)
SCALARS = {number: struct.Struct(layout) for number, (_, layout) in enumerate(VALUE_TYPES) if layout}
UINT32, BOOL, STRING, ARRAY = (TYPE_NAMES.index(name) for name in ("uint32", "bool", "string", "array"))
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")

SHOWN = 60  # characters of a value in the byte map


def parse(path: Path | str, part: int = 0) -> GgufFile:
    """Reads one file; never raises for what it holds: `refused` says why reading ended early.

    Args:
        path: the file; parts of a split model are not looked for.
        part: the index to give it in a split model.

    Raises MalformedFile for what is not a readable regular file.
    """
    mapped = Mapped(Path(path))
    parser = _Parser(mapped, part)
    file = GgufFile(mapped, part)
    try:
        parser.read_all()
    except Refused as refused:
        parser.findings.append(refused.finding)
    parser.fill(file)
    return file


def _of(what: str, owner: str) -> str:
    return f"{what} of {quoted(owner)}" if owner else what


class _Parser:
    """A cursor on the bytes, and what was found up to it. `pos` never passes `size`."""

    def __init__(self, mapped: Mapped, part: int) -> None:
        self.mapped = mapped
        self.part = part
        self.size = mapped.size
        self.bytes: Bytes = mapped.read()
        self.view = self.bytes.data
        self.pos = 0
        self.ranges: list[Range] = []
        self.findings: list[Finding] = []
        self.version = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.data_offset = 0
        self.metadata: dict[str, object] = {}
        self.values: dict[str, Range] = {}
        self.infos: dict[str, Info] = {}
        self.located: list[Info] = []

    def fill(self, file: GgufFile) -> None:
        """Hands everything over, with the unread rest of the file mapped as such."""
        covered = self.ranges[-1].stop if self.ranges else 0
        if covered < self.size:
            self.ranges.append(Range(covered, self.size, "unread"))
        file.version, file.alignment, file.data_offset = self.version, self.alignment, self.data_offset
        file.metadata, file.value_ranges = self.metadata, self.values
        file.tensors = {
            i.name: Tensor(i.name, i.type, i.shape, i.start, i.described, self.mapped, self.part) for i in self.located
        }
        file.byte_map = tuple(self.ranges)
        file.findings = capped(self.findings, self.part)
        file.refused = next((f for f in file.findings if f.effect == "refuse"), None)

    # -- the cursor ---------------------------------------------------------------------------------------------

    def own(self, start: int, kind: str, owner: str = "", note: str = "") -> Range:
        """Gives the bytes from `start` to the cursor to a field."""
        owned = Range(start, self.pos, kind, owner, note)
        if start < self.pos:  # the value of an empty array has no bytes
            self.ranges.append(owned)
        return owned

    def number(self, layout: struct.Struct, what: str, owner: str = "") -> int:
        """The number at the cursor, which moves behind it. `what` it is, and of whom, is for the message."""
        if self.size - self.pos < layout.size:
            refuse(
                "truncated", self.pos, self.size, f"{layout.size} bytes of {_of(what, owner)}",
                f"the file ends after {self.size - self.pos}", owner,
            )  # fmt: skip
        value: int = layout.unpack_from(self.view, self.pos)[0]
        self.pos += layout.size
        return value

    def text(self, what: str, owner: str = "") -> tuple[str, bool]:
        """The string at the cursor, bytes that are not UTF-8 as surrogates, and whether there were none of those."""
        start = self.pos
        length = self.number(U64, f"the length of {what}", owner)
        remain = self.size - self.pos
        if length > min(remain, MAX_STRING):
            refuse(
                "string-length", start, self.pos, f"at most {min(remain, MAX_STRING)} bytes of {_of(what, owner)}",
                f"a length of {length}", owner,
            )  # fmt: skip
        raw = self.view[self.pos : self.pos + length]
        self.pos += length
        try:
            return str(raw, "utf-8"), True
        except UnicodeDecodeError:
            return str(raw, "utf-8", "surrogateescape"), False

    def warn(self, slug: str, start: int, stop: int, expected: str, found: str, owner: str = "") -> None:
        self.findings.append(finding(slug, start, stop, expected, found, owner))

    # -- header -------------------------------------------------------------------------------------------------

    def read_all(self) -> None:
        n_tensors, n_keys = self.read_header()
        for _ in range(n_keys):
            self.read_pair()
        self.read_alignment()
        for _ in range(n_tensors):
            self.read_info()
        alignment_at = self.values.get(ALIGNMENT_KEY)
        layout = Layout(self.bytes, self.pos, self.alignment, alignment_at, list(self.infos.values()))
        try:
            layout.locate()
            layout.map()
        finally:
            self.data_offset, self.located = layout.data_offset, layout.located
            self.ranges += layout.ranges
            self.findings += layout.findings

    def read_header(self) -> tuple[int, int]:
        magic = bytes(self.view[:4])
        if magic != MAGIC[: len(magic)] or not magic:
            shown = printable(magic.decode("ascii", "surrogateescape"))
            refuse(
                "magic",
                0,
                len(magic),
                "the magic 'GGUF'",
                f"the file starts with '{shown}'" if magic else "an empty file",
            )
        self.number(U32, "magic")
        self.own(0, "magic")
        version = self.number(U32, "version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            slug = "big-endian" if version & 0xFFFF == 0 and swapped else "version"
            found = f"{swapped} in big-endian byte order" if slug == "big-endian" else f"{version}"
            refuse(slug, 4, 8, "version 2 or 3 in little-endian byte order", f"version {found}")
        self.version = version
        self.own(4, "version", note=str(version))
        n_tensors = self.count("tensor", MIN_INFO)
        n_keys = self.count("key", MIN_PAIR)
        return n_tensors, n_keys

    def count(self, what: str, smallest: int) -> int:
        """A count of the header, of things that take at least `smallest` bytes each."""
        start = self.pos
        count = self.number(U64, f"the number of {what}s")
        # Both counts are judged by what remains behind the header, of which the second count is the last part.
        room = max(self.size - 24, 0) // smallest
        if count > room:
            signed = f" (-{(1 << 64) - count} to llama.cpp)" if count > INT64_MAX else ""
            refuse(
                f"{what}-count", start, self.pos, f"at most {room} {what}s, which take {smallest} bytes each",
                f"a count of {count}{signed}",
            )  # fmt: skip
        self.own(start, f"{what} count", note=str(count))
        return count

    # -- metadata -----------------------------------------------------------------------------------------------

    def read_pair(self) -> None:
        start = self.pos
        key, clean = self.text("a key")
        if not key:
            refuse("empty-key", start, self.pos, "a key of at least one byte", "an empty key")
        if "\0" in key:
            refuse("nul-in-name", start, self.pos, "a key without NUL", f"the key {quoted(key)}", key)
        if key in self.metadata:
            first = self.values[key].start
            refuse(
                "duplicate-key", start, self.pos, "each key once", f"the key {quoted(key)} again, whose value "
                f"stands at byte {first} already", key,
            )  # fmt: skip
        if self.pos - start - 8 > MAX_KEY:
            self.warn(
                "long-key", start, self.pos, f"at most {MAX_KEY} bytes of key", f"{self.pos - start - 8} bytes: "
                f"{quoted(key)}", key,
            )  # fmt: skip
        self.own(start, "key", key)
        if not clean:
            self.warn("bad-utf8", start + 8, self.pos, "a key in UTF-8", f"{quoted(key)}", key)
        start = self.pos
        kind = self.value_type("value type", key)
        self.own(start, "value type", key, TYPE_NAMES[kind])
        if kind == ARRAY:
            value = self.array(key)
        else:
            start = self.pos
            value = self.scalar(kind, key)
            self.own(start, "value", key, str(value)[:SHOWN] if kind != STRING else "")
        self.metadata[key] = value
        self.values[key] = self.ranges[-1]

    def value_type(self, what: str, key: str) -> int:
        kind = self.number(U32, f"the {what}", key)
        if kind >= len(TYPE_NAMES):
            refuse("value-type", self.pos - 4, self.pos, f"a number from 0 to {len(TYPE_NAMES) - 1}",
                   f"{what} {kind} of {quoted(key)}", key)  # fmt: skip
        return kind

    def scalar(self, kind: int, key: str) -> object:
        start = self.pos
        if kind == STRING:
            text, clean = self.text("the value", key)
            if not clean:
                self.warn("bad-utf8", start + 8, self.pos, f"the value of {quoted(key)} in UTF-8", quoted(text), key)
            return text
        value = self.number(SCALARS[kind], "the value", key)
        if kind != BOOL:
            return value
        if value > 1:
            self.warn("bool-value", start, self.pos, f"0 or 1 for {quoted(key)}", f"the bool {value}", key)
        return bool(value)

    def array(self, key: str) -> object:
        """The array at the cursor. One in which no array nests has three ranges, another one only."""
        start = self.pos
        kind, count = self.array_head(key)
        if kind != ARRAY:
            end, self.pos = self.pos, start + 4
            self.own(start, "element type", key, TYPE_NAMES[kind])
            self.pos = end
            self.own(start + 4, "element count", key, str(count))
            value = self.elements(kind, count, key)
            self.own(end, "value", key)
            return value
        head = finding("nested-array", start, self.pos, f"no array in the array {quoted(key)}", f"{count} of them", key)
        root: list[object] = []
        stack = [(root, count)]
        while stack:  # each round takes at least 12 bytes or ends an array that took them
            items, left = stack.pop()
            if not left:
                continue
            stack.append((items, left - 1))
            here = self.pos
            kind, count = self.array_head(key)
            if kind != ARRAY:
                items.append(self.elements(kind, count, key))
                continue
            if len(stack) + 1 == MAX_NESTING:
                refuse(
                    "nested-too-deep", here, self.pos, f"arrays at most {MAX_NESTING} deep in {quoted(key)}",
                    f"arrays in one that is {MAX_NESTING} deep", key,
                )  # fmt: skip
            child: list[object] = []
            items.append(child)
            stack.append((child, count))
        self.own(start, "value", key, "nested arrays")
        self.findings.append(head)
        return root

    def array_head(self, key: str) -> tuple[int, int]:
        """Element type and count of the array at the cursor; that many elements can fit in the file."""
        kind = self.value_type("element type", key)
        start = self.pos
        count = self.number(U64, "the length", key)
        smallest = {STRING: MIN_STRING, ARRAY: MIN_ARRAY}.get(kind) or SCALARS[kind].size
        room = min((self.size - self.pos) // smallest, MAX_ELEMENTS)
        if count > room:
            refuse(
                "array-length", start, self.pos, f"at most {room} elements of {TYPE_NAMES[kind]} in {quoted(key)}",
                f"a count of {count}", key,
            )  # fmt: skip
        return kind, count

    def elements(self, kind: int, count: int, key: str) -> object:
        """`count` elements at the cursor, which the file is known to have room for, strings except."""
        if kind == STRING:
            return self.strings(count, key)
        start = self.pos
        self.pos += count * SCALARS[kind].size
        # A copy: metadata stay readable when the file is closed or cut.
        values = np.frombuffer(self.view[start : self.pos], dtype=SCALARS[kind].format).copy()
        if kind == BOOL:
            odd = np.flatnonzero(values > 1)
            if len(odd):
                first = int(odd[0])
                more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
                self.warn(
                    "bool-value", start + first, start + first + 1, f"0 or 1 for each element of {quoted(key)}",
                    f"the bool {values[first]} in element {first}{more}", key,
                )  # fmt: skip
            values = values.astype(np.bool_)
        values.flags.writeable = False
        return values

    def strings(self, count: int, key: str) -> list[str]:
        """A vocabulary is 100,000 of them and more: the loop is `text`, written out."""
        view, size, pos, length_of = self.view, self.size, self.pos, U64.unpack_from
        items: list[str] = []
        bad = 0
        for i in range(count):
            if size - pos < 8:
                refuse(
                    "truncated", pos, size, f"the length of element {i} of {quoted(key)}",
                    f"the file ends after {size - pos} bytes of it", key,
                )  # fmt: skip
            length = length_of(view, pos)[0]
            start = pos + 8
            if length > size - start or length > MAX_STRING:
                refuse(
                    "string-length", pos, start, f"at most {min(size - start, MAX_STRING)} bytes of element {i} of "
                    f"{quoted(key)}", f"a length of {length}", key,
                )  # fmt: skip
            pos = start + length
            try:
                items.append(str(view[start:pos], "utf-8"))
            except UnicodeDecodeError:
                items.append(str(view[start:pos], "utf-8", "surrogateescape"))
                bad += 1
                if bad == 1:
                    first = (start, pos, i)
        self.pos = pos
        if bad:
            start, stop, i = first
            self.warn(
                "bad-utf8", start, stop, f"each element of {quoted(key)} in UTF-8",
                f"{quoted(items[i])} in element {i}" + (f" and {bad - 1} more" if bad > 1 else ""), key,
            )  # fmt: skip
        return items

    def read_alignment(self) -> None:
        key = ALIGNMENT_KEY
        if key not in self.metadata:
            return
        at = self.values[key]
        kind = next(r for r in self.ranges if r.kind == "value type" and r.owner == key)
        if kind.note != TYPE_NAMES[UINT32]:
            refuse("alignment-type", kind.start, kind.stop, f"{key} as uint32", f"type {kind.note}", key)
        value = self.metadata[key]
        assert isinstance(value, int)
        if value == 0 or value & (value - 1):
            refuse("alignment-value", at.start, at.stop, f"a power of two as {key}", f"alignment {value}", key)
        if value % ALIGNED_TO:
            self.warn("alignment-small", at.start, at.stop, f"a multiple of {ALIGNED_TO} as {key}",
                      f"alignment {value}", key)  # fmt: skip
        self.alignment = value

    # -- tensors ------------------------------------------------------------------------------------------------

    def read_info(self) -> None:
        start = self.pos
        name, clean = self.text("a tensor's name")
        length = self.pos - start - 8
        if "\0" in name:
            refuse("nul-in-name", start, self.pos, "a tensor name without NUL", f"the name {quoted(name)}", name)
        if length > MAX_TENSOR_NAME:
            refuse(
                "long-tensor-name", start, self.pos, f"at most {MAX_TENSOR_NAME} bytes of tensor name",
                f"{length} bytes: {quoted(name)}", name,
            )  # fmt: skip
        if name in self.infos:
            refuse(
                "duplicate-tensor", start, self.pos, "each tensor once",
                f"the name {quoted(name)} again, from byte {self.infos[name].described[0].start}", name,
            )  # fmt: skip
        if not name:
            self.warn("empty-tensor-name", start, self.pos, "a tensor name of at least one byte", "an empty name")
        if not clean:
            self.warn("bad-utf8", start + 8, self.pos, "a tensor name in UTF-8", quoted(name), name)
        named = self.own(start, "tensor name", name)
        shape, dimensions = self.dimensions(name)
        kind, typed = self.tensor_type(name, shape, dimensions)
        start = self.pos
        offset = self.number(U64, "the offset", name)
        self.infos[name] = Info(
            name, kind, shape, offset, (named, dimensions, typed, self.own(start, "offset", name, str(offset)))
        )

    def dimensions(self, name: str) -> tuple[tuple[int, ...], Range]:
        start = self.pos
        count = self.number(U32, "the number of dimensions", name)
        if count > MAX_DIMENSIONS:
            refuse("too-many-dimensions", start, self.pos, f"at most {MAX_DIMENSIONS} of {quoted(name)}",
                    f"{count} dimensions", name)  # fmt: skip
        shape = []
        for i in range(count):
            size = self.number(U64, "a dimension", name)
            if size > INT64_MAX:
                refuse(
                    "negative-dimension", self.pos - 8, self.pos, f"a dimension from 0 to 2^63 - 1 of {quoted(name)}",
                    f"{size - (1 << 64)} as dimension {i}", name,
                )  # fmt: skip
            shape.append(size)
        # Zero dimensions hide an overflow of the others from a product, not from code that multiplies in another order.
        if prod(max(size, 1) for size in shape) > INT64_MAX:
            refuse("dimensions-overflow", start + 4, self.pos, f"fewer than 2^63 elements in {quoted(name)}",
                    " x ".join(map(str, shape)), name)  # fmt: skip
        return tuple(shape), self.own(start, "dimensions", name, " x ".join(map(str, shape)))

    def tensor_type(self, name: str, shape: tuple[int, ...], dimensions: Range) -> tuple[TensorType, Range]:
        start = self.pos
        number = self.number(U32, "the type", name)
        kind = tensor_type(number)
        if kind is None:
            was = ", which was removed" if number in REMOVED_TYPES else ", which is not known"
            refuse("tensor-type", start, self.pos, f"a known ggml type of {quoted(name)}", f"type {number}{was}", name)
        typed = self.own(start, "type", name, kind.name)
        row = shape[0] if shape else 1
        if row % kind.block_size:
            # The first dimension is to blame, or the type: the range is of the dimension.
            stop = dimensions.start + 12 if shape else dimensions.stop
            refuse(
                "partial-block", dimensions.start + 4 if shape else dimensions.start, stop,
                f"rows of {quoted(name)} in whole blocks of {kind.block_size} ({kind.name})", f"rows of {row}", name,
            )  # fmt: skip
        if prod(max(size, 1) for size in shape) // kind.block_size * kind.block_bytes > INT64_MAX:
            refuse("dimensions-overflow", dimensions.start + 4, dimensions.stop, f"fewer than 2^63 bytes in "
                    f"{quoted(name)}", f"{' x '.join(map(str, shape))} of {kind.name}", name)  # fmt: skip
        return kind, typed
