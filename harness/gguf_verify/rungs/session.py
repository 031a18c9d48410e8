"""A model that is loaded in llama.cpp: its prompt, the passes over its graph, and its own greedy continuation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ..gguf.model import Model
from ..llama.backends import Backend
from ..llama.builds import path_of
from ..llama.library import Llama
from ..llama.process import LlamaRefused
from ..results.options import Options
from ..support.errors import EnvironmentFault, UsageError
from ..support.progress import progress_bar
from ..support.text import counted


def opened_llama(options: Options) -> Llama:
    """A llama.cpp process with the requested build. Raises UsageError, EnvironmentFault."""
    return Llama(options.time_limit, options.verbose, build=path_of(options.llama))


class Session:
    """The model in llama.cpp, its prompt, and llama.cpp's own greedy continuation.

    Args:
        backend: where llama.cpp runs the model.
    """

    def __init__(self, model: Model, options: Options, backend: Backend) -> None:
        self._process = opened_llama(options)
        self.llama = self._process.model
        self.note: str | None = None
        #: What an encoder-decoder model reads.
        self.source: list[int] = []
        try:
            self._backend = backend
            self.info = self.llama.open(model, options.threads, options.repack, backend.name)
            self.prompt = self.llama.tokenize(options.prompt)
            if not self.prompt:
                raise UsageError("the prompt has no tokens")
            read = len(self.prompt)
            length = backend.context_size(read + options.n_predict)
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
                said = f"{read} tokens of prompt{predicted} do not fit a context of {options.ctx_size}"
                raise UsageError(said, "prompt-too-long")
            if self.embeds and length > trained > 0:  # it may hold a table of this number of positions
                said = f"the prompt has {counted(length, 'tokens')}, the model reads {trained} at most"
                raise UsageError(said, "prompt-too-long")
            if length > trained > 0:
                self.note = f"{length} tokens are more than the {trained} that the model was trained on"
        except BaseException:
            self._process.close()
            raise
        self._n_predict = options.n_predict
        self._progress = options.progress
        self._continuation: list[int] | None = None

    def passes(self) -> Iterator[tuple[list[int], int]]:
        """Batches of tokens, and the position of each, whose GEMMs show all that the backend does with a matrix. When
        they are through, an encoder-decoder model has read the prompt again."""
        changed = False
        try:
            for batch in self._backend.batches(self.prompt, self.source, self.embeds):
                if batch.source is not None:
                    changed = True
                    self.llama.read_source(batch.source)
                yield batch.tokens, batch.position
        finally:
            if changed:
                with contextlib.suppress(EnvironmentFault):
                    self.llama.read_source(self.source)

    def continuation(self, after_token: Callable[[], object]) -> list[int]:
        """llama.cpp's greedy tokens after the prompt, computed one at a time."""
        if self._continuation is None:
            with progress_bar("tokens: llama.cpp's own", self._n_predict, "token", self._progress) as bar:

                def generated() -> None:
                    bar.update()
                    after_token()

                self._continuation = self.llama.generate(self.prompt, self._n_predict, generated)
        return self._continuation

    def close(self) -> None:
        self._process.close()
