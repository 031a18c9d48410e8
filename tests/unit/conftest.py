"""The unit tier starts no llama.cpp: a test that would start it fails."""

from __future__ import annotations

import itertools
import subprocess
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

_Popen_init = subprocess.Popen.__init__


class _NoLlama:
    """Stands first on `sys.meta_path` and refuses to import llama-cpp-python."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] == "llama_cpp":
            raise AssertionError("a test of the unit tier imports llama_cpp; it belongs to the tier `reference`")
        return None


def _starts_llama(command: object) -> bool:
    words = [command] if isinstance(command, str) else [str(word) for word in command]  # type: ignore[attr-defined]
    modules = [after for word, after in itertools.pairwise(words) if word == "-m"]
    return any(m.startswith("gguf_verify.llama") for m in modules) or (
        "gguf_verify.llama.reader_process" in modules and "llama.cpp" in words
    )


def _init(self: subprocess.Popen[Any], args: Any, *rest: Any, **options: Any) -> None:
    assert not _starts_llama(args), "a test of the unit tier starts llama.cpp; it belongs to the tier `reference`"
    _Popen_init(self, args, *rest, **options)


@pytest.fixture(autouse=True)
def no_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess.Popen, "__init__", _init)
    monkeypatch.setattr(sys, "meta_path", [_NoLlama, *sys.meta_path])


@pytest.fixture(scope="session")
def llama() -> None:
    pytest.fail("a test of the unit tier asks for llama.cpp; it belongs to the tier `reference`")
