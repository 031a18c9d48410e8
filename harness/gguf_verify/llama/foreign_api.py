"""The functions of a libllama other than llama-cpp-python's, under the names of its bindings.

`struct_layouts` finds the layout of its structs. Functions that older releases call differently are found by that name.
"""

from __future__ import annotations

import ctypes as c
from types import SimpleNamespace
from typing import Any

from .builds import Build
from .struct_layouts import CONTEXT_PARAMS, MODEL_PARAMS, EvalCallback, ForeignAbi, writes

LogCallback = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)


class Batch(c.Structure):
    """`struct llama_batch`."""

    _fields_ = [
        ("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.POINTER(c.c_float)),
        ("pos", c.POINTER(c.c_int32)), ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8)),
    ]  # fmt: skip


_P, _I, _F = c.c_void_p, c.c_int32, c.POINTER(c.c_float)
#: Name → result and arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,), "llama_print_system_info": (c.c_char_p,), "llama_log_set": (None, LogCallback, _P),
    "llama_model_get_vocab": (_P, _P), "llama_model_desc": (_I, _P, c.c_char_p, c.c_size_t),
    "llama_vocab_n_tokens": (_I, _P), "llama_model_n_ctx_train": (_I, _P), "llama_model_has_encoder": (c.c_bool, _P),
    "llama_model_has_decoder": (c.c_bool, _P), "llama_vocab_bos": (_I, _P), "llama_vocab_get_add_bos": (c.c_bool, _P),
    "llama_model_decoder_start_token": (_I, _P), "llama_free": (None, _P), "llama_get_memory": (_P, _P),
    "llama_pooling_type": (c.c_int, _P), "llama_memory_clear": (None, _P, c.c_bool), "llama_tokenize": (
        _I, _P, c.c_char_p, _I, c.POINTER(_I), _I, c.c_bool, c.c_bool,
    ),
    "llama_token_to_piece": (_I, _P, _I, c.c_char_p, _I, _I, c.c_bool), "llama_encode": (_I, _P, Batch),
    "llama_decode": (_I, _P, Batch), "llama_model_free": (None, _P), "llama_get_logits": (_F, _P),
    "llama_get_embeddings": (_F, _P),
    "llama_get_embeddings_seq": (_F, _P, _I), "llama_model_n_cls_out": (c.c_uint32, _P),
    "llama_model_n_embd_out": (_I, _P), "llama_batch_init": (Batch, _I, _I, _I), "llama_batch_free": (None, Batch),
}  # fmt: skip
#: Function → its name in older releases; for all models that those know, both return the same.
_FORMERLY = {"llama_model_n_embd_out": "llama_model_n_embd"}
#: Functions that may be missing.
_OPTIONAL: dict[str, tuple[Any, ...]] = {"llama_version": (c.c_char_p,)}


def api(build: Build) -> SimpleNamespace:
    """Return the functions and constants of a build's libllama. Raises ForeignAbi; OSError if it cannot be loaded."""
    *others, path = (build.library(name) for name in ("ggml-base", "ggml", "llama"))
    assert path is not None
    for each in others:  # libllama may depend on them without a path
        c.CDLL(str(each), mode=c.RTLD_GLOBAL)
    library = c.CDLL(str(path))
    model = MODEL_PARAMS.layout_of(writes(_found(library, "llama_model_default_params"))).struct
    context = CONTEXT_PARAMS.layout_of(writes(_found(library, "llama_context_default_params"))).struct
    functions = _FUNCTIONS | {
        "llama_model_default_params": (model,),
        "llama_context_default_params": (context,),
        "llama_model_load_from_file": (_P, c.c_char_p, model),
        "llama_init_from_model": (_P, _P, context),
    }
    functions |= {name: types for name, types in _OPTIONAL.items() if hasattr(library, name)}
    made: dict[str, Any] = {}
    for name, (result, *arguments) in functions.items():
        made[name] = function = _found(library, name)
        function.restype, function.argtypes = result, arguments
    # Check that a batch for tokens has arrays for them, and none for embeddings. Raises ForeignAbi.
    batch = made["llama_batch_init"](2, 0, 1)
    arrays = (batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits)
    if batch.n_tokens != 0 or batch.embd or not all(arrays):
        raise ForeignAbi("the layout of struct llama_batch is not that of b6301 to v0.5.0")
    made["llama_batch_free"](batch)
    return SimpleNamespace(
        **made,
        llama_token=c.c_int32,
        llama_log_callback=LogCallback,
        ggml_backend_sched_eval_callback=EvalCallback,
        LLAMA_POOLING_TYPE_NONE=0,
        LLAMA_POOLING_TYPE_RANK=4,
    )


def _found(library: c.CDLL, name: str) -> Any:
    """Return a function of a library. Raises ForeignAbi."""
    for each in (name, _FORMERLY.get(name, name)):
        if hasattr(library, each):
            return getattr(library, each)
    raise ForeignAbi(f"libllama has no function {name}")
