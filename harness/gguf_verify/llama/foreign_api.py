"""The functions of a libllama that llama-cpp-python does not bring, under the names that its bindings have.

Structs that are passed by value have no version of their own, so their layout is checked before any is used: their
size, by `*_default_params` into a buffer with a pattern, and the defaults that llama.h documents, in their places.
What follows is the layout of llama.cpp v0.5.0 (include/llama.h); a library with another one is refused.
"""

from __future__ import annotations

import ctypes as c
import platform
from types import SimpleNamespace
from typing import Any

from .builds import Build

#: bool (ask | told): see `worker.model`.
EvalCallback = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_bool, c.c_void_p)
LogCallback = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)


class ForeignAbi(RuntimeError):
    """A library whose layout is not known."""


class ModelParams(c.Structure):
    """`struct llama_model_params`."""

    _fields_ = [
        ("devices", c.c_void_p), ("tensor_buft_overrides", c.c_void_p), ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int), ("load_mode", c.c_int), ("lazy_mode", c.c_int), ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p), ("progress_callback", c.c_void_p), ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p), ("vocab_only", c.c_bool), ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool), ("no_host", c.c_bool), ("no_alloc", c.c_bool), ("load_mtp", c.c_bool),
    ]  # fmt: skip


class ContextParams(c.Structure):
    """`struct llama_context_params`."""

    _fields_ = [
        *((name, c.c_uint32) for name in (
            "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq",
        )),
        ("n_threads", c.c_int32), ("n_threads_batch", c.c_int32), ("ctx_type", c.c_int),
        ("rope_scaling_type", c.c_int), ("pooling_type", c.c_int), ("attention_type", c.c_int),
        ("flash_attn_type", c.c_int),
        *((name, c.c_float) for name in (
            "rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast",
            "yarn_beta_slow",
        )),
        ("yarn_orig_ctx", c.c_uint32), ("defrag_thold", c.c_float), ("cb_eval", EvalCallback),
        ("cb_eval_user_data", c.c_void_p), ("type_k", c.c_int), ("type_v", c.c_int), ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        *((name, c.c_bool) for name in (
            "embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified",
        )),
        ("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p),
    ]  # fmt: skip


class Batch(c.Structure):
    """`struct llama_batch`."""

    _fields_ = [
        ("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.POINTER(c.c_float)),
        ("pos", c.POINTER(c.c_int32)), ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8)),
    ]  # fmt: skip


#: What llama.h documents as defaults, of members in every part of the structs.
_MODEL_DEFAULTS = {"main_gpu": 0, "vocab_only": False, "check_tensors": False, "use_extra_bufts": True}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "rope_scaling_type": -1, "pooling_type": -1,
    "rope_freq_base": 0.0, "yarn_ext_factor": -1.0, "cb_eval_user_data": None, "type_k": 1, "type_v": 1,
    "embeddings": False, "offload_kqv": True, "n_samplers": 0, "ctx_other": None,
}  # fmt: skip
_ROOM = 4096

_P, _I, _F = c.c_void_p, c.c_int32, c.POINTER(c.c_float)
#: Name → result and arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,), "llama_version": (c.c_char_p,), "llama_print_system_info": (c.c_char_p,),
    "llama_log_set": (None, LogCallback, _P), "llama_model_default_params": (ModelParams,),
    "llama_context_default_params": (ContextParams,), "llama_model_load_from_file": (_P, c.c_char_p, ModelParams),
    "llama_model_get_vocab": (_P, _P), "llama_model_desc": (_I, _P, c.c_char_p, c.c_size_t),
    "llama_vocab_n_tokens": (_I, _P), "llama_model_n_ctx_train": (_I, _P), "llama_model_has_encoder": (c.c_bool, _P),
    "llama_model_has_decoder": (c.c_bool, _P), "llama_vocab_bos": (_I, _P), "llama_vocab_get_add_bos": (c.c_bool, _P),
    "llama_model_decoder_start_token": (_I, _P), "llama_init_from_model": (_P, _P, ContextParams),
    "llama_free": (None, _P), "llama_get_memory": (_P, _P), "llama_pooling_type": (c.c_int, _P),
    "llama_memory_clear": (None, _P, c.c_bool), "llama_tokenize": (
        _I, _P, c.c_char_p, _I, c.POINTER(_I), _I, c.c_bool, c.c_bool,
    ),
    "llama_token_to_piece": (_I, _P, _I, c.c_char_p, _I, _I, c.c_bool), "llama_encode": (_I, _P, Batch),
    "llama_decode": (_I, _P, Batch), "llama_get_logits": (_F, _P), "llama_get_embeddings": (_F, _P),
    "llama_get_embeddings_seq": (_F, _P, _I), "llama_model_n_cls_out": (c.c_uint32, _P),
    "llama_model_n_embd_out": (_I, _P), "llama_batch_init": (Batch, _I, _I, _I), "llama_batch_free": (None, Batch),
}  # fmt: skip


def api(build: Build) -> SimpleNamespace:
    """The functions and constants of a build's libllama. Raises ForeignAbi, OSError where it cannot be loaded."""
    *others, path = (build.library(name) for name in ("ggml-base", "ggml", "llama"))
    assert path is not None
    for each in others:  # libllama may name them without saying where they lie
        c.CDLL(str(each), mode=c.RTLD_GLOBAL)
    library = c.CDLL(str(path))
    _check("llama_model_params", library.llama_model_default_params, ModelParams, _MODEL_DEFAULTS)
    _check("llama_context_params", library.llama_context_default_params, ContextParams, _CONTEXT_DEFAULTS)
    made: dict[str, Any] = {}
    for name, (result, *arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ForeignAbi(f"{path.name} has no function {name}") from None
        function.restype, function.argtypes = result, arguments
        made[name] = function
    return SimpleNamespace(
        **made, llama_token=c.c_int32, llama_log_callback=LogCallback, ggml_backend_sched_eval_callback=EvalCallback,
        LLAMA_POOLING_TYPE_NONE=0, LLAMA_POOLING_TYPE_RANK=4,
    )  # fmt: skip


def _check(name: str, defaults: Any, kind: type[c.Structure], expected: dict[str, Any]) -> None:
    """That a struct has the size and the members that are known. Raises ForeignAbi."""
    if platform.machine() != "x86_64":
        # there the address of a result in memory is the first argument, so that the buffer can be this module's
        raise ForeignAbi("another build than llama-cpp-python's can be checked on x86-64 alone")
    size = 0
    values: c.Structure | None = None
    for pattern in (0x00, 0xFF):
        buffer = (c.c_ubyte * _ROOM)(*([pattern] * _ROOM))
        defaults.restype, defaults.argtypes = c.c_void_p, [c.c_void_p]
        defaults(c.addressof(buffer))
        size = max(size, max((i + 1 for i, byte in enumerate(buffer) if byte != pattern), default=0))
        values = kind.from_buffer_copy(buffer)
    align = c.alignment(kind)
    whole = -(-size // align) * align
    if whole != c.sizeof(kind):
        raise ForeignAbi(f"struct {name} has {whole} bytes, and {c.sizeof(kind)} in llama.cpp v0.5.0")
    for member, value in expected.items():
        got = getattr(values, member)
        if got != value:
            raise ForeignAbi(f"struct {name} has {member} = {got!r}, and {value!r} in llama.cpp v0.5.0")


__all__ = ["Batch", "ContextParams", "ForeignAbi", "ModelParams", "api"]
