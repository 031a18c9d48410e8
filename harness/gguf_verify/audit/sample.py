"""Which blocks of a remote model are looked at, and what a sample of them says.

A tensor is cut into pieces of `PIECE` bytes, in whole blocks. Of each tensor so many pieces are drawn, each set of them
as likely as any other, by a generator that starts from the seed and the tensor's name. They stand one after the other
in a file of this machine, where they are scanned as any tensor is; then the numbers of blocks become those of the
tensor.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..formats import FLOAT_TYPES
from ..gguf.file import Tensor
from ..gguf.mapped import Mapped
from ..gguf.records import Finding
from .content import BadBlock, Content

#: Bytes of a piece, pieces of a tensor, and pieces of all: each is one request.
PIECE, OF_TENSOR, OF_ALL = 1 << 13, 8, 1 << 12


@dataclass(frozen=True)
class Drawn:
    """The pieces of a tensor.

    Args:
        tensor: of the model.
        blocks: that a piece has; the tensor's last one may have fewer.
        pieces: numbers of those that were drawn, ascending.
        of: how many pieces the tensor has.
    """

    tensor: Tensor
    blocks: int
    pieces: tuple[int, ...]
    of: int

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where the pieces start and stop in the file."""
        t, size = self.tensor, self.blocks * self.tensor.type.block_bytes
        stop = t.offset + t.nbytes
        starts = (t.offset + number * size for number in self.pieces)
        return [(start, min(start + size, stop)) for start in starts]

    @property
    def nbytes(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def number(self, of_sample: int) -> int:
        """The number in the tensor of a block of the sample."""
        piece, rest = divmod(of_sample, self.blocks)
        return self.pieces[piece] * self.blocks + rest


def draw(tensors: Sequence[Tensor], seed: int) -> tuple[list[Drawn], list[Tensor]]:
    """The pieces of each tensor that holds blocks to be decoded; and tensors that are left out, of too many."""
    scanned = [t for t in tensors if t.nbytes and (t.type.format is not None or t.type.name in FLOAT_TYPES)]
    chosen = scanned
    if len(scanned) > OF_ALL:
        picked = set(_generator(seed, "").sample(range(len(scanned)), OF_ALL))
        chosen = [t for i, t in enumerate(scanned) if i in picked]
    most = max(1, min(OF_TENSOR, OF_ALL // max(1, len(chosen))))
    drawn = []
    for t in chosen:
        blocks = max(1, PIECE // t.type.block_bytes)
        of = -(-(t.nbytes // t.type.block_bytes) // blocks)
        pieces = range(of) if of <= most else _generator(seed, t.name).sample(range(of), most)
        drawn.append(Drawn(t, blocks, tuple(sorted(pieces)), of))
    names = {t.name for t in chosen}
    return drawn, [t for t in scanned if t.name not in names]


def _generator(seed: int, name: str) -> random.Random:
    """Python's own, whose draws do not change between versions of NumPy."""
    digest = hashlib.sha256(f"{seed} {name}".encode("utf-8", "surrogateescape")).digest()
    return random.Random(int.from_bytes(digest, "little"))


@dataclass(frozen=True)
class Sample:
    """What an audit of a remote model looked at.

    Args:
        seed: that the pieces were drawn by.
        fetched, size: bytes that were fetched, and those of all files.
        requests: that fetched them.
        blocks, of_blocks: that were decoded, and those of all tensors that were to be looked at. A value of a type
            without blocks is one.
        piece_bytes: bytes of a piece at most.
        pieces: the fewest pieces that were drawn of a tensor that has more; None where all of all were drawn.
        most_pieces: how many the largest tensor has.
    """

    seed: int
    fetched: int
    size: int
    requests: int
    blocks: int
    of_blocks: int
    piece_bytes: int
    pieces: int | None
    most_pieces: int

    @property
    def share(self) -> str:
        """Of the blocks, in words that never round to all of them or to none."""
        if self.blocks == self.of_blocks:
            return "all"
        percent = 100 * self.blocks / self.of_blocks
        return f"{min(max(percent, 0.01), 99.9):.2f} %"

    def missed(self, affected: float) -> float:
        """The probability at most that no piece is drawn of those with a fault, which are this share of a tensor's
        pieces: that of draws with repetition."""
        return 0.0 if self.pieces is None else float((1 - affected) ** self.pieces)

    @property
    def sentence(self) -> str:
        """What the verdict is of, in a few words."""
        return (
            f"of the header and of {self.blocks:,} of {self.of_blocks:,} blocks ({self.share}), not of the whole file"
        )

    @property
    def words(self) -> str:
        """What was fetched and drawn."""
        of = (
            "all of their blocks"
            if self.pieces is None
            else f"{self.pieces} pieces or more of {self.piece_bytes:,} bytes"
        )
        return (
            f"{self.fetched:,} of {self.size:,} bytes were fetched, by {self.requests:,} requests; of each tensor "
            f"{of}, drawn with seed {self.seed}"
        )

    @property
    def untold(self) -> str:
        """What such an audit cannot tell."""
        unseen = "padding, gaps, equal rows, runs of zeros, outliers, copies and the SHA-256 were not looked at"
        if self.pieces is None:
            return unseen
        one = 100 * (1 - self.pieces / self.most_pieces)
        missed = ", ".join(f"{share:g} % of them {100 * self.missed(share / 100):.2g} %" for share in (1, 10, 50))
        return (
            "the probability that a fault is missed, by how many pieces of its tensor have it: one of the largest "
            f"tensor's {min(one, 99.99):.2f} %, {missed} at most; {unseen}"
        )


@dataclass(frozen=True)
class Sampled:
    """The pieces, in a file of this machine.

    Args:
        sample: what was drawn.
        drawn: of each tensor that has blocks to be decoded.
        left: tensors of which nothing was drawn.
        tensors: those that are to be scanned: of drawn ones the pieces, as one row; all others as they are.
    """

    sample: Sample
    drawn: dict[str, Drawn]
    left: Sequence[Tensor]
    tensors: Sequence[Tensor]

    @classmethod
    def of(cls, sample: Sample, tensors: Sequence[Tensor], drawn: Sequence[Drawn], left: Sequence[Tensor],
           mapped: Mapped, offsets: Sequence[int]) -> Sampled:  # fmt: skip
        """The pieces of `drawn` lie at `offsets` of `mapped`."""
        pieces = {
            d.tensor.name: replace(
                d.tensor, shape=(d.nbytes // d.tensor.type.block_bytes * d.tensor.type.block_size,), offset=at,
                mapped=mapped,
            )
            for d, at in zip(drawn, offsets, strict=True)
        }  # fmt: skip
        without = {t.name for t in left}
        looked = [pieces.get(t.name, t) for t in tensors if t.name not in without]
        return cls(sample, {d.tensor.name: d for d in drawn}, left, looked)

    def placed(self, content: Content) -> Content:
        """What the scan of a tensor's pieces found, with the numbers that its blocks have in the tensor."""
        drawn, scan = self.drawn.get(content.tensor.name), content.scan
        if drawn is None or scan is None:
            return content

        def places(numbers: Sequence[int]) -> list[int]:
            return [drawn.number(n) for n in numbers]

        def place(bad: BadBlock) -> BadBlock:
            row, block = divmod(drawn.number(bad.block), drawn.tensor.blocks_per_row)
            return replace(bad, row=row, block=block)

        scan = replace(
            scan, first_not_finite=places(scan.first_not_finite), first_differing=places(scan.first_differing),
            first_subnormal=drawn.number(scan.first_subnormal) if scan.first_subnormal >= 0 else -1,
            duplicate_rows=None, duplicate=None, zeros_at_start=0, zeros_at_end=0, runs=0, first_runs=[], repeats=[],
        )  # fmt: skip
        bad = tuple(tuple(map(place, some)) for some in content.bad)
        return replace(
            content, tensor=drawn.tensor, scan=scan, described=tuple(places(content.described)), bad=(bad[0], bad[1])
        )

    def said(self, found: Finding) -> Finding:
        """A finding of the pieces."""
        return replace(found, found=f"in the sample, {found.found}")


def write_at(path: Path, at: int, body: bytes) -> None:
    """Bytes to their place in a file that exists."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        file.write(body)
