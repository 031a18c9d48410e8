"""What a foreign kernel's process may say: every answer that is not valid is the kernel's fault, in one line."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gguf_verify.kernels.foreign.conversation import Conversation
from gguf_verify.support.errors import KernelFault
from tests.fuzz import mutations
from tests.fuzz.targets.answers import Scripted


@pytest.mark.parametrize("said", [b"[" * 9000, b"\xff", b"", b"[]", b"1" * 9000, b"{", b'"ok"'])
def test_no_answer_raises_anything_else(said: bytes) -> None:
    start: Any = partial(Scripted, mutations.framed(said))
    talk = Conversation("the kernel", "k", start, 30.0, 30.0)
    with pytest.raises(KernelFault, match="the kernel's process sent an answer that is not valid"):
        talk.begin()
    assert talk.process is None
