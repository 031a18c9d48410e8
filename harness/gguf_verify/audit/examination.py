"""The part of an audit that needs llama.cpp's process: scanning every block, and comparing with a source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from ..formats.block import BlockFormat
from ..formats.tensor_types import FORMATS
from ..gguf.file import Tensor
from ..gguf.model import Model
from ..gguf.records import Finding
from ..llama.files import Scan
from ..llama.library import Llama, WithoutLlama
from ..llama.process import LlamaRefused
from ..support.errors import Culprit, EnvironmentFault, MalformedFile
from ..support.progress import progress_bar, under_way
from .codes import unused_codes
from .content import Content, content_findings, contents, sign_findings
from .copies import copy_findings
from .fingerprint import Fingerprint, fingerprint, patterns_of
from .outliers import outlier_findings
from .zeros import zero_findings

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
