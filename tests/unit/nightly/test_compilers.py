"""NVRTC as an axis of a night: a variant's version is fetched once, its cells run with it, and others are no pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_verify.hosts import nvrtc
from gguf_verify.support.errors import EnvironmentFault
from gguf_verify_nightly import compilers
from gguf_verify_nightly.compilers import Compilers
from gguf_verify_nightly.config import read_config
from gguf_verify_nightly.night import Settings, run_night
from gguf_verify_nightly.records import Outcome
from tests.support.stub_nights import STUB, write_config


class Pip:
    """Takes the place of pip: "installs" a library, or fails."""

    def __init__(self, code: int | None = 0, library: bool = True) -> None:
        self.commands: list[list[str]] = []
        self._code, self._library = code, library

    def run(self, command: list[str], *_args: Any) -> Any:
        self.commands.append(command)
        folder = Path(command[command.index("--target") + 1]) / "nvidia" / "cu13" / "lib"
        folder.mkdir(parents=True)
        if self._library:
            (folder / "libnvrtc.so.13").touch()
        return SimpleNamespace(exit_code=self._code, said=("working", "ERROR: no such version", "bye"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "cache_dir", lambda: tmp_path / "cache")


def test_a_version_is_fetched_once() -> None:
    pip, told = Pip(), list[int]()
    made: Any = Compilers(pip, 5)  # type: ignore[arg-type]
    first, again = (made.ready("13.2.78", lambda: told.append(1)) for _ in range(2))
    assert first == again
    assert first.name == "libnvrtc.so.13"
    assert (len(pip.commands), told) == (1, [1])
    assert pip.commands[0][-1] == "nvidia-cuda-nvrtc==13.2.78"
    made.ready("12.9.86")
    assert pip.commands[1][-1] == "nvidia-cuda-nvrtc-cu12==12.9.86"


@pytest.mark.parametrize(
    ("pip", "said"),
    [(Pip(1), "cannot be fetched: ERROR: no such version"), (Pip(None), "not finished within 5 s"),
     (Pip(-9), "pip died of SIGKILL"), (Pip(library=False), "has no library")],
)  # fmt: skip
def test_what_cannot_be_fetched(pip: Pip, said: str) -> None:
    with pytest.raises(EnvironmentFault, match=said):
        Compilers(pip, 5).ready("13.0.88")  # type: ignore[arg-type]


@pytest.mark.parametrize(("version", "outcome"), [
    ("13.2.78", Outcome.VERIFIED), ("13.3.33", Outcome.BROKEN_OFF), ("13.20.1", Outcome.BROKEN_OFF),
])  # fmt: skip
def test_cells_run_with_the_variants_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, outcome: Outcome
) -> None:
    """The stub says that NVRTC 13.2 compiled its kernel."""
    library = tmp_path / "libnvrtc.so.13"
    library.touch()
    monkeypatch.setattr(Compilers, "ready", lambda _self, _version, _on_start: library)
    config = read_config(write_config(tmp_path, f"[variants.a]\nhosts = ['gpu']\nnvrtc = '{version}'", p="pass"))
    (cell,) = run_night(config, Settings(harness=STUB, say=lambda _line: None)).cells.values()
    assert cell.outcome is outcome, cell.reason
    if outcome is Outcome.BROKEN_OFF:
        assert cell.reason == f"compiled by NVRTC 13.2 instead of {version}"


def test_a_version_that_cannot_be_fetched_breaks_its_cells_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(*_args: Any) -> Path:
        raise EnvironmentFault("NVRTC 13.9.1 cannot be fetched: no")

    monkeypatch.setattr(Compilers, "ready", ready)
    config = read_config(write_config(tmp_path, "[variants.a]\nhosts = ['gpu']\nnvrtc = '13.9.1'", p="pass"))
    (cell,) = run_night(config, Settings(harness=STUB, say=lambda _line: None)).cells.values()
    assert (cell.outcome, cell.reason) == (Outcome.BROKEN_OFF, "NVRTC 13.9.1 cannot be fetched: no")


def test_the_library_of_the_environment_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cubin that it makes is not taken for another one's."""
    (tmp_path / "k.cu").write_text("")
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 2))
    plain = nvrtc.cubin_key(tmp_path, "k.cu", "90", {})
    keys = {plain}
    for i in range(2):
        library = tmp_path / f"{i}.so"
        library.write_text(str(i))
        monkeypatch.setenv(nvrtc.CHOICE, str(library))
        keys.add(nvrtc.cubin_key(tmp_path, "k.cu", "90", {}))
    assert len(keys) == 3
    nvrtc._library.cache_clear()
    try:
        with pytest.raises(EnvironmentFault, match="NVRTC_LIBRARY: NVRTC cannot be loaded"):
            nvrtc._library()
    finally:
        nvrtc._library.cache_clear()
