"""Parser: reads untrusted bytes into a `GgufFile`.

    +--------+-------------------+--------------------+-------+---------------------------------+
    | header | key-value pairs   | tensor infos       | 0...0 | data, 0...0 | data, 0...0 | ... |
    +--------+-------------------+--------------------+-------+---------------------------------+
    0        24                                               data_offset: a multiple of alignment

    header       "GGUF", u32 version, i64 number of tensors, i64 number of keys
    string       u64 length, that many bytes of UTF-8
    key-value    string key, u32 value type, value
    array value  u32 element type, u64 count, the elements without padding
    tensor info  string name, u32 number of dimensions, i64 each, u32 type, u64 offset from data_offset

The parser reads front to back and trusts nothing. It compares every length with the remaining bytes before it uses the
length, so no loop is longer than the file. A `Budget` limits what is kept in memory; values beyond it stay views of the
file. Sizes are Python integers, so no product wraps. Arrays in arrays are read with a stack of bounded depth, not by
recursion. Where reading cannot go on, `Refused` is raised, which `parse` catches. After all descriptions are read,
`layout.py` checks where the tensors' data are.
"""

from __future__ import annotations

import codecs
import struct
from array import array
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..formats.tensor_types import TensorType, tensor_type
from ..support.text import counted, printable, quoted
from .file import GgufFile, Tensor
from .layout import PIECE, Info, Layout
from .mapped import Bytes, Mapped
from .records import Findings, Range, Refused, finding, refuse
from .storage import (
    MAX_KEY_BYTES,
    MAX_KEYS,
    MAX_NESTED,
    MAX_STRINGS,
    MAX_TENSORS,
    STRIDE,
    Budget,
    ByteMap,
    Metadata,
    Strings,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
ALIGNED_TO = 8  # by the GGUF specification, alignments are multiples of it
MAX_KEY = 65535  # bytes, by the GGUF specification
MAX_TENSOR_NAME = 63  # bytes: ggml's GGML_MAX_NAME minus the NUL
MAX_STRING = 1 << 30  # bytes: llama.cpp's GGUF_MAX_STRING_LENGTH
MAX_ELEMENTS = 1 << 30  # llama.cpp's GGUF_MAX_ARRAY_ELEMENTS
MAX_DIMENSIONS = 4
MAX_NESTING = 4  # levels of arrays in arrays, including the innermost; no known file has more than one
INT64_MAX = (1 << 63) - 1
REMOVED_TYPES = {4, 5, 31, 32, 33, 36, 37, 38}

HEADER = 4 + 4 + 8 + 8  # bytes
# Bytes of the shortest key-value pair, tensor info, string and array value: they bound a count before it is used.
MIN_PAIR = 8 + 4 + 1
MIN_INFO = 8 + 4 + 4 + 8
MIN_STRING = 8
MIN_ARRAY = 4 + 8

# The value types by number: the name, and the layout if the size is fixed.
VALUE_TYPES = (
    ("uint8", "<B"), ("int8", "<b"), ("uint16", "<H"), ("int16", "<h"), ("uint32", "<I"), ("int32", "<i"),
    ("float32", "<f"), ("bool", "<B"), ("string", ""), ("array", ""), ("uint64", "<Q"), ("int64", "<q"),
    ("float64", "<d"),
)  # fmt: skip
TYPE_NAMES = tuple(name for name, _ in VALUE_TYPES)
SCALARS = {number: struct.Struct(layout) for number, (_, layout) in enumerate(VALUE_TYPES) if layout}
UINT32, BOOL, STRING, ARRAY = (TYPE_NAMES.index(name) for name in ("uint32", "bool", "string", "array"))
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")

SHOWN = 260  # the most bytes of a string in a message: 65 characters, one more than `quoted` does
MAX_SHAPES = 4096  # cached shapes and types
CHUNK = 128 * STRIDE  # strings checked at a time
JOINED = 1 << 18  # the most bytes of strings decoded at a time


def parse(path: Path | str, part: int = 0, budget: Budget | None = None, load: int = 0) -> GgufFile:
    """Read one file. Its contents never raise an exception: `GgufFile.refused` says why reading ended early.

    Args:
        path: the file. Other parts of a split model are not read.
        part: its index in a split model.
        budget: what earlier parts have left of the budget; a full budget by default.
        load: bytes at the start that are loaded first, so that other threads do not wait for this file's disk.

    Raises NoSuchFile if there is no regular file at that path, EnvironmentFault if it cannot be read or mapped,
    MalformedFile if it shrinks while it is read.
    """
    mapped = Mapped(Path(path))
    file = GgufFile(mapped, part)
    try:
        mapped.load(load)
        parser = _Parser(mapped, part, budget or Budget())
        try:
            parser.read_all()
        except Refused as refused:
            parser.findings.add(refused.finding)
        parser.fill(file)
    except BaseException:
        file.close()
        raise
    return file


def _of(what: str, owner: str) -> str:
    return f"{what} of {quoted(owner)}" if owner else what


class _Parser:
    """A cursor in the bytes, with everything found before it. `pos` never exceeds `size`."""

    def __init__(self, mapped: Mapped, part: int, budget: Budget) -> None:
        self.mapped = mapped
        self.part = part
        self.budget = budget
        self.size = mapped.size
        self.bytes: Bytes = mapped.read()
        self.view = self.bytes.data
        self.pos = 0
        self.ranges = ByteMap()
        self.findings = Findings()
        self.version = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.alignment_type: Range
        self.data_offset = 0
        self.metadata: dict[str, object] = {}
        self.borrowed: set[str] = set()
        self.values: dict[str, Range] = {}
        self.infos: dict[str, Info] = {}
        self.located: list[Info] = []

    def fill(self, file: GgufFile) -> None:
        """Store everything in the file's record. The unread rest of the file is recorded as such."""
        covered = self.ranges[-1].stop if self.ranges else 0
        if covered < self.size:
            self.ranges.add(covered, self.size, "unread")
        file.version, file.alignment, file.data_offset = self.version, self.alignment, self.data_offset
        file.metadata, file.value_ranges = Metadata(self.mapped, self.metadata, self.borrowed), self.values
        file.tensors = {
            i.name: Tensor(i.name, i.type, i.shape, i.start, self.ranges, i.at, self.mapped, self.part)
            for i in self.located
        }
        file.byte_map, file.header_end = self.ranges, self.pos
        file.findings = self.findings.listed(self.part)
        file.refused = next((f for f in file.findings if f.effect == "refuse"), None)

    # -- the cursor ---------------------------------------------------------------------------------------------

    def own(self, start: int, kind: str, owner: str = "", note: object = "") -> None:
        """Record which field owns the bytes from `start` to the cursor."""
        if start < self.pos:  # not so for the value of an empty array
            self.ranges.add(start, self.pos, kind, owner, note)

    def number(self, layout: struct.Struct, what: str, owner: str = "") -> int:
        """Read the number at the cursor and advance. `what` and `owner` name it in a message."""
        if self.size - self.pos < layout.size:
            expected = f"{layout.size} bytes of {_of(what, owner)}"
            self.truncated(self.pos, self.size, self.pos + layout.size, expected, owner)
        value: int = layout.unpack_from(self.view, self.pos)[0]
        self.pos += layout.size
        return value

    def string(self, what: str, owner: str = "") -> tuple[int, int]:
        """Read the string at the cursor and advance; return the start and stop of its bytes."""
        start = self.pos
        length = self.number(U64, f"the length of {what}", owner)
        self.check_string(start, length, what, owner)
        self.pos += length
        return self.pos - length, self.pos

    def check_string(self, start: int, length: int, what: str, owner: str) -> None:
        """Refuse the string whose length is at `start` and whose bytes start at the cursor, if it is too long."""
        if length > MAX_STRING:
            expected = f"at most {MAX_STRING} bytes of {_of(what, owner)}"
            refuse("string-length", start, self.pos, expected, f"a length of {length}", owner)
        if length > self.size - self.pos:
            self.truncated(start, self.pos, self.pos + length, f"{length} bytes of {_of(what, owner)}", owner)

    def truncated(self, start: int, stop: int, size: int, expected: str, owner: str = "") -> NoReturn:
        """Refuse the file because it ends early: by the numbers read so far, it has at least `size` bytes.

        A number that no valid file has is refused by its own rule before it comes to this.
        """
        refuse(
            "truncated", start, stop, expected, f"the file ends after {self.size:,} of at least {size:,} bytes", owner
        )

    def decoded(self, start: int, stop: int) -> tuple[str, bool]:
        """Decode bytes as text, with surrogates for bytes that are not UTF-8; also return whether all are UTF-8."""
        raw = self.view[start:stop]
        try:
            return str(raw, "utf-8"), True
        except UnicodeDecodeError:
            return str(raw, "utf-8", "surrogateescape"), False

    def shown(self, start: int, stop: int) -> str:
        """Format bytes for a message: shortened, escaped and in quotes."""
        return quoted(self.decoded(start, min(stop, start + SHOWN))[0])

    def is_utf8(self, start: int, stop: int) -> bool:
        """Return whether bytes are UTF-8. They are decoded in pieces, since a str takes up to four times its bytes."""
        try:
            if stop - start <= PIECE:
                str(self.view[start:stop], "utf-8")
                return True
            decoder = codecs.getincrementaldecoder("utf-8")()
            for at in range(start, stop, PIECE):
                decoder.decode(bytes(self.view[at : min(at + PIECE, stop)]), at + PIECE >= stop)
        except UnicodeDecodeError:
            return False
        return True

    def keep(self, start: int, stop: int, key: str) -> bytes | memoryview:
        """Return a copy of bytes, so that metadata stay readable when the file is closed or truncated.

        If the budget has no room for a copy, it is a view of the file.
        """
        if self.budget.hold(stop - start):
            return bytes(self.view[start:stop])
        self.borrowed.add(key)
        return self.view[start:stop]

    def warn(self, slug: str, start: int, stop: int, expected: str, found: str, owner: str = "") -> None:
        self.findings.add(finding(slug, start, stop, expected, found, owner))

    # -- header -------------------------------------------------------------------------------------------------

    def read_all(self) -> None:
        n_tensors, n_keys = self.read_header()
        for _ in range(n_keys):
            self.read_pair()
        self.read_alignment()
        self.read_infos(n_tensors)
        alignment_at = self.values.get(ALIGNMENT_KEY)
        infos = list(self.infos.values())
        layout = Layout(self.mapped, self.pos, self.alignment, alignment_at, infos, self.ranges, self.findings)
        try:
            layout.locate()
            layout.map()
        finally:
            self.data_offset, self.located = layout.data_offset, layout.located

    def read_header(self) -> tuple[int, int]:
        magic = bytes(self.view[:4])
        if magic != MAGIC[: len(magic)] or not magic:
            shown = printable(magic.decode("ascii", "surrogateescape"))
            refuse(
                "magic",
                0,
                len(magic),
                "the magic 'GGUF'",
                f"the file starts with '{shown}'{_instead(self.view)}" if magic else "an empty file",
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
        self.own(4, "version", note=version)
        n_tensors = self.count("tensor", MIN_INFO, self.budget.tensors, MAX_TENSORS)
        self.budget.tensors -= n_tensors
        n_keys = self.count("key", MIN_PAIR, self.budget.keys, MAX_KEYS)
        self.budget.keys -= n_keys
        return n_tensors, n_keys

    def count(self, what: str, smallest: int, left: int, limit: int) -> int:
        """Read a count in the header, of items of at least `smallest` bytes each.

        The budget has `left` of `limit` left.
        """
        start = self.pos
        count = self.number(U64, f"the number of {what}s")
        if count > left:
            others = f", {limit - left} of them in other parts" if left < limit else ""
            signed = f" (-{(1 << 64) - count} to llama.cpp)" if count > INT64_MAX else ""
            refuse(f"{what}-count", start, self.pos, f"at most {limit} {what}s{others}", f"a count of {count}{signed}")
        # Both counts are compared with the bytes after the header, which ends with the second count.
        if count * smallest > max(self.size - HEADER, 0):
            expected = f"{counted(count, f'{what}s')} of at least {smallest} bytes each"
            self.truncated(start, self.pos, HEADER + count * smallest, expected)
        self.own(start, f"{what} count", note=count)
        return count

    # -- metadata -----------------------------------------------------------------------------------------------

    def read_pair(self) -> None:
        start = self.pos
        at, stop = self.string("a key")
        length = stop - at
        if not length:
            refuse("empty-key", start, stop, "a key of at least one byte", "an empty key")
        if length > self.budget.key_bytes:
            before = MAX_KEY_BYTES - self.budget.key_bytes
            refuse(
                "metadata-size",
                start,
                stop,
                f"at most {MAX_KEY_BYTES} bytes of keys in all",
                f"{length} bytes after {before} before them: {self.shown(at, stop)}",
            )
        self.budget.key_bytes -= length
        key, clean = self.decoded(at, stop)
        if "\0" in key:
            refuse("nul-in-name", start, self.pos, "a key without NUL", f"the key {quoted(key)}", key)
        if key in self.metadata:
            first = self.values[key].start
            refuse(
                "duplicate-key",
                start,
                self.pos,
                "each key once",
                f"the key {quoted(key)} again, whose value is at byte {first} already",
                key,
            )
        if length > MAX_KEY:
            self.warn("long-key", start, stop, f"at most {MAX_KEY} bytes of key", f"{length} bytes: {quoted(key)}", key)
        self.own(start, "key", key)
        if not clean:
            self.warn("bad-utf8", start + 8, self.pos, "a key in UTF-8", f"{quoted(key)}", key)
        start = self.pos
        kind = self.value_type("value type", key)
        self.own(start, "value type", key, TYPE_NAMES[kind])
        if key == ALIGNMENT_KEY:
            self.alignment_type = self.ranges[-1]
        if kind == ARRAY:
            value = self.array(key)
        else:
            start = self.pos
            value = self.scalar(kind, key)
            self.own(start, "value", key, value if kind != STRING else "")
        self.metadata[key] = value
        self.values[key] = self.ranges[-1]

    def value_type(self, what: str, key: str) -> int:
        kind = self.number(U32, f"the {what}", key)
        if kind >= len(TYPE_NAMES):
            refuse(
                "value-type",
                self.pos - 4,
                self.pos,
                f"a number from 0 to {len(TYPE_NAMES) - 1}",
                f"{what} {kind} of {quoted(key)}",
                key,
            )
        return kind

    def scalar(self, kind: int, key: str) -> object:
        start = self.pos
        if kind == STRING:
            start, stop = self.string("the value", key)
            value: object
            if self.budget.hold(4 * (stop - start)):
                value, clean = self.decoded(start, stop)
            else:
                value, clean = self.view[start:stop], self.is_utf8(start, stop)
                self.borrowed.add(key)
            if not clean:
                self.warn("bad-utf8", start, stop, f"the value of {quoted(key)} in UTF-8", self.shown(start, stop), key)
            return value
        number = self.number(SCALARS[kind], "the value", key)
        if kind != BOOL:
            return number
        if number > 1:
            self.warn("bool-value", start, self.pos, f"0 or 1 for {quoted(key)}", f"the bool {number}", key)
        return bool(number)

    def array(self, key: str) -> object:
        """Read the array at the cursor. It gets three byte ranges, or one if it contains arrays."""
        start = self.pos
        kind, count = self.array_head(key)
        if kind != ARRAY:
            end, self.pos = self.pos, start + 4
            self.own(start, "element type", key, TYPE_NAMES[kind])
            self.pos = end
            self.own(start + 4, "element count", key, count)
            value = self.elements(kind, count, key)
            self.own(end, "value", key)
            return value
        head = finding("nested-array", start, self.pos, f"no array in the array {quoted(key)}", f"{count} of them", key)
        root: list[object] = []
        stack = [(root, count)]
        while stack:  # each round consumes at least 12 bytes or ends an array that did
            items, left = stack.pop()
            if not left:
                continue
            stack.append((items, left - 1))
            here = self.pos
            kind, count = self.array_head(key)
            if not self.budget.nested:
                refuse(
                    "metadata-size",
                    here,
                    self.pos,
                    f"at most {MAX_NESTED} arrays in arrays",
                    f"one more in {quoted(key)}",
                    key,
                )
            self.budget.nested -= 1
            if kind != ARRAY:
                items.append(self.elements(kind, count, key))
                continue
            if len(stack) + 1 == MAX_NESTING:
                refuse(
                    "nested-too-deep",
                    here,
                    self.pos,
                    f"arrays at most {MAX_NESTING} deep in {quoted(key)}",
                    f"arrays in one that is {MAX_NESTING} deep",
                    key,
                )
            child: list[object] = []
            items.append(child)
            stack.append((child, count))
        self.own(start, "value", key, "nested arrays")
        self.findings.add(head)
        return root

    def array_head(self, key: str) -> tuple[int, int]:
        """Read element type and count of the array at the cursor. The file has room for that many elements."""
        kind = self.value_type("element type", key)
        start = self.pos
        count = self.number(U64, "the length", key)
        if count > MAX_ELEMENTS:
            expected = f"at most {MAX_ELEMENTS} elements of {TYPE_NAMES[kind]} in {quoted(key)}"
            refuse("array-length", start, self.pos, expected, f"a count of {count}", key)
        smallest = {STRING: MIN_STRING, ARRAY: MIN_ARRAY}.get(kind) or SCALARS[kind].size
        if count * smallest > self.size - self.pos:
            expected = f"{counted(count, 'elements')} of {TYPE_NAMES[kind]} in {quoted(key)}"
            self.truncated(start, self.pos, self.pos + count * smallest, expected, key)
        if kind == STRING:
            if count > self.budget.strings:
                before = MAX_STRINGS - self.budget.strings
                refuse(
                    "metadata-size",
                    start,
                    self.pos,
                    f"at most {MAX_STRINGS} strings in arrays in all",
                    f"{count} in {quoted(key)} after {before} before them",
                    key,
                )
            self.budget.strings -= count
        return kind, count

    def elements(self, kind: int, count: int, key: str) -> object:
        """Read `count` elements at the cursor. The file is known to have room for them, unless they are strings."""
        if kind == STRING:
            return self.strings(count, key)
        start = self.pos
        self.pos += count * SCALARS[kind].size
        raw = self.keep(start, self.pos, key)
        values = np.frombuffer(raw, dtype=SCALARS[kind].format)
        if kind == BOOL:
            self.check_bools(start, self.pos, key)
            # A copy turns every byte but 0 into True; a view of the file leaves the bytes unchanged.
            values = values.astype(np.bool_) if isinstance(raw, bytes) else values.view(np.bool_)
            values.flags.writeable = False
        return values

    def check_bools(self, start: int, stop: int, key: str) -> None:
        first, count = start, 0
        for at in range(start, stop, PIECE):
            odd = self.bytes[at : min(at + PIECE, stop)] > 1
            if not count:
                first = at + int(odd.argmax())
            count += int(np.count_nonzero(odd))
        more = f" and {count - 1} more" if count > 1 else ""
        if count:
            self.warn(
                "bool-value",
                first,
                first + 1,
                f"0 or 1 for each element of {quoted(key)}",
                f"the bool {self.bytes[first]} in element {first - start}{more}",
                key,
            )

    def strings(self, count: int, key: str) -> Strings:
        begin = self.pos
        index = array("Q")
        bad, worst = 0, (0, 0, 0)
        for first in range(0, count, CHUNK):
            heads = self.walk(first, min(first + CHUNK, count), key)
            index.extend(head - begin for head in heads[::STRIDE])
            odd = self.not_utf8(heads)
            if odd and not bad:
                i = odd[0]
                worst = (first + i, heads[i] + 8, heads[i + 1] if i + 1 < len(heads) else self.pos)
            bad += len(odd)
        if bad:
            i, start, stop = worst
            self.warn(
                "bad-utf8",
                start,
                stop,
                f"each element of {quoted(key)} in UTF-8",
                f"{self.shown(start, stop)} in element {i}" + (f" and {bad - 1} more" if bad > 1 else ""),
                key,
            )
        return Strings(self.keep(begin, self.pos, key), count, index)

    def walk(self, first: int, last: int, key: str) -> list[int]:
        """Return the offsets of the lengths of an array's strings `first` to `last`; the first length is at the cursor.

        A vocabulary has 100,000 strings and more, so the loop repeats the code of `string` instead of calling it.
        """
        view, size, pos, length_of = self.view, self.size, self.pos, U64.unpack_from
        heads = []
        for i in range(first, last):
            if size - pos < 8:
                self.truncated(pos, size, pos + 8, f"the length of element {i} of {quoted(key)}", key)
            length = length_of(view, pos)[0]
            start = pos + 8
            if length > size - start or length > MAX_STRING:
                self.pos = start
                self.check_string(pos, length, f"element {i}", key)
            heads.append(pos)
            pos = start + length
        self.pos = pos
        return heads

    def not_utf8(self, heads: list[int]) -> list[int]:
        """Return indices of the strings that are not UTF-8.

        Their lengths are at `heads`; the last string ends at the cursor.
        """
        begin = heads[0]
        if self.pos - begin > JOINED or len(heads) < 32:
            spans = enumerate(pairwise([*heads, self.pos]))
            return [i for i, (head, stop) in spans if not self.is_utf8(head + 8, stop)]
        # Decode all at once. Zeros in place of the lengths separate the strings: no character continues after a zero.
        joined = self.bytes[begin : self.pos].copy()
        places = np.array(heads) - begin
        for i in range(8):
            joined[places + i] = 0
        try:
            str(joined.data, "utf-8")
            return []
        except UnicodeDecodeError:
            text = str(joined.data, "utf-8", "surrogateescape")
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        bad = (codes >= 0xDC80) & (codes <= 0xDCFF)  # each stands for one byte
        widths = np.ones(len(codes), np.int8)
        for more in (0x80, 0x800, 0x10000):
            widths += codes >= more
        widths[bad] = 1
        at = (np.cumsum(widths, dtype=np.int64) - widths)[bad]
        found: list[int] = np.unique(np.searchsorted(places, at, "right") - 1).tolist()
        return found

    def read_alignment(self) -> None:
        key = ALIGNMENT_KEY
        if key not in self.metadata:
            return
        at = self.values[key]
        kind = self.alignment_type
        if kind.note != TYPE_NAMES[UINT32]:
            refuse("alignment-type", kind.start, kind.stop, f"{key} as uint32", f"type {kind.note}", key)
        value = self.metadata[key]
        assert isinstance(value, int)
        if value == 0 or value & (value - 1):
            refuse("alignment-value", at.start, at.stop, f"a power of two as {key}", f"alignment {value}", key)
        if value % ALIGNED_TO:
            self.warn(
                "alignment-small", at.start, at.stop, f"a multiple of {ALIGNED_TO} as {key}", f"alignment {value}", key
            )
        self.alignment = value

    # -- tensors ------------------------------------------------------------------------------------------------

    def read_infos(self, count: int) -> None:
        """Read the descriptions.

        One with nothing unusual is read here, without a call for each of its fields, since a file can hold a great
        many. `read_info` reads all others and reports what is wrong with them.
        """
        view, infos, ranges = self.view, self.infos, self.ranges
        last = self.size - MIN_INFO
        known: dict[bytes, tuple[tuple[int, ...], TensorType]] = {}  # keyed by the bytes of shape and type
        for _ in range(count):
            start = self.pos
            if start <= last:
                length = U64.unpack_from(view, start)[0]
                middle = start + 8 + length
                if 0 < length <= MAX_TENSOR_NAME and middle <= last + 8:
                    raw = bytes(view[start + 8 : middle])
                    n = U32.unpack_from(view, middle)[0]
                    stop = middle + 4 + 8 * n + 4 + 8
                    if n <= MAX_DIMENSIONS and stop <= self.size and raw.isascii() and b"\0" not in raw:
                        described = bytes(view[middle : stop - 8])
                        name = raw.decode("ascii")
                        found = known.get(described)
                        if found is not None and name not in infos:
                            offset = U64.unpack_from(view, stop - 8)[0]
                            infos[name] = Info(name, found[1], found[0], offset, ranges, len(ranges))
                            ranges.add_info(start, middle, stop, name, found[0], found[1].name, offset)
                            self.pos = stop
                            continue
                        if found is None:
                            self.read_info()
                            if len(known) < MAX_SHAPES:
                                info = infos[name]
                                known[described] = info.shape, info.type
                            continue
            self.read_info()

    def read_info(self) -> None:
        start = self.pos
        at, stop = self.string("a tensor's name")
        if stop - at > MAX_TENSOR_NAME:
            refuse(
                "long-tensor-name",
                start,
                stop,
                f"at most {MAX_TENSOR_NAME} bytes of tensor name",
                f"{stop - at} bytes: {self.shown(at, stop)}",
            )
        name, clean = self.decoded(at, stop)
        if "\0" in name:
            refuse("nul-in-name", start, stop, "a tensor name without NUL", f"the name {quoted(name)}", name)
        if name in self.infos:
            refuse(
                "duplicate-tensor",
                start,
                self.pos,
                "each tensor once",
                f"the name {quoted(name)} again, from byte {self.infos[name].described[0].start}",
                name,
            )
        if not name:
            self.warn("empty-tensor-name", start, self.pos, "a tensor name of at least one byte", "an empty name")
        if not clean:
            self.warn("bad-utf8", start + 8, self.pos, "a tensor name in UTF-8", quoted(name), name)
        index = len(self.ranges)
        self.own(start, "tensor name", name)
        shape, start = self.dimensions(name)
        kind = self.tensor_type(name, shape, start)
        start = self.pos
        offset = self.number(U64, "the offset", name)
        self.own(start, "offset", name, offset)
        self.infos[name] = Info(name, kind, shape, offset, self.ranges, index)

    def dimensions(self, name: str) -> tuple[tuple[int, ...], int]:
        """Read the shape at the cursor; also return where it starts."""
        start = self.pos
        count = self.number(U32, "the number of dimensions", name)
        if count > MAX_DIMENSIONS:
            refuse(
                "too-many-dimensions",
                start,
                self.pos,
                f"at most {MAX_DIMENSIONS} of {quoted(name)}",
                f"{count} dimensions",
                name,
            )
        shape = []
        for i in range(count):
            size = self.number(U64, "a dimension", name)
            if size > INT64_MAX:
                refuse(
                    "negative-dimension",
                    self.pos - 8,
                    self.pos,
                    f"a dimension from 0 to 2^63 - 1 of {quoted(name)}",
                    f"{size - (1 << 64)} as dimension {i}",
                    name,
                )
            shape.append(size)
        # A zero dimension hides an overflow of the others from a plain product, but not from code that multiplies in a
        # different order.
        if prod(max(size, 1) for size in shape) > INT64_MAX:
            refuse(
                "dimensions-overflow",
                start + 4,
                self.pos,
                f"fewer than 2^63 elements in {quoted(name)}",
                " x ".join(map(str, shape)),
                name,
            )
        self.own(start, "dimensions", name, tuple(shape))
        return tuple(shape), start

    def tensor_type(self, name: str, shape: tuple[int, ...], dimensions: int) -> TensorType:
        """Read the type at the cursor. The dimensions before it start at byte `dimensions`."""
        start = self.pos
        number = self.number(U32, "the type", name)
        kind = tensor_type(number)
        if kind is None:
            was = ", which was removed" if number in REMOVED_TYPES else ", which is not known"
            refuse("tensor-type", start, self.pos, f"a known ggml type of {quoted(name)}", f"type {number}{was}", name)
        self.own(start, "type", name, kind.name)
        row = shape[0] if shape else 1
        if row % kind.block_size:
            # Either the dimension or the type is wrong; the finding shows the range of the dimension.
            first, stop = (dimensions + 4, dimensions + 12) if shape else (dimensions, start)
            refuse(
                "partial-block",
                first,
                stop,
                f"rows of {quoted(name)} in whole blocks of {kind.block_size} ({kind.name})",
                f"rows of {row}",
                name,
            )
        if prod(max(size, 1) for size in shape) // kind.block_size * kind.block_bytes > INT64_MAX:
            refuse(
                "dimensions-overflow",
                dimensions + 4,
                start,
                f"fewer than 2^63 bytes in {quoted(name)}",
                f"{' x '.join(map(str, shape))} of {kind.name}",
                name,
            )
        return kind


def _instead(view: memoryview) -> str:
    """Return what a file that is no GGUF file may be, and what to do; "" if unknown."""
    head = bytes(view[:64])
    if head[:4] == b"PK\x03\x04":
        return " (a zip archive, such as a PyTorch checkpoint: convert it with llama.cpp's convert_hf_to_gguf.py)"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= len(view):
        return " (a safetensors file: convert its folder with llama.cpp's convert_hf_to_gguf.py)"
    if head.startswith(b"version https://git-lfs"):
        return " (a pointer of Git LFS: fetch the file with git lfs pull)"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return " (a web page: download the file itself)"
    return ""
