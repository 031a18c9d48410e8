"""`pytest --gguf MODEL.gguf --gguf-kernel KERNEL`: one test a matrix of the model, for a kernel's own suite.

A test passes where the layers rung judged the matrix's GEMMs and found nothing wrong. One that no product of the graph
takes is skipped; one that should have been checked and could not be fails. Light to import: pytest loads it every time.
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
    group.addoption("--gguf", metavar="MODEL.gguf", help="verify each GEMM of this model as llama.cpp computes it")
    group.addoption("--gguf-kernel", metavar="KERNEL", help="with this kernel: a name, FILE.py:NAME or FILE.cu:SYMBOL")
    group.addoption("--gguf-host", default="auto", choices=("auto", "gpu", "cpu"), help="where it runs")
    group.addoption("--gguf-tensor", metavar="REGEX", help="only tensors whose name matches")
    group.addoption("--gguf-prompt", default=_PROMPT, help="the prompt whose activations it meets")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--gguf"):
        model = _Model.from_parent(session, name=Path(config.getoption("--gguf")).name, nodeid="gguf")
        items.extend(model.collect())


class _Model(pytest.Collector):
    """The matrices of the file, and what one run over all of them found."""

    def collect(self) -> Iterator[pytest.Item]:
        from .gguf import open_model, printable
        from .gguf.matrices import may_be_matrix
        from .support.errors import HarnessError

        option = self.config.getoption
        try:
            pattern = re.compile(option("--gguf-tensor") or "")
            with open_model(option("--gguf")) as model:
                names = [n for n, t in model.tensors.items() if may_be_matrix(t) and pattern.search(n)]
        except (HarnessError, re.error, OSError) as error:
            raise pytest.UsageError(f"--gguf: {error}") from None
        if not names:
            raise pytest.UsageError("--gguf: no matrix to verify")
        self._found: RungResult | None = None
        for name in names:
            item: Any = _Matrix.from_parent(self, name=printable(name, 64))
            item.tensor = name
            yield item

    def layers(self, tensor: str | None) -> RungResult:
        """The layers rung, of all matrices or one. Raises HarnessError."""
        from .kernels import DEFAULT_KERNEL
        from .results import Options
        from .verification import verify

        option = self.config.getoption
        only = option("--gguf-tensor") if tensor is None else f"^{re.escape(tensor)}$"
        options = Options(prompt=option("--gguf-prompt"), n_predict=1, tensor=only, progress=False)
        kernel, host = option("--gguf-kernel") or DEFAULT_KERNEL, option("--gguf-host")
        return verify(option("--gguf"), kernel, host, ["layers"], options).rungs[0]

    def found(self, tensor: str) -> RungResult:
        """What tells of this matrix. A record holds the first failures only: where there are more, its own run does."""
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
        mine = (self.tensor, "all ")
        wrong += [f"{left.name}: {left.why}" for left in result.unverified if left.name.startswith(mine)]
        if result.fault:
            wrong.append(result.fault)
        if wrong:
            raise _Wrong("\n".join(wrong))
        judged = [r for r in result.details if isinstance(r, GemmRecord) and r.tensor == self.tensor]
        if any(record.failures for record in judged):
            raise _Wrong("it has failures that the record does not hold")
        if not judged:
            pytest.skip("no product of the graph takes it")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, _Wrong):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.parent.name}: {self.name}"


class _Wrong(Exception):
    """What is said of a matrix."""
