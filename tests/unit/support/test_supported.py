"""Other systems and processors than the supported ones are refused at the start, in one line."""

from __future__ import annotations

import platform

import pytest

from gguf_verify.cli import main
from gguf_verify.support.errors import EXIT_ENVIRONMENT, EnvironmentFault
from gguf_verify.support.supported import check_machine


@pytest.mark.parametrize(
    ("system", "machine", "named"),
    [
        ("Linux", "aarch64", "Linux on aarch64"), ("Darwin", "arm64", "macOS on arm64"),
        ("Darwin", "x86_64", "macOS on x86_64"), ("Windows", "AMD64", "Windows on AMD64"),
    ],
)  # fmt: skip
def test_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], system: str, machine: str, named: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(EnvironmentFault, match=f"Linux on x86-64 processors only, not on {named}"):
        check_machine()
    for command in ([], ["audit"], ["nightly"]):
        assert main([*command, "model.gguf"]) == EXIT_ENVIRONMENT
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert named in said.err


def test_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for machine in ("x86_64", "AMD64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        check_machine()
