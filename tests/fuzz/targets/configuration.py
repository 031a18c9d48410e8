"""The configuration of a night."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gguf_verify.support.errors import UsageError
from gguf_verify_nightly.config import MOST_CELLS, REFERENCE, read_config
from gguf_verify_nightly.records import BACKEND
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.refusals import refused_in_one_line

SMALL = """\
models = ["tiny*.gguf"]
kernels = ["q8_1", "k.py:gemm"]
hosts = ["cpu"]
[prompts]
a = "x"
[variants.v]
llama-cpp-python = "0.3.35"
[[exclude]]
kernel = "k.py:gemm"
"""


def seeds() -> Iterator[bytes]:
    """The reference, a small configuration, and such with one mistake each."""
    yield REFERENCE.encode()
    yield REFERENCE.replace("models/*.gguf", "tiny*.gguf").replace("my_kernel.py", "k.py").encode()
    devices = SMALL.replace("hosts", 'devices = ["CPU"]\nhosts').replace('"q8_1", "k.py:gemm"', "")
    yield devices.partition("[[")[0].encode()
    for line in ('llama = "build"', 'llama = "\\u0000"', 'llama = "/"', f'llama = "{"x" * 5000}"', 'devices = ["\\n"]'):
        yield f"{devices.partition('[variants')[0]}[variants.v]\n{line}\n".encode()
    yield SMALL.encode()
    for change in (
        ("tiny*", "/tiny*"), ("tiny*", "**/*"), ("tiny*", "[!"), ("tiny*", "\\u0000"), ("tiny*", "../*"), ('"x"', '""'),
        ('"x"', "7"), ("0.3.35", "; rm"), ('["cpu"]', '["cpu", "cpu"]'), ('["cpu"]', "[]"), ("q8_1", "\\u001b[31m"),
        ("k.py:gemm", "missing.py:gemm"), ("hosts", "hots"), ("[variants.v]", '[variants."\\n"]'), ("v]", "v]\nx = 1"),
        ("[[exclude]]", "[exclude]"), ('kernel = "k', 'kernel = "j'), ('kernel = "k.py:gemm"', ""),
        ("models", "jobs = 999\nmodels"), ("models", "time_limit = nan\nmodels"), ("models", "name = '../x'\nmodels"),
        ("models", "history = '.'\nmodels"), ("models", "waivers = 'w.toml'\nmodels"), ("models", "n_predict=1e3\n#"),
        ("[prompts]", "[quantize]\nsources = ['tiny*.gguf']\ntypes = ['Q4_0', 'x']\n[prompts]"),
    ):  # fmt: skip
        yield SMALL.replace(*change).encode()
    yield b"\xff"
    yield b"a." * 3000 + b"a = 1"


def check(folder: Path, data: bytes) -> None:
    """A matrix has cells, and not more than are allowed; each is of a model, a kernel and a host that are there."""
    (folder / "build").mkdir(exist_ok=True)
    libraries = (f"build/lib{name}.so" for name in ("llama", "ggml", "ggml-base"))
    for name in ("tiny.gguf", "tiny-F16.gguf", "k.py", *libraries):
        (folder / name).touch()
    path = folder / "night.toml"
    path.write_bytes(data)
    with refused_in_one_line(UsageError):
        config = read_config(path)
        keys = config.cells("cpu")
        assert 0 < len(keys) <= MOST_CELLS
        assert len(set(keys)) == len(keys)
        assert {key.model for key in keys} <= {model.path.name for model in config.models}
        assert all(model.path.is_file() for model in config.models)
        assert all(key.host != "auto" or key.kernel == BACKEND for key in keys)
        assert all(len(value) < 1000 for value in config.settings().values())


TARGET = Target(
    "configuration", "the configuration of a night", seeds, check,
    mutations.of_lines(
        ("models", "kernels", "hosts", "[prompts]", "[quantize]", "[variants.x]", "[[exclude]]", "history", "waivers",
         "*", "?", "[a-", "**", "/", "=", '"', "[", "]", "{", "}", ",", "\\u0000", "k.py:gemm", "q8_1", "1e400",
         "inf", "true", "2026-01-31", "devices", "llama", "build"),
    ),
    inputs=200, covered=("gguf_verify_nightly.config",),
)  # fmt: skip
