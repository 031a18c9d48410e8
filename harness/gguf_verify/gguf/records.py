"""What reading a file yields besides its content: byte ranges and findings.

`RULES` is the list of everything that can be found wrong with a file, as data: a rule's id is stable, its effect fixed.
The container finds those below 100, `gguf_verify.audit` the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, NoReturn

Effect = Literal["refuse", "error", "warning", "note"]
Severity = Literal["error", "warning", "note"]

#: Findings of one rule that are listed one by one; the rest is counted.
MAX_PER_RULE = 20


class Range(NamedTuple):
    """Bytes `start` up to, not including, `stop` of one file, and the one field that owns them.

    A named tuple, since a large file has thousands.

    Args:
        start: absolute byte offset.
        stop: absolute byte offset after the last byte.
        kind: one of `KINDS`.
        owner: the key or tensor that the field belongs to, as it stands in the file (not escaped), or "".
        note: what the value is, where that is short.
    """

    start: int
    stop: int
    kind: str
    owner: str = ""
    note: str = ""

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


#: Every kind of byte range. A key or tensor name includes its length, dimensions include their number.
KINDS = (
    "magic", "version", "tensor count", "key count",
    "key", "value type", "element type", "element count", "value",
    "tensor name", "dimensions", "type", "offset",
    "padding", "data", "gap", "trailing",
    "unread",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong with a file.

    Args:
        number: the stable part of the id.
        slug: the readable part of the id; as stable.
        effect: "refuse": reading on would be unsafe or ambiguous (exit 4). "error": well defined but wrong (exit 1).
            "warning": llama.cpp can still make sense of the file, or metadata contradict it (exit 0; 1 if strict).
        why: why it matters.
    """

    number: int
    slug: str
    effect: Effect
    why: str

    @property
    def id(self) -> str:
        return f"GGUF-{self.number:03d}-{self.slug}"


_RULES = (
    # the header
    Rule(1, "truncated", "refuse", "the file ends inside its own header, so what it describes is not known"),
    Rule(2, "magic", "refuse", "only a file that starts with GGUF can be read as one"),
    Rule(3, "version", "refuse", "versions 2 and 3 share one layout; others are laid out differently or not known"),
    Rule(4, "big-endian", "refuse", "llama.cpp on a little-endian machine reads every number of such a file wrong"),
    Rule(5, "tensor-count", "refuse", "so many tensors cannot stand in the bytes that are there, or no model has so "
         "many: a mixture of experts with a tensor for each expert has some 75,000"),
    Rule(6, "key-count", "refuse", "so many keys cannot stand in the bytes that are there, or no model has so many: "
         "known ones have fewer than 100"),
    Rule(7, "metadata-size", "refuse", "no model's metadata are so large, and to keep them would take memory without "
         "bound"),
    # keys and values
    Rule(10, "string-length", "refuse", "the string would reach past the end of the file, or past the 1 GiB that "
         "llama.cpp reads"),
    Rule(11, "empty-key", "refuse", "a value without a name belongs to nothing, and llama.cpp refuses it"),
    Rule(12, "long-key", "error", "the GGUF specification ends keys at 65535 bytes, and readers may rely on it"),
    Rule(13, "duplicate-key", "refuse", "which of the values counts depends on the reader"),
    Rule(14, "nul-in-name", "refuse", "llama.cpp ends a name at its first NUL, other readers do not: it has two names"),
    Rule(15, "bad-utf8", "error", "GGUF strings are UTF-8; gguf-py fails on such a string, llama.cpp passes it on"),
    Rule(16, "value-type", "refuse", "the length of an unknown value is not known, so nothing after it can be read"),
    Rule(17, "bool-value", "error", "GGUF allows 0 and 1 only; whether 2 is true depends on the reader"),
    Rule(18, "array-length", "refuse", "the array would reach past the end of the file, or past the 2^30 elements "
         "that llama.cpp reads"),
    Rule(19, "nested-array", "error", "the GGUF specification allows an array in an array, llama.cpp refuses the file"),
    Rule(20, "nested-too-deep", "refuse", "no reader needs it, and it can exhaust one that recurses"),
    # alignment
    Rule(25, "alignment-type", "refuse", "general.alignment is a uint32 by specification; llama.cpp refuses others"),
    Rule(26, "alignment-value", "refuse", "where the data begin cannot be computed from it"),
    Rule(27, "alignment-huge", "refuse", "the data would begin past the end of the file"),
    Rule(28, "alignment-small", "warning", "the GGUF specification asks for a multiple of 8; smaller ones leave "
         "tensors misaligned in memory"),
    # tensor descriptions
    Rule(30, "empty-tensor-name", "warning", "nothing can ask for a tensor without a name"),
    Rule(31, "long-tensor-name", "refuse", "llama.cpp holds 63 bytes of name and refuses the file"),
    Rule(32, "duplicate-tensor", "refuse", "which of the tensors is meant depends on the reader"),
    Rule(33, "too-many-dimensions", "refuse", "ggml tensors have at most 4 dimensions"),
    Rule(34, "negative-dimension", "refuse", "dimensions are signed to ggml: at 2^63 and above they are negative"),
    Rule(35, "dimensions-overflow", "refuse", "the size of the tensor does not fit in 63 bits and would wrap"),
    Rule(36, "tensor-type", "refuse", "the size of a block is not known, so neither is the size of the tensor"),
    Rule(37, "partial-block", "refuse", "blocks never span rows, so the bytes of such a row are not defined"),
    # where the data lie
    Rule(40, "offset-outside", "refuse", "the tensor's bytes are not in the file"),
    Rule(41, "offset-misaligned", "refuse", "tensor data start at multiples of the alignment; llama.cpp refuses "
         "others"),
    Rule(42, "overlap", "refuse", "bytes that belong to two tensors cannot mean both"),
    Rule(43, "offset-order", "error", "llama.cpp refuses tensors whose data do not follow in the order of the "
         "descriptions; gguf-py reads them"),
    Rule(44, "gap", "warning", "bytes that no tensor owns could hide anything; all tensors keep their meaning, yet "
         "llama.cpp v0.5.0 does not load the file"),
    Rule(45, "zero-with-data", "error", "a tensor with a zero dimension has no bytes, but the file holds some for it"),
    Rule(46, "data-truncated", "refuse", "the last bytes of a tensor are missing"),
    Rule(47, "padding-cut", "warning", "all tensors are whole, but a reader that maps whole aligned pieces would read "
         "past the end"),
    Rule(48, "trailing", "warning", "bytes after the last tensor are read by nobody, and could hide anything"),
    Rule(49, "nonzero-padding", "warning", "padding is zero by specification; other bytes are read by nobody, and "
         "could hide anything"),
    # split files
    Rule(60, "split-first", "refuse", "the metadata stand in the first part, and llama.cpp starts from it only"),
    Rule(61, "split-part-missing", "refuse", "the tensors of a missing part cannot be verified"),
    Rule(62, "split-inconsistent", "refuse", "the parts do not belong together"),
    # claims: metadata against the tensors
    Rule(80, "file-type", "warning", "general.file_type names a type that no tensor has; tools show it to users"),
    Rule(81, "file-name", "warning", "the file's name promises a quantization that no tensor has"),
    Rule(82, "block-count", "warning", "llama.cpp loads as many layers as this key says"),
    Rule(83, "embedding-length", "warning", "llama.cpp sizes its graph by this key and refuses tensors that differ"),
    Rule(84, "vocabulary-size", "warning", "each token needs a row of the embedding, and each row a token"),
    Rule(85, "feed-forward-length", "warning", "llama.cpp expects feed-forward tensors of this size"),
    Rule(86, "head-count", "warning", "llama.cpp splits attention by these keys and expects tensors of that size"),
    Rule(87, "expert-count", "warning", "llama.cpp expects as many experts in each expert tensor"),
    Rule(88, "key-type", "warning", "llama.cpp refuses a key whose value is not of the type that it expects"),
    # content: what the tensors' bytes mean
    Rule(100, "scale-not-finite", "error", "nothing computed from such a block means anything"),
    Rule(101, "value-not-finite", "error", "nothing computed from such a value means anything"),
    Rule(102, "decode-differs", "error", "the block means something else to us than to llama.cpp"),
    Rule(103, "scale-subnormal", "note", "a subnormal half keeps fewer than 11 bits of the scale, and code that "
         "computes in half may flush it to zero"),
    Rule(104, "unowned", "error", "a byte that no one field owns could mean anything: the parser is wrong"),
    # other readers
    Rule(110, "llama-refuses", "error", "llama.cpp does not load the file, and no other finding says why"),
    Rule(111, "gguf-py-refuses", "warning", "tools built on gguf-py cannot read the file, and no other finding says "
         "why"),
    Rule(112, "reader-verdict", "note", "a reader's verdict is not ours; another finding says what is wrong"),
    Rule(113, "reader-differs", "error", "two readers see different tensors in the same bytes"),
    Rule(114, "reader-broke", "warning", "a reader that crashes or hangs on a file can be made to by whoever made it"),
    # against the source
    Rule(120, "source-differs", "error", "the tensor is not what llama.cpp makes of the source"),
    Rule(121, "source-missing", "error", "the source holds no tensor of that name and shape to make it from"),
    Rule(122, "source-left", "warning", "a tensor of the source did not come along"),
)  # fmt: skip

#: By slug.
RULES: dict[str, Rule] = {rule.slug: rule for rule in _RULES}


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a file. All texts are escaped and fit on a line.

    Args:
        id: stable, such as `GGUF-013-duplicate-key`.
        effect: see `Rule.effect`.
        start: absolute offset of the first byte that is to blame.
        stop: absolute offset after the last; equals `start` where bytes are missing.
        expected: what should stand there.
        found: what does.
        why: why it matters.
        owner: the key or tensor concerned, as it stands in the file (not escaped), or "".
        part: index of the file in a split model.
    """

    id: str
    effect: Effect
    start: int
    stop: int
    expected: str
    found: str
    why: str
    owner: str = ""
    part: int = 0

    @property
    def severity(self) -> Severity:
        return "error" if self.effect == "refuse" else self.effect

    def line(self) -> str:
        """One line without the file's name: offset, found, expected, id."""
        return f"byte {self.start}: {self.found}; expected {self.expected} [{self.id}]"


def finding(slug: str, start: int, stop: int, expected: str, found: str, owner: str = "") -> Finding:
    """A finding of the rule `slug`. Raises KeyError for a rule that does not exist."""
    rule = RULES[slug]
    return Finding(rule.id, rule.effect, start, stop, expected, found, rule.why, owner)


class Refused(Exception):
    """Reading cannot go on; inside the container only."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.line())
        self.finding = finding


def refuse(slug: str, start: int, stop: int, expected: str, found: str, owner: str = "") -> NoReturn:
    """Raises Refused with that finding."""
    raise Refused(finding(slug, start, stop, expected, found, owner))


class Findings:
    """Findings as they come, at most `MAX_PER_RULE` of each rule; the rest is counted."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self._totals: Counter[str] = Counter()

    def add(self, finding: Finding) -> None:
        self._totals[finding.id] += 1
        if self._totals[finding.id] <= MAX_PER_RULE:
            self._kept.append(finding)

    def listed(self, part: int | None = None) -> tuple[Finding, ...]:
        """All that are kept, the last one of a rule saying how many more there are; of that part, if it is given."""
        left = Counter({id: min(total, MAX_PER_RULE) for id, total in self._totals.items()})
        listed = []
        for f in self._kept:
            left[f.id] -= 1
            more = self._totals[f.id] - MAX_PER_RULE
            if not left[f.id] and more > 0:
                f = replace(f, found=f"{f.found} (and {more} more of this kind)")
            listed.append(f if part is None else replace(f, part=part))
        return tuple(listed)


def capped(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """At most `MAX_PER_RULE` findings of each rule, the last one saying how many more there are."""
    kept = Findings()
    for f in findings:
        kept.add(f)
    return kept.listed()
