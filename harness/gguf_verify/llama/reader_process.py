"""A child process that reads files with another reader: `python -m gguf_verify.llama.reader_process READER FD`.

It serves requests over the socket FD, in JSON. A request has a path, the files for the process (see `processes.given`),
the memory limit for reading, and what llama.cpp should load. The answer has the tensors that the reader sees, or the
reason why there are none, and whether llama.cpp loads the file. A file that crashes the reader, makes it hang or
exhausts its memory harms only this process.
"""

from __future__ import annotations

import ctypes as c
import errno
import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from ..processes.given import Taken, only_read
from . import builds

#: llama.cpp also reads the data of files up to this size in bytes, so that it notices a cut; else only the header.
MAX_WHOLE = 64 << 20
#: Bytes to keep of a reader's message, and limit of bytes that it may print in all.
MAX_SAID, MAX_PRINTED = 4096, 1 << 20
#: Size limits of the first message, and of an answer, in which a tensor takes about 100 bytes.
MAX_HELLO, MAX_ANSWER = 1 << 16, 32 << 20

#: What llama.cpp should load besides the header: everything, or the vocabulary of a file without tensors.
Load = Literal["", "model", "vocabulary"]
#: A reader: takes a path and what to load, returns the answer. Any exception is a refusal.
Read = Callable[[str, Load], dict[str, Any]]


def gguf_py() -> tuple[str, Read]:
    """Return the version of the gguf package, and a function that reads with it."""
    from importlib.metadata import version

    import gguf
    import numpy as np

    # gguf-py makes an array of every string and every element. From a memmap these are memmaps, which take twice the
    # memory of plain arrays of the same bytes, and more than twice the time.
    mapped = np.memmap
    setattr(np, "memmap", lambda path, mode="r": np.asarray(mapped(path, mode=mode)))  # noqa: B010 - mypy takes it for a type

    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # the package has no types
        """gguf-py's reader without keeping the elements of arrays: those of a vocabulary of 128,000 tokens take 140 MB,
        and its own checks do not use them again."""

        _depth = 0

        def _get_field_parts(self, *where: Any) -> Any:
            self._depth += 1
            try:
                found = super()._get_field_parts(*where)
            finally:
                self._depth -= 1
            if not self._depth or len(found) != 4:
                return found
            nbytes, _, _, types = found
            return nbytes, [], [], types

    def read(path: str, _load: Load) -> dict[str, Any]:
        file = Reader(path)
        tensors = [
            [_bytes(t.name), int(t.tensor_type), t.shape.tolist(), t.data_offset, t.n_bytes] for t in file.tensors
        ]
        return {"data_offset": int(file.data_offset), "tensors": tensors}

    return version("gguf"), read


def llama_cpp() -> tuple[str, Read]:
    """Return llama.cpp's version, and a function that reads with its own GGUF reader, `gguf_init_from_file`, and then
    with its loader."""
    from . import bindings, ggml, loading

    api = bindings.api
    lines: list[bytes] = []
    errors: list[str] = []

    def log(level: int, text: bytes | None, _data: object) -> None:
        line = (text or b"")[:MAX_SAID]
        if len(lines) < 16:
            lines.append(line)
        if level == loading.ERROR and len(errors) < 16:
            errors.append(line.decode("latin-1"))
        if level >= loading.ERROR - 1:  # the loader prints a line per key
            os.write(2, line)  # the parent reads it from there if llama.cpp aborts

    callback = ggml.LogCallback(log)

    def read(
        path: str, load: Load, callback: object = callback
    ) -> dict[str, Any]:  # the default keeps the callback referenced for ctypes
        lines.clear()
        whole = os.stat(path).st_size <= MAX_WHOLE
        context = c.c_void_p()
        file = ggml.gguf_init_from_file(os.fsencode(path), ggml.GgufInitParams(not whole, c.pointer(context)))
        if not file:
            return {"refused": next(filter(bytes.strip, lines), b"nothing").decode("latin-1")}
        try:
            start = ggml.gguf_get_data_offset(file)
            tensors = [
                [
                    ggml.gguf_get_tensor_name(file, i).decode("latin-1"), ggml.gguf_get_tensor_type(file, i),
                    ggml.gguf_shape(file, context, i), start + ggml.gguf_get_tensor_offset(file, i),
                    ggml.gguf_get_tensor_size(file, i),
                ]
                for i in range(ggml.gguf_get_n_tensors(file))
            ]  # fmt: skip
            seen = {"data_offset": start, "tensors": tensors, "said": "" if whole else "it did not read the data"}
        finally:
            ggml.gguf_free(file)
            ggml.ggml_free(context)
        return seen | (tried(path, load) if load else {})

    def tried(path: str, load: Load) -> dict[str, Any]:
        try:
            why = loading.why_not_loaded(api, path, load == "vocabulary", errors)
        except loading.Untried as error:
            return {"not_loaded": str(error)}
        return {"loads": why is None, "not_loaded": why or ""}

    api.llama_backend_init()
    api.llama_log_set(callback, None)
    version = getattr(api, "llama_version", lambda: b"?")()
    return f"{_text(version)} (ggml {_text(ggml.ggml_version())})", read


#: Readers by their name on the command line and in reports.
READERS = {"gguf-py": gguf_py, "llama.cpp": llama_cpp}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> str:
    """Return a text with one character per byte, see `audit.reader_child.Answer`."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that do not stand for bytes
        raw = text.encode("utf-8", "backslashreplace")
    return raw.decode("latin-1")


def said(text: str) -> str:
    """Invert `_bytes`."""
    return text.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def _limit(what: int, value: int | None) -> None:
    """Set a soft limit of this process to `value`, or to the hard limit if that is lower or `value` is None."""
    _, hard = resource.getrlimit(what)
    if value is None or (hard != resource.RLIM_INFINITY and hard < value):
        value = hard
    resource.setrlimit(what, (value, hard))


def _address_space() -> int:
    """Return the bytes of address space that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def answer(read: Read, path: str, memory: int, load: Load = "") -> bytes:
    """Return the reader's answer on a file. Its memory limit is the file's size (the mapping) plus `memory` bytes."""
    try:
        _limit(resource.RLIMIT_AS, _address_space() + os.stat(path).st_size + memory)
        out = json.dumps(read(path, load)).encode()
        if len(out) <= MAX_ANSWER:
            return out
        stopped = "it found more tensors than an answer can hold"
    except MemoryError:
        stopped = "out of memory"
    except Exception as error:
        if getattr(error, "errno", None) != errno.ENOMEM:
            return json.dumps({"refused": _bytes(f"{type(error).__name__}: {error}"[:MAX_SAID])}).encode()
        stopped = "out of memory"
    finally:
        # Memory left from one file must not count against the next, and sending the answer must not run out of memory.
        _limit(resource.RLIMIT_AS, None)
        gc.collect()
    return json.dumps({"stopped": stopped}).encode()


def _answered(read: Read, files: Taken, request: dict[str, Any]) -> bytes:
    """Answer one request."""
    try:
        files.take(request)
    except OSError as error:
        return json.dumps({"stopped": f"the file could not be passed on: {error.strerror}"}).encode()
    return answer(read, request["path"], request["memory"], request["load"])


def main() -> None:
    """Serve requests until the parent ends."""
    only_read()
    # Disable core dumps, limit the log, die with the parent, and ignore Ctrl-C, which the parent handles.
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_PRINTED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        c.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    *build, handle = sys.argv[2:]
    link = Connection(int(handle))
    if build:
        builds.choose(Path(build[0]))
    try:
        version, read = READERS[sys.argv[1]]()
    except Exception as error:
        link.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    # gguf-py makes an object of every element, but no reference cycles. Searching for cycles would take a third of its
    # time, so garbage is collected only once after each file.
    gc.disable()
    gc.freeze()
    link.send_bytes(json.dumps({"version": version}).encode())
    files = Taken(link)
    while True:
        try:
            link.send_bytes(_answered(read, files, json.loads(link.recv_bytes())))
        except (EOFError, OSError):
            return


if __name__ == "__main__":
    main()
