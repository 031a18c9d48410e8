"""The part of an audit that needs llama.cpp's process: scanning every block, and comparing with a source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from ..formats.block import BlockFormat
from ..formats.tensor_types import FORMATS
from ..gguf.consistency import BLOCK
from ..gguf.file import Tensor
from ..gguf.model import Model
from ..gguf.records import Finding
from ..llama.files import Scan
from ..llama.library import Llama, WithoutLlama
from ..llama.process import LlamaRefused
from ..support.errors import Culprit, EnvironmentFault, MalformedFile
from ..support.progress import progress_bar, under_way
from ..support.text import quoted
from .codes import unused_codes
from .content import Content, content_findings, contents, finding_at, sign_findings
from .fingerprint import Fingerprint, fingerprint, patterns_of
from .outliers import outlier_findings
from .zeros import is_constant, is_vocabulary, is_weights, zero_findings

if TYPE_CHECKING:
    from tqdm import tqdm

    from .elsewhere import Examiners
    from .importance import Importance
    from .sample import Sampled
    from .source import Comparison
    from .sources import Source

#: Yields the contents of tensors in order; calls the second argument with the number of bytes done.
Scanning = Callable[[Sequence[Tensor], Callable[[int], object]], Generator[Content]]


class Examination:
    """The part of an audit that needs llama.cpp's process. A fault that ends it is kept, with all results so far."""

    def __init__(
        self, model: Model, llama: Llama | WithoutLlama, threads: int, progress: bool, sampled: Sampled | None = None
    ) -> None:
        self.model = model
        self.llama = llama
        self.sampled = sampled
        self.threads = threads
        self.progress = progress
        self.contents: list[Content] = []
        self.comparisons: list[Comparison] = []
        self.findings: list[Finding] = []
        self.unverified: list[tuple[str, str]] = []
        #: Scans and compares instead of llama.cpp's process here, unless None.
        self.examiners: Examiners | None = None
        self.fault: str | None = None
        #: Culprit of `fault`.
        self.culprit: Culprit = "environment"

    def read(self, tensors: Sequence[Tensor]) -> None:
        """Scan every tensor, or a sample of them."""
        for _ in self.reading(tensors):
            pass

    def reading(
        self, tensors: Sequence[Tensor], parts: Iterable[Sequence[Tensor]] | None = None, scan: Scanning | None = None
    ) -> Iterator[Content]:
        """Scan every tensor, or a sample of them. Yields the contents of each tensor.

        Args:
            parts: the tensors in parts, which are scanned one after the other; it may end before all of them.
            scan: who scans a part; None: the examiners, or llama.cpp's process.
        """
        if scan is None and self.examiners is not None:
            scan = self.examiners.contents
        if self.sampled is not None:
            from .sample import OF_ALL

            self.unverified += [
                (t.name, f"one of more than {OF_ALL:,} tensors: not sampled") for t in self.sampled.left
            ]
            tensors = self.sampled.tensors

        def here(tensors: Sequence[Tensor], on_bytes: Callable[[int], object]) -> Generator[Content]:
            return contents(tensors, self.llama, self.threads, on_bytes)

        with self._bar("audit", tensors) as bar:
            for part in [tensors] if parts is None else parts:
                with closing((scan or here)(part, bar.update)) as found:
                    yield from self._follow(found, tensors, bar)
            self.findings += sign_findings(self.contents)
            self.findings += zero_findings(self.contents, self.model)
            if self.sampled is None:
                self.findings += outlier_findings(self.contents, self.model)
                self.findings += copy_findings(self.contents, self.model)
            if isinstance(self.llama, Llama):
                self.findings += unused_codes(self.contents, self.llama)
            bar.update((bar.total or 0) - bar.n)
        if self.sampled is not None:
            self.findings = [self.sampled.said(f) for f in self.findings]
        self.unverified += [(t.name, "not reached") for t in tensors[len(self.contents) :]]

    def _follow(self, found: Iterable[Content], tensors: Sequence[Tensor], bar: tqdm[Any]) -> Iterator[Content]:
        def next_one() -> None:
            if len(self.contents) < len(tensors):
                under_way(bar, tensors[len(self.contents)].name)

        next_one()
        for content in found:
            content = content if self.sampled is None else self.sampled.placed(content)
            self.contents.append(content)
            self.findings += content_findings(content)
            if content.unverified:
                self.unverified.append((content.tensor.name, content.unverified))
            yield content
            next_one()

    def compare(self, tensors: Sequence[Tensor], source: Source, importance: Importance | None = None) -> None:
        """Compare every tensor with its source, quantized with the importance matrix if there is one."""
        if self.fault or not isinstance(self.llama, Llama):
            return
        from .source import compare, comparison_findings

        llama = self.llama
        with self._bar("source", tensors) as bar:

            def here() -> Generator[Comparison]:
                for tensor in tensors:
                    yield compare(tensor, source, llama, self.threads, bar.update, importance)

            at = 0
            with closing(here() if self.examiners is None else self.examiners.comparisons(tensors)) as found:
                for comparison in found:
                    at += comparison.tensor.nbytes
                    bar.update(at - bar.n)
                    self.comparisons.append(comparison)
                    if comparison.unverified:
                        why = f"not compared with the source: {comparison.unverified}"
                        self.unverified.append((comparison.tensor.name, why))
        rest = tensors[len(self.comparisons) :]
        self.unverified += [(t.name, "not compared with the source: not reached") for t in rest]
        self.findings += comparison_findings(self.comparisons, self.model, source)

    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """Return one fingerprint for each supported type in the model."""
        by_type: dict[BlockFormat, list[Scan]] = {fmt: [] for fmt in FORMATS.values()}
        for content in self.contents:
            fmt = content.tensor.type.format
            if fmt is not None and content.scan is not None:
                by_type[fmt].append(content.scan)
        return tuple(fingerprint(fmt, scans) for fmt, scans in by_type.items() if scans and patterns_of(fmt))

    @contextmanager
    def _bar(self, what: str, tensors: Sequence[Tensor]) -> Iterator[tqdm[Any]]:
        """Show a progress bar in bytes. A fault that ends the work inside is kept."""
        with progress_bar(what, sum(t.nbytes for t in tensors), "B", self.progress) as bar:
            try:
                yield bar
            except (EnvironmentFault, LlamaRefused, MalformedFile) as error:
                self.fault, self.culprit = str(error), error.culprit


# ---- tensors with the same bytes -------------------------------------------------------------------------------------
# Matrices that are byte-for-byte copies of others in the file: a converter wrote one of them twice.
#
# Tensors are compared if their scans found the same figures. Some copies are intended:
#
# - Vectors, biases and tensors of one value may be equal in many layers.
# - Vocabulary matrices serve as the embeddings, the output and those of layers that predict further tokens.
# - A whole layer may be repeated, in merges that make a model deeper, or in layers that share their weights.


#: Smaller matrices may be equal by chance or by initialization.
_LEAST_BYTES = 1 << 10
_PIECE = 1 << 24


def copy_findings(contents: Sequence[Content], model: Model) -> Iterator[Finding]:
    """Yield a finding for each matrix that is a copy of an earlier one."""
    if model.metadata.get("general.type") == "imatrix":
        return
    known: dict[Hashable, list[Tensor]] = {}
    copies: list[tuple[Content, Tensor]] = []
    for content in contents:
        tensor, figures = content.tensor, _figures(content)
        if figures is None or is_vocabulary(tensor, model):
            continue
        others = known.setdefault(figures, [])
        first = next((t for t in others if _same(t, tensor)), None)
        if first is None:
            others.append(tensor)
        else:
            copies.append((content, first))
    repeated = _repeated_layers(contents, copies)
    for content, first in copies:
        if (_layer(content.tensor), _layer(first)) in repeated:
            continue
        found = f"{quoted(content.tensor.name)} is a copy of {quoted(first.name)}"
        yield finding_at(content, 0, "copy", "a matrix of its own", found)


def _figures(content: Content) -> Hashable | None:
    """Return a key that copies share; None for a tensor that may be a copy."""
    tensor, scan = content.tensor, content.scan
    if scan is None or tensor.nbytes < _LEAST_BYTES or not is_weights(tensor) or is_constant(content):
        return None
    return (
        tensor.type.name, tensor.shape, scan.zero_scales, scan.zero_blocks, scan.subnormal_scales, scan.negative_scales,
        tuple(scan.scale or ()), tuple(scan.minimum or ()), tuple(scan.obeying), scan.codes.tobytes(),
    )  # fmt: skip


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of equal size have the same bytes."""
    mine, theirs = one.raw, other.raw
    return all((mine[at : at + _PIECE] == theirs[at : at + _PIECE]).all() for at in range(0, len(mine), _PIECE))


def _layer(tensor: Tensor) -> int:
    """Return the tensor's layer; -1 if it is in none."""
    match = BLOCK.match(tensor.name)
    return int(match[1]) if match else -1


def _repeated_layers(contents: Sequence[Content], copies: Sequence[tuple[Content, Tensor]]) -> set[tuple[int, int]]:
    """Return the pairs of a layer and the earlier layer that all its matrices are copied from."""
    matrices: dict[int, set[str]] = {}
    for content in contents:
        if _figures(content) is not None:
            matrices.setdefault(_layer(content.tensor), set()).add(content.tensor.name)
    shared: dict[tuple[int, int], set[str]] = {}
    for content, first in copies:
        pair = _layer(content.tensor), _layer(first)
        if content.tensor.name == first.name.replace(f"blk.{pair[1]}.", f"blk.{pair[0]}.", 1):
            shared.setdefault(pair, set()).add(content.tensor.name)
    return {pair for pair, names in shared.items() if pair[0] >= 0 and names == matrices[pair[0]]}
