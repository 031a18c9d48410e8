"""Calls of the library: versions and types, conversions, quantizers."""

from __future__ import annotations

import ctypes as c
import os
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import bindings, ggml
from .calls import Call, CallFailed, Libraries, Reply, text


def loaded_libraries() -> list[str]:
    """Return the paths of llama.cpp's shared libraries that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in lines if "/" in line}  # proc_pid_maps(5)
    return sorted(path for path in mapped if re.match(r"lib(llama|ggml|mtmd)[^/]*\.so", os.path.basename(path)))


class Library:
    """Calls that need neither a model nor a backend."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries

    def calls(self) -> dict[str, Call]:
        """Return the calls by name, for the methods of the same names of `gguf_verify.llama.library.Llama`."""
        return {
            "hello": self.hello, "to_float": self.to_float, "from_float": self.from_float, "quantize": self.quantize,
            "validate": self.validate, "quantize_file": self.quantize_file,
        }  # fmt: skip

    def hello(self) -> Reply:
        """Return versions, the build's features, and the table of types."""
        types = {}
        with self._libraries.quiet():  # hides the expected refusals of unknown types
            known = ggml.type_ids()
        for t in known:
            traits, of_cpu = ggml.ggml_get_type_traits(t).contents, ggml.ggml_get_type_traits_cpu(t).contents
            types[t] = {
                "name": traits.type_name.decode(), "block_size": traits.blck_size, "block_bytes": traits.type_size,
                "quantized": traits.is_quantized, "vec_dot_type": of_cpu.vec_dot_type,
            }  # fmt: skip
        api = self._libraries.api
        return {
            "llama_cpp_python": bindings.version(),
            "folder": str(bindings.BUILD.path),
            "llama_cpp": text(getattr(api, "llama_version", lambda: b"?")()),
            "ggml": ggml.version(),
            "system": " ".join(text(api.llama_print_system_info()).split()),
            "types": types,
            "libraries": loaded_libraries(),
        }, ()

    def to_float(self, type: int, n: int, raw: npt.NDArray[np.uint8]) -> Reply:
        """Convert n values in blocks to float32[n]."""
        out = np.empty(n, np.float32)
        convert = ggml.ggml_get_type_traits(type).contents.to_float
        if not convert:  # calling it would kill the process
            raise CallFailed(f"llama.cpp has no conversion from ggml type {type}")
        convert(ggml.pointer(raw), ggml.pointer(out), n)
        return {}, (out,)

    def from_float(self, type: int, x: npt.NDArray[np.float32]) -> Reply:
        """Quantize rows as llama.cpp's CPU backend quantizes activations: float32[M, K] → uint8[M, row bytes]."""
        return {}, (ggml.from_float(type, x),)

    def quantize(
        self, type: int, x: npt.NDArray[np.float32], importance: npt.NDArray[np.float32] | None = None
    ) -> Reply:
        """Call `ggml_quantize_chunk`: float32[rows, K] → uint8[rows, row bytes]. If the type needs an importance matrix
        and none is given, every column counts the same."""
        rows, k = x.shape
        traits = ggml.ggml_get_type_traits(type).contents
        if k % traits.blck_size:  # ggml would skip the last values, or end the process
            raise CallFailed(f"a row of {k} values is not a whole number of blocks of {traits.blck_size}")
        out = np.zeros((rows, k // traits.blck_size * traits.type_size), np.uint8)
        if importance is None and ggml.ggml_quantize_requires_imatrix(type):
            importance = np.ones(k, np.float32)
        weight = None if importance is None else ggml.pointer(importance)
        ggml.ggml_quantize_chunk(type, ggml.pointer(x), ggml.pointer(out), 0, rows, k, weight)
        return {}, (out,)

    def validate(self, type: int, raw: npt.NDArray[np.uint8]) -> Reply:
        """Call `ggml_validate_row_data`."""
        return {"valid": bool(ggml.ggml_validate_row_data(type, ggml.pointer(raw), raw.nbytes))}, ()

    def quantize_file(self, source: str, target: str, ftype: int, pure: bool, threads: int) -> Reply:
        """Call `llama_model_quantize`."""
        api = self._libraries.api
        params = api.llama_model_quantize_default_params()
        params.ftype = ftype
        params.pure = pure
        params.nthread = threads
        params.allow_requantize = True
        if api.llama_model_quantize(os.fsencode(source), os.fsencode(target), c.byref(params)) != 0:
            raise CallFailed(f"llama_model_quantize failed for {os.path.basename(source)}")
        return {}, ()
