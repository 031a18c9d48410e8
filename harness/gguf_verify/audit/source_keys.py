"""Comparison of a file's keys with its source's: a model with another rope base has the same tensors.

Some keys may differ. The quantizer and the splitter write `general.file_type`, `general.quantization_version`,
`general.alignment`, `general.tensor_extra.*`, `quantize.*` and `split.*`. The other `general.*` describe the model in
words (names, authors, licences, tags), except for its architecture, its type and the sampling. Everything else is used
in computations, and must equal the source's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..gguf.model import Model
from ..gguf.records import Finding, finding
from ..support.text import quoted

_WRITTEN = ("general.file_type", "general.quantization_version", "general.alignment")
_WRITTEN_BELOW = ("general.tensor_extra.", "quantize.", "split.")
_DESCRIBES, _COMPUTED_WITH = "general.", ("general.architecture", "general.type", "general.sampling.")
#: Number of bytes of a long text to decode for display.
_SHOWN = 256


@dataclass(frozen=True)
class SourceKeys:
    """A comparison of a file's keys with its source's.

    Args:
        compared: number of keys compared.
        differing: number of keys that differ, or that only one of the files has.
        why: why none were compared, or "".
    """

    compared: int = 0
    differing: int = 0
    why: str = ""

    @property
    def words(self) -> str:
        """The comparison in words, for a report."""
        if self.why:
            return f"keys not compared: {self.why}"
        n = self.compared
        some = f"{self.differing:,} of {n:,} keys differ{'s' if self.differing == 1 else ''}"
        return some if self.differing else f"all {n:,} compared keys agree"


def may_differ(key: str) -> bool:
    """Whether a quantized file's value of a key may differ from its source's."""
    if key in _WRITTEN or key.startswith(_WRITTEN_BELOW):
        return True
    return key.startswith(_DESCRIBES) and not key.startswith(_COMPUTED_WITH)


def compare_keys(model: Model, source: Mapping[str, object] | None) -> tuple[SourceKeys, list[Finding]]:
    """Compare the keys; returns counts and a finding for each that differs. `source` is None if it has no such keys."""
    if source is None:
        return SourceKeys(why="safetensors hold none"), []
    names = [key for key in dict.fromkeys((*model.metadata, *source)) if not may_differ(key)]
    findings = [f for key in names for f in _key(model, source, key)]
    return SourceKeys(len(names), len(findings)), findings


def _key(model: Model, source: Mapping[str, object], key: str) -> Iterator[Finding]:
    at = model.parts[0].value_ranges.get(key)
    start, stop = (at.start, at.stop) if at else (0, 0)
    if key not in model.metadata:
        found, expected = f"no {quoted(key)}", f"{_shown(source[key])}, the source's"
    elif key not in source:
        found, expected = f"{quoted(key)} of {_shown(model.metadata[key])}", "no such key, as in the source"
    elif (unlike := _unlike(model.metadata[key], source[key])) is not None:
        found, expected = f"{quoted(key)} of {unlike[0]}", f"{unlike[1]}, the source's"
    else:
        return
    yield finding("source-key", start, stop, expected, found, key)


def _unlike(ours: object, theirs: object) -> tuple[str, str] | None:
    """Return two values in words, reduced to their difference; None if they are equal. Any NaN equals any other."""
    if isinstance(ours, float) and isinstance(theirs, float) and ours != ours and theirs != theirs:
        return None
    if _is_array(ours) and _is_array(theirs):
        assert isinstance(ours, (Sequence, np.ndarray))
        assert isinstance(theirs, (Sequence, np.ndarray))
        return _unlike_elements(ours, theirs)
    if type(ours) is type(theirs) and ours == theirs:
        return None
    return _shown(ours), _shown(theirs)


def _unlike_elements(
    ours: Sequence[object] | np.ndarray, theirs: Sequence[object] | np.ndarray
) -> tuple[str, str] | None:
    if len(ours) != len(theirs):
        return f"{len(ours):,} elements", f"{len(theirs):,} elements"
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray) and ours.dtype == theirs.dtype:
        bits = f"u{ours.itemsize}"
        wrong = np.flatnonzero(ours.view(bits) != theirs.view(bits)).tolist()
    elif type(ours) is type(theirs) and not isinstance(ours, np.ndarray) and ours == theirs:
        wrong = []
    else:
        wrong = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if _unlike(a, b) is not None]
    if not wrong:
        return None
    i, n = wrong[0], len(wrong)
    more = f" (and {n - 1:,} other elements)" if n > 1 else ""
    return f"{_shown(ours[i])} as element {i}{more}", _shown(theirs[i])


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or (
        isinstance(value, Sequence) and not isinstance(value, (str, bytes, memoryview))
    )


def _shown(value: object) -> str:
    if isinstance(value, memoryview):  # a text too long to be copied
        value = bytes(value[:_SHOWN]).decode(errors="replace")
    if isinstance(value, str):
        return quoted(value)
    if _is_array(value):
        assert isinstance(value, (Sequence, np.ndarray))
        return f"{len(value):,} elements"
    return f"{value:.9g}" if isinstance(value, (float, np.floating)) else str(value)
