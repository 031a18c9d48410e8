"""A model that is loaded in llama.cpp: its prompt, the passes over its graph, and its own greedy continuation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ..llama import Llama, LlamaRefused
from ..results import Options
from ..semantics.cuda import MMVQ_TOKENS
from ..support.errors import EnvironmentFault, UsageError
from ..support.progress import progress_bar


class Session:
    """The model in llama.cpp, its prompt, and llama.cpp's own greedy continuation."""

    def __init__(self, path: Path, options: Options) -> None:
        self.llama = Llama(options.time_limit, options.verbose)
        self.note: str | None = None
        #: What an encoder-decoder model reads.
        self.source: list[int] = []
        try:
            self.on_gpu = options.reference == "gpu"
            self.info = self.llama.open(path, options.threads, options.repack, self.on_gpu)
            self.prompt = self.llama.tokenize(options.prompt)
            if not self.prompt:
                raise UsageError("the prompt has no tokens")
            read = len(self.prompt)
            length = read + options.n_predict
            if self.on_gpu:  # room for a batch that MMVQ does not take
                length = max(length, 2 * MMVQ_TOKENS)
            #: An encoder or embedding model: it gives embeddings of the prompt's tokens and does not generate.
            self.embeds = self.llama.make_context(max(options.ctx_size, length), length)
            length = read + options.n_predict
            if self.embeds:
                length = read
            elif self.info["encoder"]:  # it reads the prompt and begins to write from nothing
                self.source = self.prompt
                self.llama.read_source(self.source)
                self.prompt = [self.info["decoder_start"]]
                if self.prompt[0] < 0:
                    raise LlamaRefused("the model names no token to begin with")
            trained = self.info["n_ctx_train"]
            if options.ctx_size and length > options.ctx_size:
                predicted = "" if self.embeds else f" and {options.n_predict} to predict"
                raise UsageError(f"{read} tokens of prompt{predicted} do not fit a context of {options.ctx_size}")
            if self.embeds and length > trained > 0:  # it may hold a table of so many positions
                raise UsageError(f"the prompt has {length} tokens, the model reads {trained} at most")
            if length > trained > 0:
                self.note = f"{length} tokens are more than the {trained} that the model was trained on"
        except BaseException:
            self.llama.close()
            raise
        self._n_predict = options.n_predict
        self._progress = options.progress

    def passes(self) -> Iterator[tuple[list[int], int]]:
        """Batches of tokens, and the position of each, whose GEMMs show all that llama.cpp does with a matrix.

        On the CPU the prompt. On a GPU also its first tokens one at a time, which take other kernels (MMVQ) than many
        do (MMQ); a short prompt is repeated until it is long enough for these. So is what an encoder-decoder model
        reads; when they are through, it has read the prompt again.
        """
        if not self.on_gpu:
            yield self.prompt, 0
        elif not self.source:
            yield _long(self.prompt), 0
            for i, token in enumerate(self.prompt[:MMVQ_TOKENS]):
                yield [token], 0 if self.embeds else i  # without memory each is the first
        else:
            try:
                for source in (_long(self.source), *([t] for t in self.source[:MMVQ_TOKENS])):
                    self.llama.read_source(source)
                    yield self.prompt if len(source) == 1 else _long(self.prompt), 0
            finally:
                with contextlib.suppress(EnvironmentFault):
                    self.llama.read_source(self.source)

    @cached_property
    def continuation(self) -> list[int]:
        """llama.cpp's greedy tokens after the prompt, computed one at a time."""
        bar = progress_bar("tokens: llama.cpp's own", self._n_predict, "token", self._progress)
        with bar:
            return self.llama.generate(self.prompt, self._n_predict, lambda: bar.update())

    def close(self) -> None:
        self.llama.close()


def _long(tokens: list[int]) -> list[int]:
    """Repeated until they are more than MMVQ takes."""
    return tokens * -(-(MMVQ_TOKENS + 1) // len(tokens))
