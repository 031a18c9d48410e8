"""The models of a night: detection of changed files, and quantization by llama.cpp."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from gguf_verify.formats.tensor_types import FILE_TYPES, FORMATS
from gguf_verify.gguf.matrices import may_be_matrix
from gguf_verify.gguf.model import open_model
from gguf_verify.llama import installed
from gguf_verify.llama.library import Llama
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.support.cache import cache_dir
from gguf_verify.support.errors import EnvironmentFault, HarnessError
from gguf_verify.support.files import open_regular
from gguf_verify.support.text import printable

from .config import Model


def identity(path: Path) -> str:
    """Size and modification times (content and inode): a cheap way to detect that a file was replaced."""
    try:
        found = path.stat()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return f"{found.st_size} bytes, {found.st_mtime_ns}, {found.st_ctime_ns}"


def unsuitable(model: Model) -> str | None:
    """Return why quantizing the model would give no matrix of its type; None if it would give one.

    Without such a matrix, a cell with the type in its name would verify something else.
    """
    fmt = FORMATS.get(model.type)
    if fmt is None:
        return None
    try:
        with open_model(model.path) as opened:
            matrices = [t for t in opened.tensors.values() if may_be_matrix(t)]
    except HarnessError:
        return None  # the cell will report the error
    if not matrices or any(t.k % fmt.block_size == 0 for t in matrices):
        return None
    return f"the length of no row is a multiple of {fmt.block_size}"


def sha256(path: Path) -> str:
    """The file's sha256. Raises EnvironmentFault."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EnvironmentFault(f"cannot read {printable(path.name)}: {error.strerror}") from None


class Quantizer:
    """Makes quantized models, each once. Their key in the cache is the source's sha256, the type and the version of
    llama-cpp-python.

    Args:
        time_limit: time limit for one model, in seconds.
    """

    def __init__(self, threads: int, time_limit: float) -> None:
        self._threads, self._time_limit = threads, time_limit
        self._digests: dict[Path, str] = {}

    def path(self, model: Model) -> Path:
        """The model's path in the cache. Raises EnvironmentFault."""
        if model.path not in self._digests:
            self._digests[model.path] = sha256(model.path)
        folder = cache_dir() / "models"
        return folder / f"{self._digests[model.path][:32]}-{model.type}-{installed.version()}.gguf"

    def made(self, model: Model, on_start: Callable[[], object] = lambda: None) -> Path:
        """Return the model's file, and make it if necessary. Raises HarnessError with a message of one line."""
        if not model.type:
            return model.path
        target = self.path(model)
        if target.exists():
            return target
        on_start()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
            os.close(handle)
        except OSError as error:
            raise EnvironmentFault(f"the cache cannot be written: {error.strerror}") from None
        temporary = Path(name)
        try:
            with Llama(self._time_limit) as llama:
                llama.quantize_file(model.path, temporary, FILE_TYPES[model.type], True, self._threads)
            with open_model(temporary) as opened:
                if not any(t.type.name == model.type for t in opened.tensors.values()):
                    raise EnvironmentFault(f"llama.cpp quantized no tensor to {model.type}")
            temporary.replace(target)
        except LlamaRefused as error:
            raise EnvironmentFault(f"llama.cpp cannot quantize the model: {error}") from None
        except OSError as error:
            raise EnvironmentFault(f"the cache cannot be written: {error.strerror}") from None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        return target
