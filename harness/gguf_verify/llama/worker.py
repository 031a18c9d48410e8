"""The child process that runs llama.cpp: `python -m gguf_verify.llama.worker FD`.

It serves one call after the other over the given socket. What llama.cpp prints goes to standard error, which the parent
keeps. Whatever kills this process is a finding of the parent's, not a crash of the harness.
"""

from __future__ import annotations

import ctypes as c
import os
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support import protocol

#: Values of a type without blocks that are one block of `block_products`.
_SLICE = 32

#: Scans are told of so many at a time, or when they took so many bytes: a message takes longer than a small scan.
_TOLD_AT_ONCE, _TOLD_BYTES = 16, 1 << 25

#: More than any model has.
_ALL_LAYERS = 1 << 20

Reply = tuple[dict[str, Any], tuple[npt.NDArray[Any], ...]]


class CallFailed(Exception):
    """llama.cpp refused a call in an orderly way."""


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        c.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Worker:
    """State of the child: the loaded model and its context, if any."""

    def __init__(self, link: Connection) -> None:
        from . import bindings, ggml, nodes

        self.link = link
        self.ggml = ggml
        self.nodes = nodes
        self.bindings = bindings
        self.llama = bindings.api
        # kept: ctypes frees a callback that nothing refers to
        self._log = self.llama.llama_log_callback(lambda _level, text, _data: _write_log(text))
        self.llama.llama_log_set(self._log, None)
        ggml.probe_abi()
        ggml.ggml_cpu_init()
        self.llama.llama_backend_init()
        self.model: Any = None
        self.context: Any = None
        self.vocab: Any = None
        self.on_gpu = False
        self.embeds = False
        self.source: list[int] = []
        self.threads = 1
        self._sweeper: Any = None
        self._device: Any = None
        self._sm = 0
        self._callback: Any = None
        self._tap: Callable[[Any, bool], bool] | None = None

    def prepare(self) -> None:
        """What most calls need, while the parent may still be starting."""
        from . import file_scan as sweep  # noqa: F401

        self.bindings.version()

    # ---- the library ------------------------------------------------------------------------------------------------

    def hello(self) -> Reply:
        g = self.ggml
        types = {}
        for t in self._type_ids():
            traits = g.ggml_get_type_traits(t).contents
            name = traits.type_name.decode()
            vec_dot = g.ggml_get_type_traits_cpu(t).contents.vec_dot_type
            types[t] = {
                "name": name, "block_size": traits.blck_size, "block_bytes": traits.type_size,
                "quantized": traits.is_quantized, "vec_dot_type": vec_dot,
            }  # fmt: skip
        return {
            "llama_cpp_python": self.bindings.version(),
            "llama_cpp": _text(getattr(self.llama, "llama_version", lambda: b"?")()),
            "ggml": g.version(),
            "system": " ".join(_text(self.llama.llama_print_system_info()).split()),
            "types": types,
        }, ()

    def gpu(self) -> Reply:
        """The first GPU of the CUDA backend, or why there is none."""
        from . import cuda_device as device

        try:
            found, name, self._sm = device.find_gpu()
            self._device = self._device or device.Device(found)
        except device.NoDevice as error:
            return {"missing": str(error)}, ()
        return {"name": name, "sm": self._sm}, ()

    def activations(self, semantics: str, x: npt.NDArray[np.float32]) -> Reply:
        """Activations as the CUDA backend quantizes them for products of a definition: see `device`."""
        return {}, (self._device.activations(semantics, x),)

    def _type_ids(self) -> list[int]:
        quiet = self.ggml.LogCallback(lambda _level, _text, _data: None)  # the refusals are no news
        self.ggml.ggml_log_set(quiet, None)
        try:
            return list(self.ggml.type_ids())
        finally:
            self.llama.llama_log_set(self._log, None)

    def to_float(self, type: int, n: int, raw: npt.NDArray[np.uint8]) -> Reply:
        out = np.empty(n, np.float32)
        convert = self.ggml.ggml_get_type_traits(type).contents.to_float
        if not convert:  # calling it would kill the process
            raise CallFailed(f"llama.cpp has no conversion from ggml type {type}")
        convert(self.ggml.pointer(raw), self.ggml.pointer(out), n)
        return {}, (out,)

    def from_float(self, type: int, x: npt.NDArray[np.float32]) -> Reply:
        """Rows as llama.cpp's CPU backend quantizes activations: float32[M, K] → uint8[M, row bytes]."""
        return {}, (self._from_float(type, x),)

    def _from_float(self, type: int, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        traits = self.ggml.ggml_get_type_traits(type).contents
        if x.shape[1] % traits.blck_size:  # no product of this width takes activations of the type
            return np.zeros((len(x), 0), np.uint8)
        out = np.zeros((len(x), x.shape[1] // traits.blck_size * traits.type_size), np.uint8)
        convert = self.ggml.ggml_get_type_traits_cpu(type).contents.from_float
        for row, target in zip(x, out, strict=True):
            convert(self.ggml.pointer(row), self.ggml.pointer(target), x.shape[1])
        return out

    def quantize(
        self, type: int, x: npt.NDArray[np.float32], importance: npt.NDArray[np.float32] | None = None
    ) -> Reply:
        """`ggml_quantize_chunk`: float32[rows, K] → uint8[rows, row bytes]; uniform importance if one is needed."""
        g = self.ggml
        rows, k = x.shape
        traits = g.ggml_get_type_traits(type).contents
        out = np.zeros((rows, k // traits.blck_size * traits.type_size), np.uint8)
        if importance is None and g.ggml_quantize_requires_imatrix(type):
            importance = np.ones(k, np.float32)
        g.ggml_quantize_chunk(
            type, g.pointer(x), g.pointer(out), 0, rows, k, None if importance is None else g.pointer(importance)
        )
        return {}, (out,)

    def validate(self, type: int, raw: npt.NDArray[np.uint8]) -> Reply:
        return {"valid": bool(self.ggml.ggml_validate_row_data(type, self.ggml.pointer(raw), raw.nbytes))}, ()

    def block_products(
        self, type: int, threads: int, gpu: bool, w: npt.NDArray[np.uint8], x: npt.NDArray[np.float32]
    ) -> Reply:
        """Every partial product in one op: W seen as [32, N, K/32], X as [32, M, K/32]; float32[K/32, M, N]. Of a type
        without blocks 32 values are one; the last ones, where K is no multiple, take a second op."""
        if gpu:
            return {}, (self._device.block_products(type, w, x),)
        g = self.ggml
        traits = g.ggml_get_type_traits(type).contents
        block = traits.blck_size if traits.blck_size > 1 else _SLICE
        nbytes = block // traits.blck_size * traits.type_size
        n, (m, k) = len(w), x.shape
        nb = -(-k // block)
        size = w.nbytes + 4 * x.nbytes + 4 * nb * m * n + (8 << 20) + threads * (2 << 20)
        ctx = g.ggml_init(g.InitParams(size, None, False))
        try:
            wt = g.ggml_new_tensor_2d(ctx, type, k, n)
            xt = g.ggml_new_tensor_2d(ctx, g.F32, k, m)
            c.memmove(wt.contents.data, g.pointer(w), w.nbytes)
            c.memmove(xt.contents.data, g.pointer(x), x.nbytes)
            parts = []
            for width, first, count in ((block, 0, k // block), (k % block, k // block, 1)):
                if width and count:
                    wv = g.ggml_view_3d(ctx, wt, width, n, count, w.shape[1], nbytes, first * nbytes)
                    xv = g.ggml_view_3d(ctx, xt, width, m, count, 4 * k, 4 * block, 4 * block * first)
                    parts.append(self._computed(ctx, g.ggml_mul_mat(ctx, wv, xv), threads, (count, m, n)))
        finally:
            g.ggml_free(ctx)
        return {}, (np.concatenate(parts),)

    def multiply(
        self, type: int, threads: int, gpu: bool, w: npt.NDArray[np.uint8], x: npt.NDArray[np.float32]
    ) -> Reply:
        """One MUL_MAT: weights uint8[N, row bytes], activations float32[M, K] → float32[M, N]."""
        if gpu:
            return {}, (self._device.multiply(type, w, x),)
        g = self.ggml
        n, (m, k) = len(w), x.shape
        size = w.nbytes + 4 * x.nbytes + 4 * m * n + (8 << 20) + threads * (2 << 20)
        ctx = g.ggml_init(g.InitParams(size, None, False))
        try:
            wt = g.ggml_new_tensor_2d(ctx, type, k, n)
            xt = g.ggml_new_tensor_2d(ctx, g.F32, k, m)
            c.memmove(wt.contents.data, g.pointer(w), w.nbytes)
            c.memmove(xt.contents.data, g.pointer(x), x.nbytes)
            out = self._computed(ctx, g.ggml_mul_mat(ctx, wt, xt), threads, (m, n))
        finally:
            g.ggml_free(ctx)
        return {}, (out,)

    def _computed(self, ctx: Any, y: Any, threads: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """The values of a float32 tensor of a context, computed on the CPU."""
        g = self.ggml
        graph = g.ggml_new_graph(ctx)
        g.ggml_build_forward_expand(graph, y)
        if g.ggml_graph_compute_with_ctx(ctx, graph, threads) != 0:
            raise CallFailed("ggml_graph_compute failed")
        out = np.empty(shape, np.float32)
        c.memmove(g.pointer(out), y.contents.data, out.nbytes)
        return out

    def quantize_file(self, source: str, target: str, ftype: int, pure: bool, threads: int) -> Reply:
        params = self.llama.llama_model_quantize_default_params()
        params.ftype = ftype
        params.pure = pure
        params.nthread = threads
        params.allow_requantize = True
        if self.llama.llama_model_quantize(os.fsencode(source), os.fsencode(target), c.byref(params)) != 0:
            raise CallFailed(f"llama_model_quantize failed for {os.path.basename(source)}")
        return {}, ()

    # ---- passes over a mapped file ----------------------------------------------------------------------------------

    def _sweep(self) -> Any:
        if self._sweeper is None:
            from . import file_scan as sweep

            self._sweeper = sweep.Sweeper(lambda n: protocol.send(self.link, {"event": "bytes", "n": n}))
        return self._sweeper

    def _part(self, path: str, identity: list[int], start: int, nbytes: int) -> Any:
        from . import file_scan as sweep

        try:
            return self._sweep().part_of(path, identity, start, nbytes)
        except (sweep.Unusable, OSError) as error:
            raise CallFailed(str(error)) from None

    def scans(
        self, files: list[tuple[str, list[int]]], kinds: list[dict[str, Any]], threads: int,
        tensors: npt.NDArray[np.int64],
    ) -> Reply:  # fmt: skip
        """Decode every block, compare, tally: see `sweep.Sweeper.scans`. Tensors are int64[n, 5]: number of the file
        and of the kind, offset, bytes, bytes of a row. An event for some of them at a time: figures of each, codes,
        and drawn blocks, their values, and those of the first that differ, one tensor's after the other."""
        from . import file_scan as sweep

        def jobs() -> Iterator[sweep.Job]:
            for file, kind, start, nbytes, row_bytes in tensors.tolist():
                path, identity = files[file]
                yield sweep.Job(self._part(path, identity, start, nbytes), row_bytes=row_bytes, **kinds[kind])

        done: list[sweep.Result] = []

        def tell() -> None:
            if done:
                codes, *others = zip(*(arrays for _, arrays in done), strict=True)
                flat = [np.concatenate([a.reshape(-1) for a in of]) for of in others]
                header = {"event": "scan", "figures": [figures for figures, _ in done]}
                protocol.send(self.link, header, np.stack(codes), *flat)
                done.clear()

        try:
            nbytes = 0
            for found, size in zip(self._sweep().scans(jobs(), threads), tensors[:, 3].tolist(), strict=True):
                done.append(found)
                nbytes += size
                if len(done) >= _TOLD_AT_ONCE or nbytes >= _TOLD_BYTES:
                    tell()
                    nbytes = 0
        except (sweep.Unusable, OSError) as error:
            raise CallFailed(str(error)) from None
        finally:
            tell()  # what was done before something broke it off, too
        return {}, ()

    def requantize(
        self, path: str, identity: list[int], start: int, nbytes: int, type: int,
        source: str, source_identity: list[int], source_start: int, source_nbytes: int, source_type: int,
        n_rows: int, k: int, threads: int,
    ) -> Reply:  # fmt: skip
        """Compare a tensor with what llama.cpp makes of its source: see `sweep.Sweeper.requantize`."""
        if source_type != type and self.ggml.ggml_quantize_requires_imatrix(type):
            raise CallFailed("llama.cpp makes this type with an importance matrix only")
        target = self._part(path, identity, start, nbytes).mapped
        raw = self._part(source, source_identity, source_start, source_nbytes).mapped
        from . import file_scan as sweep

        try:
            figures, block = self._sweep().requantize(raw, source_type, target, type, n_rows, k, threads)
        except sweep.Unusable as error:
            raise CallFailed(str(error)) from None
        return figures, (block,)

    # ---- a model ----------------------------------------------------------------------------------------------------

    def open(self, path: str, threads: int, repack: bool, gpu: bool) -> Reply:
        """Load a model: all of its layers on the first GPU, or none."""
        lib = self.llama
        params = lib.llama_model_default_params()
        self.on_gpu = gpu
        params.n_gpu_layers = _ALL_LAYERS if gpu else 0
        params.split_mode, params.main_gpu = 0, 0 if gpu else -1  # LLAMA_SPLIT_MODE_NONE; -1: no GPU for anything
        params.use_extra_bufts = repack
        self.model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise CallFailed("llama.cpp does not load the file")
        self.threads = threads
        self.vocab = lib.llama_model_get_vocab(self.model)
        buffer = c.create_string_buffer(256)
        lib.llama_model_desc(self.model, buffer, 256)
        return {
            "description": _text(buffer.value),
            "n_vocab": lib.llama_vocab_n_tokens(self.vocab),
            "n_ctx_train": lib.llama_model_n_ctx_train(self.model),
            "encoder": bool(lib.llama_model_has_encoder(self.model)),
            "decoder": bool(lib.llama_model_has_decoder(self.model)),
            "decoder_start": self._decoder_start(),
        }, ()

    def _decoder_start(self) -> int:
        """The token with which an encoder-decoder model begins to write, -1 where it names none."""
        start = int(self.llama.llama_model_decoder_start_token(self.model))
        return start if start >= 0 else int(self.llama.llama_vocab_bos(self.vocab))

    def make_context(self, n_ctx: int, n_batch: int) -> Reply:
        """A context of n_ctx tokens that takes n_batch of them in one batch; of an encoder, one that gives embeddings:
        each token's, or a reranker's score, whose matrices only that way of pooling computes."""
        lib = self.llama
        if self.context:
            lib.llama_free(self.context)
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = n_batch
        params.n_threads = params.n_threads_batch = self.threads
        params.no_perf = True
        # a llama.cpp with a GPU would take large batches there, though the weights are not
        params.op_offload = params.offload_kqv = self.on_gpu
        self._callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        params.cb_eval = self._callback
        self._init_context(params)
        self.embeds = not (lib.llama_get_memory(self.context) and lib.llama_model_has_decoder(self.model))
        if self.embeds:
            ranks = lib.llama_pooling_type(self.context) == lib.LLAMA_POOLING_TYPE_RANK
            params.embeddings = True
            params.pooling_type = lib.LLAMA_POOLING_TYPE_RANK if ranks else lib.LLAMA_POOLING_TYPE_NONE
            lib.llama_free(self.context)
            self._init_context(params)
        return {"embeds": self.embeds}, ()

    def _init_context(self, params: Any) -> None:
        self.context = self.llama.llama_init_from_model(self.model, params)
        if not self.context:
            raise CallFailed("llama.cpp makes no context for the model")

    def read_source(self, tokens: list[int]) -> Reply:
        """What an encoder-decoder model has read before it writes: encoded anew at each later call."""
        self.source = tokens
        return {}, ()

    def tokenize(self, text: str) -> Reply:
        raw = text.encode()
        size = len(raw) + 16
        tokens = (self.llama.llama_token * size)()
        n = self.llama.llama_tokenize(self.vocab, raw, len(raw), tokens, size, True, True)
        if n < 0:
            raise CallFailed("the prompt does not fit the tokenizer's buffer")
        return {"tokens": list(tokens[:n])}, ()

    def pieces(self, tokens: list[int]) -> Reply:
        """Each token's text."""
        out = []
        for token in tokens:
            buffer = c.create_string_buffer(128)
            n = self.llama.llama_token_to_piece(self.vocab, token, buffer, 128, 0, True)
            out.append(buffer.raw[: max(0, n)].decode(errors="replace"))
        return {"pieces": out}, ()

    def generate(self, tokens: list[int], n: int) -> Reply:
        """Greedy continuation, one token at a time; no node is tapped."""
        self._tap = None
        logits = self._decode(tokens, all_logits=False)
        out: list[int] = []
        while True:
            out.append(int(np.argmax(logits[-1])))
            protocol.send(self.link, {"event": "token"})
            if len(out) == n:
                return {"tokens": out}, ()
            logits = self._decode(out[-1:], all_logits=False, position=len(tokens) + len(out) - 1)

    def evaluate(self, tokens: list[int], mode: str, options: dict[str, Any], position: int = 0) -> Reply:
        """All tokens in one batch, from a position whose predecessors were evaluated last; logits float32[len(tokens),
        n_vocab], or embeddings. Modes: plain, capture, graft.

        In capture and graft the parent gets an event for each product with weights and answers it; in graft its answer
        is the output with which the graph goes on.
        """
        failure: list[BaseException] = []
        seen: dict[str, dict[str, Any]] = {"lookup": {}, "unsupported": {}, "used": {}}

        def tap(t: Any, ask: bool) -> bool:
            if failure:
                return ask  # asks to be called, so that the graph can be broken off
            try:
                return self._tap_node(t, ask, mode, options, seen)
            except BaseException as error:  # must not unwind through C
                failure.append(error)
                return False

        self._tap = None if mode == "plain" else tap
        try:
            logits = self._decode(tokens, all_logits=True, position=position)
        finally:
            self._tap = None
        if failure:
            raise failure[0]
        return {"seen": seen}, (logits,)

    def _decode(self, tokens: list[int], all_logits: bool, position: int = 0) -> npt.NDArray[np.float32]:
        lib = self.llama
        if position == 0:
            memory = lib.llama_get_memory(self.context)
            if memory:
                lib.llama_memory_clear(memory, True)
            if self.source:
                self._batch("llama_encode", self.source, True, 0)
        self._batch("llama_encode" if self.embeds else "llama_decode", tokens, all_logits, position)
        if not self.embeds:
            rows, width = len(tokens) if all_logits else 1, lib.llama_vocab_n_tokens(self.vocab)
            out = lib.llama_get_logits(self.context)
        elif lib.llama_pooling_type(self.context) == lib.LLAMA_POOLING_TYPE_RANK:
            rows, width = 1, lib.llama_model_n_cls_out(self.model)
            out = lib.llama_get_embeddings_seq(self.context, 0)
        else:
            rows, width = len(tokens), lib.llama_model_n_embd_out(self.model)
            out = lib.llama_get_embeddings(self.context)
        if not out:
            raise CallFailed("llama.cpp gives neither logits nor embeddings")
        return np.ctypeslib.as_array(c.cast(out, c.POINTER(c.c_float)), (rows, width)).copy()

    def _batch(self, function: str, tokens: list[int], all_outputs: bool, position: int) -> None:
        """llama_encode or llama_decode of tokens of one sequence."""
        lib = self.llama
        n = len(tokens)
        batch = lib.llama_batch_init(n, 0, 1)
        try:
            batch.n_tokens = n
            for i, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = position + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = all_outputs or i == n - 1
            code = getattr(lib, function)(self.context, batch)
            if code != 0:
                raise CallFailed(f"{function} returned {code} for {n} tokens")
        finally:
            lib.llama_batch_free(batch)

    def _on_node(self, t: int, ask: bool, _data: Any) -> bool:
        if self._tap is None:
            return not ask
        return self._tap(c.cast(t, self.ggml.TensorP), ask)

    def _note_uses(self, node: Any, op: str, seen: dict[str, dict[str, Any]]) -> None:
        """What a node does with weights, but multiply them with activations."""
        if op in self.nodes.VIEWS:
            return
        for i, source in enumerate(node.src):
            if not source:
                break
            if (i == 0 and op in self.nodes.PRODUCTS) or not self.ggml.is_weight(source):
                continue
            name = self.nodes.weights_name(source.contents)
            if op == "GET_ROWS":
                kind = self.ggml.ggml_get_type_traits(source.contents.type).contents.type_name
                seen["lookup"][name] = kind.decode()
            elif op not in seen["used"].setdefault(name, []):
                seen["used"][name].append(op)

    def _tap_node(self, t: Any, ask: bool, mode: str, options: dict[str, Any], seen: dict[str, dict[str, Any]]) -> bool:
        g = self.ggml
        node = t.contents
        op = g.ggml_op_name(node.op).decode()
        if not node.src[0]:
            return not ask
        w = node.src[0].contents
        name = self.nodes.weights_name(w)
        traits = g.ggml_get_type_traits(w.type).contents
        if ask:
            self._note_uses(node, op, seen)
            if op not in self.nodes.PRODUCTS or not (traits.is_quantized or g.is_weight(node.src[0])):
                return False  # what is not quantized may be a cache or a result, as in attention
            if not traits.is_quantized and w.type not in self.nodes.ELEMENTS:
                why: str | None = f"products with {traits.type_name.decode()} are not covered"
            else:
                why = self.nodes.obstacle(node)
            if why is not None:
                seen["unsupported"][name] = why
            return why is None
        try:
            parts = self.nodes.layout(node)
        except ValueError as error:
            raise CallFailed(f"{name} {error}") from None
        header: dict[str, Any] = {
            "event": "gemm", "tensor": name, "node": node.name.decode(errors="replace"), "type": w.type,
            "first_rows": parts.first_rows, "on_gpu": g.on_cuda(t), "experts": op == "MUL_MAT_ID",
            "tokens": node.ne[2] if op == "MUL_MAT_ID" else node.src[1].contents.ne[1],
        }  # fmt: skip
        x = g.read_tensor(node.src[1])
        y = g.read_tensor(t)
        if options.get("checksum") and g.readable(node.src[0]):
            header["crc32"] = [zlib.crc32(g.read_bytes(node.src[0], at, parts.nbytes).data) for at in parts.offsets]
        activations = options.get("activations", ())
        if activations and not traits.is_quantized:  # rounded to the weights' type, or not at all
            activations = [w.type] if w.type != g.F32 else []
        if not self.on_gpu:
            quantized = {a: self._from_float(a, x) for a in activations}
        else:
            quantized = self._on_gpu(header, x) if activations else {}
        header["activations"] = list(quantized)
        arrays = [x, y, parts.matrix, parts.row, *quantized.values()]
        protocol.send(self.link, header, *arrays)
        answer, given = protocol.receive(self.link)
        if answer.get("stop"):
            raise CallFailed("stopped")
        if mode == "graft" and given:
            g.write_tensor(t, given[0])
        return True

    def _on_gpu(self, header: dict[str, Any], x: npt.NDArray[np.float32]) -> dict[int, npt.NDArray[np.uint8]]:
        """The activations as the CUDA backend quantized them for this product, by their format's number; nothing where
        its definition is not known."""
        from ..formats import FORMATS
        from ..semantics.cuda import NoDefinition, llama_cuda_semantics

        fmt = next((f for f in FORMATS.values() if f.type_id == header["type"]), None)
        if fmt is None or not header["on_gpu"]:
            return {}
        try:
            semantics = llama_cuda_semantics(fmt, header["tokens"], self._sm, header["experts"])
        except NoDefinition:
            return {}
        assert semantics.activations is not None
        return {semantics.activations.type_id: self._device.activations(semantics.name, x)}


def _text(raw: Any) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)


def _write_log(text: bytes | None) -> None:
    sys.stderr.buffer.write(text or b"")
    sys.stderr.buffer.flush()


def serve(link: Connection) -> None:
    """Answer calls until the parent goes."""
    try:
        worker = Worker(link)
    except Exception as error:
        protocol.send(link, {"error": f"{type(error).__name__}: {error}"})
        return
    protocol.send(link, {"ready": True})
    worker.prepare()
    while True:
        try:
            header, arrays = protocol.receive(link)
        except (EOFError, OSError):
            return
        out: tuple[npt.NDArray[Any], ...] = ()
        try:
            names = header.pop("names")
            call = getattr(worker, header.pop("call"))
            result, out = call(**header, **dict(zip(names, arrays, strict=True)))
            answer = {"result": result}
        except CallFailed as error:
            answer = {"refused": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            protocol.send(link, answer, *out)
        except OSError:  # the parent is gone
            return


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    _die_with_parent()
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
