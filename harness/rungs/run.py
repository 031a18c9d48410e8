"""What all rungs of one run share: the model, the kernel, the llama.cpp processes and the options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ..container import Model, Tensor, printable
from ..errors import EnvironmentFault, UsageError
from ..formats import BlockFormat
from ..kernels import Kernel
from ..progress import progress_bar
from ..reference import Llama, LlamaRefused
from ..semantics import SEMANTICS, Semantics, llama_cpu_semantics

T = TypeVar("T")

DEFAULT_PROMPT = "The quick brown fox jumps over the lazy dog. Once upon a time there was"
DEFAULT_N_PREDICT = 32


@dataclass
class Options:
    """What a user may choose; see the command line's help."""

    prompt: str = DEFAULT_PROMPT
    n_predict: int = DEFAULT_N_PREDICT
    threads: int = 1
    ctx_size: int = 0
    seed: int = 0
    tensor: str | None = None
    repack: bool = False
    time_limit: float = 900.0
    verbose: bool = False
    progress: bool = True


@dataclass
class Run:
    """One verification of one model with one kernel."""

    model: Model
    kernel: Kernel
    options: Options = field(default_factory=Options)

    @cached_property
    def library(self) -> Llama:
        """A llama.cpp process without a model: decoding, quantizing, single products."""
        return Llama(self.options.time_limit, self.options.verbose)

    @cached_property
    def versions(self) -> dict[str, Any]:
        return self.library.versions()

    @cached_property
    def session(self) -> Session:
        """A llama.cpp process with the model. Raises LlamaRefused."""
        return Session(self.model.path, self.options)

    def close(self) -> None:
        """End the processes that were started."""
        for name in ("library", "session"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()

    @property
    def semantics(self) -> Semantics:
        """The kernel's declared semantics."""
        return SEMANTICS[self.kernel.semantics]

    def llama_semantics(self, fmt: BlockFormat) -> Semantics:
        """What llama.cpp's CPU backend computes. Raises EnvironmentFault where the library says otherwise."""
        semantics = llama_cpu_semantics(fmt)
        assert semantics.activations is not None
        actual = self.versions["types"][fmt.type_id]["vec_dot_type"]
        if actual != semantics.activations.type_id:
            raise EnvironmentFault(
                f"this llama.cpp multiplies {fmt.name} with activations of ggml type {actual}, "
                f"the harness knows {semantics.activations.name}"
            )
        return semantics

    def wants(self, name: str) -> bool:
        """Whether `--tensor` selects this tensor."""
        return self.options.tensor is None or re.search(self.options.tensor, name) is not None

    def selected(self) -> list[Tensor]:
        """Tensors to look at. Raises UsageError where the pattern selects none."""
        chosen = [t for name, t in self.model.tensors.items() if self.wants(name)]
        if self.options.tensor is not None and not any(t.type.quantized for t in chosen):
            raise UsageError(f"no {'quantized ' if chosen else ''}tensor matches {self.options.tensor!r}")
        return chosen

    def bar(self, what: str, total: int | None, unit: str) -> tqdm[Any]:
        """A progress bar on standard error, for what takes more than a second."""
        return progress_bar(what, total, unit, self.options.progress)

    def progress(self, what: str, items: Iterable[T], total: int | None = None, unit: str = "it") -> Iterator[T]:
        """The items, with a bar."""
        with self.bar(
            what, total if total is not None else len(items) if isinstance(items, Sized) else None, unit
        ) as bar:
            for item in items:
                yield item
                bar.update()

    def row_bytes(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The tensor's rows as they lie in the file, uint8[N, row bytes], without a copy."""
        return tensor.raw.reshape(tensor.n_rows, tensor.row_bytes)


class Session:
    """The model in llama.cpp, its prompt, and llama.cpp's own greedy continuation."""

    def __init__(self, path: Path, options: Options) -> None:
        self.llama = Llama(options.time_limit, options.verbose)
        self.note: str | None = None
        try:
            self.info = self.llama.open(path, options.threads, options.repack)
            self.prompt = self.llama.tokenize(options.prompt)
            if not self.prompt:
                raise UsageError("the prompt has no tokens")
            length = len(self.prompt) + options.n_predict
            if options.ctx_size and length > options.ctx_size:
                raise UsageError(
                    f"{len(self.prompt)} tokens of prompt and {options.n_predict} to predict do not fit "
                    f"a context of {options.ctx_size}"
                )
            if length > self.info["n_ctx_train"] > 0:
                self.note = (
                    f"{length} tokens are more than the {self.info['n_ctx_train']} that the model was trained on"
                )
            self.has_memory = self.llama.make_context(max(options.ctx_size, length), length)
        except BaseException:
            self.llama.close()
            raise
        self._n_predict = options.n_predict
        self._progress = options.progress

    @cached_property
    def continuation(self) -> list[int]:
        """llama.cpp's greedy tokens after the prompt, computed one at a time."""
        bar = progress_bar("tokens: llama.cpp's own", self._n_predict, "token", self._progress)
        with bar:
            return self.llama.generate(self.prompt, self._n_predict, lambda: bar.update())

    def close(self) -> None:
        self.llama.close()


def where(tensor: str, row: int, token: int | None = None, block: int | None = None) -> str:
    """A place in words, safe to print."""
    text = f"{printable(tensor, 64)} row {row}"
    if block is not None:
        text += f" block {block}"
    return text if token is None else f"{text} token {token}"


__all__ = ["DEFAULT_N_PREDICT", "DEFAULT_PROMPT", "LlamaRefused", "Options", "Run", "Session", "where"]
