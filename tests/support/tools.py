"""What several tests need: altered copies of the kernels and of models."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from gguf_verify.cli import main
from gguf_verify.formats.tensor_types import FORMATS, WeightFormat
from gguf_verify.gguf.model import open_model
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.interface import Weights
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.support.paths import kernel_root
from tests.support import needs

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"

#: Formats of one block of 32 and one half scale, with a quantizer of our own.
LEGACY = {name: fmt for name, fmt in FORMATS.items() if fmt.legacy}


def cli(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with the brief probe plan."""
    command = [sys.executable, str(ROOT / "scripts" / "verify_model.py"), *map(str, args), "--effort", "quick"]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False)


def command_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line in this process: for what is refused before much is started."""
    out, err = io.StringIO(), io.StringIO()
    command = [str(argument) for argument in arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(command)
        except SystemExit as error:  # of argparse
            code = int(error.code or 0)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def cli_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """As `cli`, in this process: for what does not depend on a process of its own."""
    return command_here(*arguments, "--effort", "quick")


def flat(text: str) -> str:
    """Text without the places at which lines were broken."""
    return " ".join(text.split())


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, said: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert re.search(said, done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def altered_kernel(folder: Path, name: str, file: str, old: str, new: str) -> ShippedKernel:
    """A kernel built from a copy of the sources in which `old` reads `new`; the text must be there."""
    root = folder / "kernels"
    folder.mkdir(exist_ok=True)
    shutil.copytree(kernel_root(), root)
    source = (root / file).read_text()
    assert old in source, f"{file} no longer holds what this test alters"
    (root / file).write_text(source.replace(old, new))
    return ShippedKernel(KERNELS[name], CpuHost(1), root)


class TamperedKernel(ShippedKernel):
    """Computes rightly, but on weights of which one block differs from the file's."""

    def __init__(self, name: str, original: bytes, altered: bytes) -> None:
        super().__init__(KERNELS[name], CpuHost(1))
        self._original = np.frombuffer(original, np.uint8)
        self._altered = np.frombuffer(altered, np.uint8)

    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        blocks = rows.reshape(-1, fmt.block_bytes).copy()
        if fmt.block_bytes == len(self._original):
            blocks[(blocks == self._original).all(axis=1)] = self._altered
        return super().upload(fmt, blocks.reshape(rows.shape))


def block_bytes(path: Path, tensor: str, row: int, block: int) -> bytes:
    """A block as it lies in the file."""
    with open_model(path) as model:
        t = model.tensors[tensor]
        at = t.block_offset(row, block)
        return path.read_bytes()[at : at + t.type.block_bytes]


def patched(source: Path, target: Path, offset: int, new: bytes) -> Path:
    """A copy of a file with some bytes replaced."""
    content = bytearray(source.read_bytes())
    content[offset : offset + len(new)] = new
    target.write_bytes(content)
    return target


def split_model(source: Path, folder: Path, tensors: int) -> list[Path]:
    """The model in parts of so many tensors, named and described as llama.cpp's own split tool does."""
    reader = gguf.GGUFReader(source)
    groups = [reader.tensors[i : i + tensors] for i in range(0, len(reader.tensors), tensors)]
    paths = []
    for number, group in enumerate(groups):
        path = folder / f"split-{number + 1:05d}-of-{len(groups):05d}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if number == 0:
            for field in reader.fields.values():
                if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                    element = field.types[1] if len(field.types) > 1 else None
                    writer.add_key_value(field.name, field.contents(), field.types[0], element)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", len(groups))
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in group:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        paths.append(path)
    return paths


def edited_model(
    source: Path, target: Path, keys: Mapping[str, object] | None = None, without: Collection[str] = (),
    more: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> Path:  # fmt: skip
    """A copy of a model with other values of keys (None: without the key), without some tensors, and with others."""
    reader, changed = gguf.GGUFReader(source), keys or {}
    writer = gguf.GGUFWriter(target, str(changed.get("general.architecture", "llama")))
    names = [n for n in reader.fields if not n.startswith("GGUF.")]
    for name in dict.fromkeys((*names, *changed)):
        if (name in changed and changed[name] is None) or name == "general.architecture":
            continue
        field = reader.fields.get(name)
        value = changed.get(name, field.contents() if field else None)
        kind = field.types[0] if field else gguf.GGUFValueType.get_type(value)
        element = None
        if isinstance(value, list):
            element = field.types[-1] if field else gguf.GGUFValueType.get_type(value[0])
        writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY if element is not None else kind, element)
    for tensor in reader.tensors:
        if tensor.name not in without:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def patched_block(source: Path, target: Path, tensor: str, row: int, block: int, at: int, new: bytes) -> Path:
    """A copy of a model with bytes of one block replaced, from byte `at` of the block."""
    with open_model(source) as model:
        offset = model.tensors[tensor].block_offset(row, block)
    return patched(source, target, offset + at, new)


def write_model(
    path: Path, tensors: Mapping[str, tuple[npt.NDArray[Any], str]], keys: dict[str, str] | None = None
) -> Path:
    """A file of tensors: name → (rows [N, row bytes or K], ggml's type)."""
    writer = gguf.GGUFWriter(path, "test")
    for key, value in (keys or {}).items():
        writer.add_string(key, value)
    for name, (rows, kind) in tensors.items():
        raw = np.ascontiguousarray(rows).view(np.uint8)
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        if block_size == 1:  # the writer takes the shape of elements
            view = {1: np.uint8, 2: np.float16, 4: np.float32}[block_bytes]
            writer.add_tensor(name, raw.view(view), raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def under_sanitizers(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python's in a process of its own, for kernels that sanitizers are compiled into."""
    needs.need("libasan")
    environment = os.environ | {"LD_PRELOAD": str(needs.libasan()), "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
