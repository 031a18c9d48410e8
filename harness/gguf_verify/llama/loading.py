"""Trial of llama.cpp's own loading, without memory for the weights.

`llama_model_load_from_file` with `no_alloc` does everything that can reject a file: it reads the keys of the
architecture, builds the vocabulary, and looks up every tensor by name and shape. It reads no weights and starts no
device. This module runs in llama.cpp's processes.
"""

from __future__ import annotations

import ctypes as c
import os
import re
from collections.abc import Iterable, MutableSequence
from typing import Any

#: `GGML_LOG_LEVEL_ERROR`.
ERROR = 4
#: The line in which llama.cpp gives the reason, after the name of its function.
_WHY = re.compile(r"error loading model.*", re.DOTALL)
#: llama.cpp's message for an unsupported architecture; if the file has none, the name is empty.
_UNKNOWN_ARCHITECTURE = re.compile(r"unknown model architecture: '[^']")
_LOAD_MODE_NONE = 0


class Untried(Exception):
    """This llama.cpp cannot load a model without memory for its weights."""


def why_not_loaded(api: Any, path: str, vocab_only: bool, errors: MutableSequence[str]) -> str | None:
    """Return llama.cpp's reason for not loading a file; None if it loads.

    Args:
        api: llama.cpp's functions.
        vocab_only: load no tensors.
        errors: this process's log appends its lines of level `ERROR` here.

    Raises Untried.
    """
    params = api.llama_model_default_params()
    if not hasattr(params, "no_alloc"):
        raise Untried("this llama.cpp cannot load a model without memory for its weights")
    no_devices = (c.c_void_p * 1)(None)  # otherwise GPUs would be started
    params.devices = c.cast(no_devices, c.c_void_p)
    params.n_gpu_layers, params.main_gpu, params.split_mode = 0, -1, 0
    params.vocab_only, params.no_alloc, params.use_extra_bufts = vocab_only, True, False
    if hasattr(params, "load_mode"):
        params.load_mode = _LOAD_MODE_NONE  # a mapping would need memory, which no_alloc forbids
    else:
        params.use_mmap = False
    errors.clear()
    model = api.llama_model_load_from_file(os.fsencode(path), params)
    if model:
        api.llama_model_free(model)
        return None
    if any("bad_alloc" in line for line in errors):
        raise MemoryError
    return reason(errors) or "llama.cpp does not load the file, without giving a reason"


def reason(errors: Iterable[str]) -> str:
    """Return the line of llama.cpp's errors with the reason for not loading a file; "" if there is none."""
    found = (match[0] for line in errors if (match := _WHY.search(line)))
    return " ".join(next(found, "").split())


def for_another_program(why: str) -> bool:
    """Whether a file is not loaded because this llama.cpp does not support its architecture."""
    return _UNKNOWN_ARCHITECTURE.search(why) is not None
