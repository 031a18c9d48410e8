"""`pytest --gguf MODEL.gguf --gguf-kernel KERNEL`: one test for each matrix of the model, for a kernel's own tests.

A test passes if the layers rung judged the matrix's GEMMs and found nothing wrong. It is skipped if the graph has no
product with the matrix, and it fails if a product should have been checked and could not be. pytest imports this module
in every session, so its functions import what they need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .results import RungResult

_PROMPT = "The quick brown fox"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gguf-verify")
    group.addoption("--gguf", metavar="MODEL.gguf", help="verify each GEMM of this model against llama.cpp")
    group.addoption(
        "--gguf-kernel", metavar="KERNEL", help="the kernel to verify: a name, FILE.py:NAME or FILE.cu:SYMBOL"
    )
    group.addoption("--gguf-host", metavar="HOST", default="auto", help="where the kernel runs, as --host takes it")
    group.addoption("--gguf-tensor", metavar="REGEX", help="verify only tensors whose name matches")
    group.addoption("--gguf-prompt", default=_PROMPT, help="the prompt whose activations are multiplied")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--gguf"):
        model = _Model.from_parent(session, name=Path(config.getoption("--gguf")).name, nodeid="gguf")
        items.extend(model.collect())


class _Model(pytest.Collector):
    """The model's matrices, and the result of one run over all of them."""

    def collect(self) -> Iterator[pytest.Item]:
        from .gguf import open_model, printable
        from .gguf.matrices import may_be_matrix
        from .hosts import HOST_CHOICES
        from .support.errors import HarnessError

        option = self.config.getoption
        if option("--gguf-host") not in HOST_CHOICES:
            raise pytest.UsageError(f"--gguf-host: choose one of {', '.join(HOST_CHOICES)}")
        try:
            pattern = re.compile(option("--gguf-tensor") or "")
            with open_model(option("--gguf")) as model:
                names = [n for n, t in model.tensors.items() if may_be_matrix(t) and pattern.search(n)]
        except (HarnessError, re.error, OSError) as error:
            raise pytest.UsageError(f"--gguf: {error}") from None
        if not names:
            raise pytest.UsageError("--gguf: the model has no matrix to verify")
        self._found: RungResult | None = None
        for name in names:
            item: Any = _Matrix.from_parent(self, name=printable(name, 64))
            item.tensor = name
            yield item

    def layers(self, tensor: str | None) -> RungResult:
        """The result of the layers rung for all selected matrices, or for one. Raises HarnessError."""
        from .kernels import DEFAULT_KERNEL
        from .results import Options
        from .support.errors import EnvironmentFault
        from .verification import verify

        option = self.config.getoption
        only = option("--gguf-tensor") if tensor is None else f"^{re.escape(tensor)}$"
        options = Options(prompt=option("--gguf-prompt"), n_predict=1, tensor=only, progress=False)
        kernel, host = option("--gguf-kernel") or DEFAULT_KERNEL, option("--gguf-host")
        report = verify(option("--gguf"), kernel, host, ["layers"], options)
        if report.fault:
            raise EnvironmentFault(report.fault)
        return report.rungs[0]

    def found(self, tensor: str) -> RungResult:
        """A result that has all failures of this matrix.

        A result records only the first failures of a run, so if there are more, the matrix gets a run of its own.
        """
        if self._found is None:
            self._found = self.layers(None)
        return self._found if self._found.n_failures == len(self._found.failures) else self.layers(tensor)


class _Matrix(pytest.Item):
    parent: _Model
    tensor: str

    def runtest(self) -> None:
        from .results import GemmRecord
        from .support.errors import HarnessError

        try:
            result = self.parent.found(self.tensor)
        except HarnessError as error:
            raise _Wrong(str(error)) from None
        wrong = [f.what for f in result.failures if f.tensor in (self.tensor, "")]
        wrong += [f"{left.name}: {left.why}" for left in result.unverified if left.tensor in (self.tensor, "")]
        if result.fault:
            wrong.append(result.fault)
        if wrong:
            raise _Wrong("\n".join(wrong))
        judged = [r for r in result.details if isinstance(r, GemmRecord) and r.tensor == self.tensor]
        if any(record.failures for record in judged):
            raise _Wrong("the matrix has failures that the result does not list")
        if not judged:
            pytest.skip("the graph has no product with this matrix")
        if not any(record.under_test for record in judged):
            pytest.skip(f"it was multiplied by {judged[0].kernel}, which is not the kernel under test")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, _Wrong):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.parent.name}: {self.name}"


class _Wrong(Exception):
    """Why a matrix is not verified."""
