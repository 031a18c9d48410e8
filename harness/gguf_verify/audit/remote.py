"""A remote model: its headers and a sample of blocks are fetched.

Each file gets a local copy of the same length that holds its header; the rest is a hole, which takes no disk space. So
the parser, the rules for split models and other readers read it like any file. The length of a header is known only
after parsing, so the copy is extended and parsed again until the header is complete.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from ..gguf.file import Tensor
from ..gguf.mapped import Mapped
from ..gguf.model import PART_NAME, Model, part_names
from ..gguf.parser import parse
from ..support import scratch
from ..support.address import FETCHED, Address
from ..support.errors import EnvironmentFault, NoSuchFile
from ..support.progress import progress_bar
from ..support.text import printable
from .ranges import MOST_BYTES, Ranges, Span
from .sample import PIECE, Sample, Sampled, draw, write_at

#: Bytes of a header to fetch first: for a first part, which holds the vocabulary, and for a later one.
FIRST, FIRST_OF_LATER = 1 << 20, 1 << 17
#: Limit of a header in bytes; known ones have fewer than 20 MB.
MOST_HEADER = 1 << 26
#: Number of parts whose headers are fetched at the same time.
_PARTS = 8
_MORE = 4  # growth factor of the bytes fetched of a longer header


class _Copy(NamedTuple):
    """The local copy of a file: its index in `Ranges`, its address, and the number of leading bytes that it holds."""

    number: int
    address: Address
    held: int


class Remote:
    """The local copies of a remote model. Use it as a context manager.

    Args:
        address: address of the file, or of the first part of a split model.
        seconds: time limit for everything that is fetched.
        progress: whether to show a bar.
        redirects: further hosts that the server may redirect to.
    """

    def __init__(self, address: Address, seconds: float, progress: bool = False, redirects: Sequence[str] = ()) -> None:
        """Raises EnvironmentFault if fsspec is not installed."""
        self.address = address
        self._progress = progress
        self._stack = ExitStack()  # closes everything if a later step fails
        self._ranges = self._stack.enter_context(Ranges(seconds, redirects))
        self._folder = Path(tempfile.mkdtemp(dir=scratch.shared(FETCHED)))
        self._stack.callback(scratch.remove_folder, self._folder)
        (self._folder / "copies").mkdir()
        self._copies: dict[str, _Copy] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def open(self) -> Path:
        """Fetch all headers; returns the copy of the requested file.

        Raises NoSuchFile, EnvironmentFault as `Ranges.fetch`; EnvironmentFault also for a header that is too long. A
        part that the server does not have gets no copy, which is reported when the model is opened.
        """
        first = self._copy(self._ranges.add(self.address), self.address, FIRST)
        with parse(first) as file:
            said = file.metadata.get("split.count") if file.refused is None else None
        name = PART_NAME.fullmatch(first.name)
        if name is not None and int(name["no"]) == 1 and said == int(name["count"]):
            self._later(part_names(first.name, int(name["count"]))[1:])
        return first

    def _later(self, names: Sequence[str]) -> None:
        """Fetch the headers of later parts, until one is missing."""

        def found(number: int, name: str) -> bool:
            try:
                self._copy(number, self.address.beside(name), FIRST_OF_LATER)
            except NoSuchFile:
                return False
            return True

        with ThreadPoolExecutor(_PARTS) as pool:
            for at in range(0, len(names), _PARTS):
                some = names[at : at + _PARTS]
                if not all(pool.map(found, [self._ranges.add_beside(0, name) for name in some], some)):
                    return

    def _copy(self, number: int, address: Address, first: int) -> Path:
        body, size = self._ranges.start_of(number, first)
        path = self._folder / "copies" / address.name
        try:
            with open(path, "xb") as made:
                made.truncate(size)
        except OSError as error:
            raise EnvironmentFault(
                f"{printable(str(address), 200)}: cannot make a file of {size:,} bytes here: {error.strerror}",
                "remote-file",
            ) from None
        write_at(path, 0, body)
        held = len(body)
        while held < size:
            with parse(path) as file:
                if file.header_end <= held:
                    break
            if held >= MOST_HEADER:
                raise EnvironmentFault(
                    f"{printable(str(address), 200)}: the header does not end within {MOST_HEADER >> 20} MiB; no more "
                    "is fetched: download the file and audit it",
                    "remote-file",
                )
            stop = min(held * _MORE, size, MOST_HEADER)
            spans = [Span(number, at, min(at + MOST_BYTES, stop)) for at in range(held, stop, MOST_BYTES)]
            self._ranges.fetch(spans, lambda span, body: write_at(path, span.start, body))
            held = stop
        self._copies[address.name] = _Copy(number, address, held)
        return path

    def named(self, model: Model) -> None:
        """Set the addresses of the model's files."""
        for part in model.parts:
            part.address = self._copies[part.path.name].address

    def sample(self, model: Model, tensors: Sequence[Tensor], seed: int) -> Sampled:
        """Fetch a sample of the tensors' blocks. Raises as `Ranges.fetch`."""
        drawn, left = draw(tensors, seed)
        copies = [self._copies[part.path.name] for part in model.parts]
        path = self._folder / "sample"
        offsets, places = [], {}
        at = 0
        for d in drawn:
            offsets.append(at)
            for start, stop in d.spans:
                places[Span(copies[d.tensor.part].number, start, stop)] = at
                at += stop - start
        held = {copy.number: (copy.held, part.buffer) for copy, part in zip(copies, model.parts, strict=True)}
        with progress_bar("fetch", at, "B", self._progress) as bar, open(path, "xb", buffering=0) as made:

            def take(span: Span, body: bytes) -> None:
                os.pwrite(made.fileno(), body, places[span])
                bar.update(len(body))

            for span in places:
                if span.stop <= held[span.file][0]:
                    take(span, held[span.file][1][span.start : span.stop].tobytes())
            self._ranges.fetch([span for span in places if span.stop > held[span.file][0]], take)
        blocks = sum(d.nbytes // d.tensor.type.block_bytes for d in drawn)
        of_blocks = sum(t.nbytes // t.type.block_bytes for t in (*(d.tensor for d in drawn), *left))
        partly = [len(d.pieces) for d in drawn if len(d.pieces) < d.of]
        sample = Sample(
            seed,
            self._ranges.fetched,
            model.size,
            self._ranges.requests,
            blocks,
            of_blocks,
            PIECE,
            min(partly) if partly else None,
            max((d.of for d in drawn), default=0),
        )
        mapped = self._stack.enter_context(closing(Mapped(path)))
        return Sampled.of(sample, tensors, drawn, left, mapped, offsets)
