"""Calls of a model: loading, tokens, evaluations of its graph."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support import protocol
from ...support.lanes import Lanes
from .. import ggml, loading
from ..backends.device import Device
from .calls import Call, CallFailed, Libraries, NotLoaded, Reply, text
from .fused_tap import Record, Recorder, Windows
from .listener import Listener
from .node_tap import NodeTap
from .placement import OnDevice, Placement
from .tap import Tap

#: Limit of tokens per byte; a tokenizer that exceeds it is broken, or its file is crafted.
MOST_TOKENS_A_BYTE = 64


@dataclass(frozen=True)
class _Others:
    """The place of tokens in a batch.

    Args:
        own: their slot.
        ahead, behind: tokens of another slot.
    """

    own: int = 0
    ahead: Sequence[int] = ()
    behind: Sequence[int] = ()

    @property
    def other(self) -> int:
        """The other slot."""
        return 1 if self.own == 0 else 0


_ALONE = _Others()


class LoadedModel:
    """The model in this process and its context, if any."""

    def __init__(
        self, link: Connection, libraries: Libraries, device_of: Callable[[str], Device], lanes: Lanes | None = None
    ) -> None:
        self._link, self._lib, self._device_of, self._lanes = link, libraries.api, device_of, lanes
        self._libraries = libraries
        self._device: Device
        self._placed: Placement
        self._model: Any = None
        self._context: Any = None
        self._vocab: Any = None
        self._callback: Any = None
        self._tap: Listener | None = None
        self._record = Record()
        self._embeds = False
        self._source: list[int] = []
        self._threads = 1

    def calls(self) -> dict[str, Call]:
        """Return the calls by name, for the methods of the same names of `gguf_verify.llama.model.LoadedModel`."""
        return {
            "open": self.open, "open_on": self.open_on, "make_context": self.make_context,
            "read_source": self.read_source, "tokenize": self.tokenize, "pieces": self.pieces,
            "generate": self.generate, "evaluate": self.evaluate,
        }  # fmt: skip

    def open(self, path: str, threads: int, repack: bool, backend: str) -> Reply:
        """Load a model with all its layers on one backend."""
        self._device = self._device_of(backend)
        return self._open(path, threads, repack, self._device)

    def open_on(self, path: str, threads: int, repack: bool, device: str, layers: int) -> Reply:
        """Load a model with some or all of its layers on a device of ggml's registry."""
        return self._open(path, threads, repack, OnDevice(device, layers))

    def _open(self, path: str, threads: int, repack: bool, placed: Placement) -> Reply:
        lib = self._lib
        self._close()
        self._placed = placed
        params = lib.llama_model_default_params()
        params.split_mode = 0  # LLAMA_SPLIT_MODE_NONE
        params.use_extra_bufts = repack
        placed.place_model(params)
        self._model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise self._not_loaded(path)
        self._threads = threads
        self._vocab = lib.llama_model_get_vocab(self._model)
        buffer = c.create_string_buffer(256)
        lib.llama_model_desc(self._model, buffer, 256)
        return {
            "description": text(buffer.value),
            "n_vocab": lib.llama_vocab_n_tokens(self._vocab),
            "n_ctx_train": lib.llama_model_n_ctx_train(self._model),
            "encoder": bool(lib.llama_model_has_encoder(self._model)),
            "decoder": bool(lib.llama_model_has_decoder(self._model)),
            "decoder_start": self._decoder_start(),
            "added_bos": int(lib.llama_vocab_bos(self._vocab)) if lib.llama_vocab_get_add_bos(self._vocab) else -1,
        }, ()

    def _close(self) -> None:
        """Free the model that was open before, and its context."""
        if self._context:
            self._lib.llama_free(self._context)
        if self._model:
            self._lib.llama_model_free(self._model)
        self._model = self._context = self._vocab = None
        self._source = []
        self._libraries.errors.clear()

    def _not_loaded(self, path: str) -> CallFailed:
        """Find out why a file was not loaded. If llama.cpp does not load it without memory for its weights either, and
        supports its architecture, the file is at fault; otherwise the device, the memory or this llama.cpp."""
        said = loading.reason(self._libraries.errors)
        try:
            why = loading.why_not_loaded(self._lib, path, False, self._libraries.errors)
        except (loading.Untried, MemoryError):
            why = None
        if why is not None:
            return NotLoaded(why, not loading.for_another_program(why))
        return NotLoaded(said, False) if said else CallFailed("llama.cpp does not load the file")

    def _decoder_start(self) -> int:
        """Return the token with which an encoder-decoder model starts to write, -1 if there is none."""
        start = int(self._lib.llama_model_decoder_start_token(self._model))
        return start if start >= 0 else int(self._lib.llama_vocab_bos(self._vocab))

    def make_context(
        self,
        n_ctx: int,
        n_batch: int,
        n_ubatch: int = 0,
        type_k: int = -1,
        type_v: int = -1,
        flash: int = -1,
        sequences: int = 1,
    ) -> Reply:
        """Make a context of n_ctx tokens that takes n_batch of them in one batch. An encoder's returns embeddings:
        those of each token, or a reranker's score, because only that pooling computes the reranker's matrices.

        Args:
            n_ubatch: tokens per evaluation of the graph; 0 for n_batch.
            type_k, type_v: ggml types of the cache; -1 for llama.cpp's own choice.
            flash: whether attention is one operation, 1 or 0; -1 for llama.cpp's own choice.
            sequences: number of sequences that share one cache.
        """
        lib = self._lib
        if self._context:
            lib.llama_free(self._context)
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch, params.n_ubatch = n_batch, n_ubatch or n_batch
        params.type_k = type_k if type_k >= 0 else params.type_k
        params.type_v = type_v if type_v >= 0 else params.type_v
        params.flash_attn_type = flash
        if sequences > 1:
            params.n_seq_max, params.kv_unified = sequences, True
        params.n_threads = params.n_threads_batch = self._threads
        params.no_perf = True
        self._placed.place_context(params)
        self._callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        params.cb_eval = self._callback
        self._init_context(params)
        self._embeds = not (lib.llama_get_memory(self._context) and lib.llama_model_has_decoder(self._model))
        if self._embeds:
            ranks = lib.llama_pooling_type(self._context) == lib.LLAMA_POOLING_TYPE_RANK
            params.embeddings = True
            params.pooling_type = lib.LLAMA_POOLING_TYPE_RANK if ranks else lib.LLAMA_POOLING_TYPE_NONE
            lib.llama_free(self._context)
            self._init_context(params)
        return {"embeds": self._embeds}, ()

    def _init_context(self, params: Any) -> None:
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise CallFailed("llama.cpp cannot make a context for the model")

    def read_source(self, tokens: list[int]) -> Reply:
        """Set the source of an encoder-decoder model; each later evaluation encodes it again."""
        self._source = tokens
        return {}, ()

    # Text and tokens.

    def tokenize(self, text: str) -> Reply:
        """Tokenize a text, with the special tokens that the model requires."""
        raw = text.encode()
        size = len(raw) + 16
        for _ in range(2):  # if the buffer is too small, llama.cpp returns minus the number of tokens
            tokens = (self._lib.llama_token * size)()
            n = int(self._lib.llama_tokenize(self._vocab, raw, len(raw), tokens, size, True, True))
            if n >= 0:
                return {"tokens": list(tokens[:n])}, ()
            size = -n
            if size > MOST_TOKENS_A_BYTE * len(raw) + 4096:
                break
        raise CallFailed(f"llama.cpp's tokenizer wants {size:,} tokens for a prompt of {len(raw):,} bytes")

    def pieces(self, tokens: list[int]) -> Reply:
        """Return each token's text."""
        out = []
        for token in tokens:
            buffer = c.create_string_buffer(128)
            n = self._lib.llama_token_to_piece(self._vocab, token, buffer, 128, 0, True)
            out.append(buffer.raw[: max(0, n)].decode(errors="replace"))
        return {"pieces": out}, ()

    # Evaluations.

    def generate(self, tokens: list[int], n: int) -> Reply:
        """Generate the greedy continuation, one token at a time, without taps."""
        logits = self._decode(tokens, len(tokens) - 1)
        out: list[int] = []
        while True:
            out.append(int(np.argmax(logits[-1])))
            protocol.send(self._link, {"event": "token"})
            if len(out) == n:
                return {"tokens": out}, ()
            logits = self._decode(out[-1:], 0, position=len(tokens) + len(out) - 1)

    def evaluate(
        self,
        tokens: list[int],
        mode: str,
        options: dict[str, Any],
        position: int = 0,
        first: int = 0,
        sequence: int = 0,
        ahead: Sequence[int] = (),
        behind: Sequence[int] = (),
    ) -> Reply:
        """Evaluate all tokens in one batch, from a position whose predecessors were evaluated last. Returns logits
        float32[len(tokens) - first, n_vocab] of those from index `first` on, or embeddings. Modes: plain, capture,
        graft, nodes, record, windows.

        Args:
            sequence: the slot of the tokens.
            ahead, behind: tokens of another sequence (slot 0, or else 1) in the same batch.

        In capture and graft the parent gets an event for each product with weights and answers it, in graft with the
        output with which the graph continues. For "ahead" in the options, see `Tap`.
        """
        tap: Listener | None = None
        if mode == "nodes":
            tap = NodeTap(self._link, self._lanes, **options)
        elif mode == "record":
            tap = Recorder(self._link, self._lanes)
            self._record = tap.record
        elif mode == "windows":
            tap = Windows(self._link, self._lanes, self._record, **options)
        elif mode != "plain":
            tap = Tap(self._link, self._lanes, self._device, mode == "graft", **options)
        self._tap = tap
        try:
            others = _Others(sequence, ahead, behind)
            logits = self._decode(tokens, first, position, others)
        finally:
            self._tap = None
            if tap is not None:
                tap.settle()
        if tap is None:
            return {"seen": {"lookup": {}, "unsupported": {}, "used": {}}}, (logits,)
        if tap.failure is not None:
            raise tap.failure
        more: dict[str, Any] = {}
        if isinstance(tap, Recorder):
            more = {"nodes": tap.told()}
        elif isinstance(tap, Windows):
            more = {"compared": tap.compared, "fused": tap.fused}
        return {"seen": tap.seen, **more}, (logits,)

    def _decode(
        self, tokens: list[int], first: int, position: int = 0, others: _Others = _ALONE
    ) -> npt.NDArray[np.float32]:
        lib = self._lib
        if position == 0:
            memory = lib.llama_get_memory(self._context)
            if memory:
                lib.llama_memory_clear(memory, True)
            if self._source:
                self._batch("llama_encode", self._source, 0, 0)
        self._batch("llama_encode" if self._embeds else "llama_decode", tokens, first, position, others)
        if not self._embeds:
            rows, width = len(tokens) - first, lib.llama_vocab_n_tokens(self._vocab)
            out = lib.llama_get_logits(self._context)
        elif lib.llama_pooling_type(self._context) == lib.LLAMA_POOLING_TYPE_RANK:
            rows, width = 1, lib.llama_model_n_cls_out(self._model)
            out = lib.llama_get_embeddings_seq(self._context, 0)
        else:
            rows, width = len(tokens), lib.llama_model_n_embd_out(self._model)
            out = lib.llama_get_embeddings(self._context)
        if not out:
            raise CallFailed("llama.cpp gives neither logits nor embeddings")
        return np.ctypeslib.as_array(c.cast(out, c.POINTER(c.c_float)), (rows, width)).copy()

    def _batch(self, function: str, tokens: list[int], first: int, position: int, others: _Others = _ALONE) -> None:
        """Run llama_encode or llama_decode on tokens of one sequence, with outputs for those from index `first` on, and
        on tokens of another sequence, without outputs."""
        lib = self._lib
        if self._tap is not None:
            self._tap.begin()
        rows = [(token, i, others.other, False) for i, token in enumerate(others.ahead)]
        rows += [(token, position + i, others.own, i >= first) for i, token in enumerate(tokens)]
        rows += [(token, i, others.other, False) for i, token in enumerate(others.behind)]
        n = len(rows)
        batch = lib.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            for i, (token, at, sequence, wanted) in enumerate(rows):
                batch.token[i] = token
                batch.pos[i] = at
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = sequence
                batch.logits[i] = wanted
            code = getattr(lib, function)(self._context, batch)
            if code != 0:
                raise CallFailed(f"{function} returned {code} for {n} tokens")
        finally:
            lib.llama_batch_free(batch)

    def _on_node(self, t: int, ask: bool, _data: Any) -> bool:
        if self._tap is None:
            return not ask
        return self._tap(c.cast(t, ggml.TensorP), ask)
