"""Sampling of the blocks of a remote model, and what the sample can tell.

A tensor is divided into pieces of `PIECE` bytes, in whole blocks. For each tensor, pieces are sampled uniformly without
replacement, by a generator seeded with the seed and the tensor's name. They are stored one after the other in a local
file, which is scanned like any tensor; then block numbers are translated to those in the tensor.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from ..formats.tensor_types import FLOAT_TYPES
from ..gguf.file import Tensor
from ..gguf.mapped import Mapped
from ..gguf.records import Finding
from .content import BadBlock, Content

#: Bytes per piece, pieces per tensor, and pieces in total: each is one request.
PIECE, OF_TENSOR, OF_ALL = 1 << 13, 8, 1 << 12


@dataclass(frozen=True)
class Drawn:
    """The sampled pieces of a tensor.

    Args:
        tensor: the model's tensor.
        blocks: number of blocks in a piece; the tensor's last piece may have fewer.
        pieces: indices of the sampled pieces, ascending.
        of: number of pieces in the tensor.
    """

    tensor: Tensor
    blocks: int
    pieces: tuple[int, ...]
    of: int

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Start and stop offsets of the pieces in the file."""
        t, size = self.tensor, self.blocks * self.tensor.type.block_bytes
        stop = t.offset + t.nbytes
        starts = (t.offset + number * size for number in self.pieces)
        return [(start, min(start + size, stop)) for start in starts]

    @property
    def nbytes(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def number(self, of_sample: int) -> int:
        """Translate the index of a block in the sample to that in the tensor."""
        piece, rest = divmod(of_sample, self.blocks)
        return self.pieces[piece] * self.blocks + rest


def draw(tensors: Sequence[Tensor], seed: int) -> tuple[list[Drawn], list[Tensor]]:
    """Sample pieces of each tensor with blocks to decode; also returns the tensors skipped if there are too many."""
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
    """Return one of Python's own generators, whose output does not change between versions of NumPy."""
    digest = hashlib.sha256(f"{seed} {name}".encode("utf-8", "surrogateescape")).digest()
    return random.Random(int.from_bytes(digest, "little"))


@dataclass(frozen=True)
class Sample:
    """The sample of an audit of a remote model.

    Args:
        seed: seed of the sample.
        fetched, size: bytes fetched, and bytes of all files.
        requests: number of requests.
        blocks, of_blocks: number of blocks decoded, and of all blocks in the selected tensors. A value of a type
            without blocks counts as one.
        piece_bytes: largest size of a piece in bytes.
        pieces: least number of pieces sampled from a tensor that has more; None if all pieces were sampled.
        most_pieces: number of pieces in the largest tensor.
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
        """The share of decoded blocks in words, never rounded to all or to none."""
        if self.blocks == self.of_blocks:
            return "all"
        percent = 100 * self.blocks / self.of_blocks
        return f"{min(max(percent, 0.01), 99.9):.2f} %"

    def missed(self, affected: float) -> float:
        """Bound the probability that none of the faulty pieces is sampled, where `affected` is their share of a
        tensor's pieces: that of sampling with replacement."""
        return 0.0 if self.pieces is None else float((1 - affected) ** self.pieces)

    @property
    def sentence(self) -> str:
        """The coverage of the verdict, in a few words."""
        return (
            f"of the header and of {self.blocks:,} of {self.of_blocks:,} blocks ({self.share}), not of the whole file"
        )

    @property
    def words(self) -> str:
        """The bytes that were fetched and the blocks that were sampled."""
        of = (
            "all of their blocks"
            if self.pieces is None
            else f"{self.pieces} pieces or more of {self.piece_bytes:,} bytes"
        )
        return (
            f"{self.fetched:,} of {self.size:,} bytes were fetched, by {self.requests:,} requests; of each tensor "
            f"{of}, sampled with seed {self.seed}"
        )

    @property
    def untold(self) -> str:
        """The checks that such an audit skips, and the faults that it can miss."""
        unseen = "padding, gaps, equal rows, runs of zeros, outliers, copies and the SHA-256 were not checked"
        if self.pieces is None:
            return unseen
        one = 100 * (1 - self.pieces / self.most_pieces)
        missed = ", ".join(f"{share:g} % of them {100 * self.missed(share / 100):.2g} %" for share in (1, 10, 50))
        return (
            "the probability of missing a fault, by the number of affected pieces: one of the largest "
            f"tensor's {min(one, 99.99):.2f} %, {missed} at most; {unseen}"
        )


@dataclass(frozen=True)
class Sampled:
    """The sampled pieces, in a local file.

    Args:
        sample: the sample's figures.
        drawn: the sampled pieces by tensor name.
        left: tensors that were not sampled.
        tensors: the tensors to scan: the pieces of sampled ones as one row; all others unchanged.
    """

    sample: Sample
    drawn: dict[str, Drawn]
    left: Sequence[Tensor]
    tensors: Sequence[Tensor]

    @classmethod
    def of(
        cls,
        sample: Sample,
        tensors: Sequence[Tensor],
        drawn: Sequence[Drawn],
        left: Sequence[Tensor],
        mapped: Mapped,
        offsets: Sequence[int],
    ) -> Sampled:
        """Make the record; the pieces of `drawn` lie at `offsets` of `mapped`."""
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
        """Translate the block numbers in the result of a scan of pieces to those in the tensor."""
        drawn, scan = self.drawn.get(content.tensor.name), content.scan
        if drawn is None or scan is None:
            return content

        def places(numbers: Sequence[int]) -> list[int]:
            return [drawn.number(n) for n in numbers]

        def place(bad: BadBlock) -> BadBlock:
            row, block = divmod(drawn.number(bad.block), drawn.tensor.blocks_per_row)
            return replace(bad, row=row, block=block)

        scan = structs.replace(
            scan,
            first_not_finite=places(scan.first_not_finite),
            first_differing=places(scan.first_differing),
            first_subnormal=drawn.number(scan.first_subnormal) if scan.first_subnormal >= 0 else -1,
            duplicate_rows=None,
            duplicate=None,
            zeros_at_start=0,
            zeros_at_end=0,
            runs=0,
            first_runs=[],
            repeats=[],
        )
        bad = tuple(tuple(map(place, some)) for some in content.bad)
        return replace(
            content, tensor=drawn.tensor, scan=scan, described=tuple(places(content.described)), bad=(bad[0], bad[1])
        )

    def said(self, found: Finding) -> Finding:
        """Mark a finding as one in the sample."""
        return replace(found, found=f"in the sample, {found.found}")


def write_at(path: Path, at: int, body: bytes) -> None:
    """Write bytes at an offset of an existing file."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        file.write(body)
