"""Operators of PyTorch, and kernels that take its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.names import Further
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.support.errors import EnvironmentFault, KernelFault, UsageError
from tests.support.foreign_runs import multiplied, operands

pytestmark = pytest.mark.needs("torch")

MODULE = """
import torch

@torch.library.custom_op("{name}::gemm", mutates_args=())
def gemm(w: torch.Tensor, x: torch.Tensor, n: int) -> torch.Tensor:
    b = w.reshape(n, -1, 18)
    d = b[..., :2].contiguous().view(torch.float16).float()
    q = torch.cat([b[..., 2:] & 15, b[..., 2:] >> 4], dim=-1).float() - 8
    return (x @ (q * d).reshape(n, -1).T).contiguous()

@torch.library.custom_op("{name}::gemm_out", mutates_args=("y",))
def gemm_out(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.copy_(gemm(w, x, n))
    {more}
"""
DECLARED = 'formats = ["Q4_0"]\nsemantics = "f32"\n'


def module(folder: Path, more: str = "") -> str:
    """The name of a module, which is that of its operators, too."""
    name = f"operators_{abs(hash(folder)) % 10**8}"
    (folder / f"{name}.py").write_text(MODULE.format(name=name, more=more))
    return name


def test_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    name = module(tmp_path)
    returns = f'code = "torch.ops"\nimport = ["{name}"]\nsymbol = "{name}.gemm"\n'
    (tmp_path / "a.toml").write_text(DECLARED + returns + 'parameters = ["weights", "activations", "int64 N"]\n')
    (tmp_path / "b.toml").write_text(
        DECLARED + 'parameters = ["weights", "activations", "output", "int64 N"]\noperands.output.stride = "N + 3"\n'
    )
    further = Further(str(tmp_path / "b.toml"), (name,))
    for kernel in (
        open_foreign(str(tmp_path / "a.toml"), CpuHost(1)),
        open_foreign(f"torch.ops.{name}.gemm_out", CpuHost(1), further=further),
    ):
        assert multiplied(kernel)
        kernel.close()
    with pytest.raises(UsageError, match=r"PyTorch has no operator torch\.ops\..*\.gemv"):
        open_foreign(f"torch.ops.{name}.gemv", CpuHost(1), further=further)
    with pytest.raises(EnvironmentFault, match="PyTorch's operators cannot be loaded"):
        open_foreign(f"torch.ops.{name}.gemm", CpuHost(1), further=Further(further.declared, ("no_such_module",)))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("w.fill_(1)", "modified its weights"),
        ("x[0, 0] += 1", "modified its activations"),
        ("raise ValueError('no')", "raised ValueError: no; at operators_"),
    ],
)
def test_faults_of_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, said: str) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    name = module(tmp_path, more)
    (tmp_path / "b.toml").write_text(DECLARED + 'parameters = ["weights", "activations", "output", "int64 N"]\n')
    kernel = open_foreign(f"torch.ops.{name}.gemm_out", CpuHost(1), further=Further(str(tmp_path / "b.toml"), (name,)))
    rows, x = operands()
    with pytest.raises(KernelFault, match=said):
        kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    kernel.close()


def test_tensors_of_bfloat16(tmp_path: Path) -> None:
    """What it gets and what it gives."""
    (tmp_path / "k.py").write_text(
        "import torch\nfrom gguf_verify import kernel\n"
        '@kernel(formats=["Q4_0"], semantics="f32", output="bfloat16", arrays="torch")\n'
        "def gemm(w, x, shape):\n"
        "    assert w.dtype == torch.uint8 and x.dtype == torch.float32\n"
        "    return torch.full((shape.m, shape.n), 1.2, dtype=torch.bfloat16)\n"
    )
    kernel = open_foreign(f"{tmp_path / 'k.py'}:gemm", CpuHost(1))
    rows, x = operands()
    assert set(kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x).ravel().tolist()) == {1.203125}
    kernel.close()
