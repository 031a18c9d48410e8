"""The costs of a quantization: each GEMM's relative error, and how far the model's predictions moved.

The source is the model before it was quantized (F16, BF16 or F32, or of any other types): the same tensors with the
same shapes, and the same vocabulary.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from ..gguf.model import Model, open_model
from ..llama import LlamaRefused
from ..results import QuantizationCosts
from ..rungs import Run
from ..support.errors import EnvironmentFault, HarnessError, UsageError
from ..support.files import read_input
from ..support.text import printable
from . import gemms, predictions

#: Bytes of a text that is read at most; `llama-perplexity`'s usual text (wiki.test.raw) has 1.3 MB.
MOST_TEXT = 1 << 26
#: Keys that say which vocabulary a model has.
_VOCABULARY = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")


@dataclass(frozen=True)
class Text:
    """A text to predict: its name in reports, and its characters."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Of its UTF-8."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def read_text(path: Path | str) -> Text:
    """A text from a file of UTF-8. Raises UsageError where it cannot be read or is empty."""
    path = Path(path)
    shown = printable(path.name, 100)
    try:
        text = read_input(path, "text", MOST_TEXT).decode()
    except UnicodeDecodeError:
        raise UsageError(f"cannot read the text {shown}: it is not UTF-8") from None
    if not text.strip():
        raise UsageError(f"the text {shown} is empty")
    return Text(shown, text)


def open_source(path: Path | str, model: Model) -> Model:
    """Open the model that `model` was quantized from.

    Raises:
        MalformedFile: the source cannot be read safely.
        UsageError: it is another model: another architecture, other tensors or shapes, another vocabulary.
    """
    source = open_model(path)
    difference = _difference(model, source)
    if difference is not None:
        source.close()
        raise UsageError(
            f"--source: {printable(source.path.name, 100)} is not what this model was made from: {difference}"
        )
    return source


def _difference(model: Model, source: Model) -> str | None:
    """The first thing in which two models differ that quantization leaves as it is."""
    if model.architecture != source.architecture:
        names = [printable(m.architecture or "none", 40) for m in (source, model)]
        return f"its architecture is {names[0]}, not {names[1]}"
    for name, tensor in model.tensors.items():
        other = source.tensors.get(name)
        if other is None:
            return f"it has no tensor {printable(name, 64)}"
        if other.shape != tensor.shape:
            shapes = ["×".join(map(str, t.shape)) for t in (other, tensor)]
            return f"its {printable(name, 64)} is {shapes[0]}, not {shapes[1]}"
    extra = next((name for name in source.tensors if name not in model.tensors), None)
    if extra is not None:
        return f"it has a tensor {printable(extra, 64)} that the model lacks"
    if any(_value(model, key) != _value(source, key) for key in _VOCABULARY):
        return "it has another vocabulary"
    return None


def _value(model: Model, key: str) -> bytes | None:
    """A key's value as it stands in the file."""
    first = model.parts[0]
    at = first.value_ranges.get(key)
    return None if at is None else bytes(first.buffer[at.start : at.stop])


def measure(run: Run, source: Model, text: Text | None = None) -> QuantizationCosts:
    """The costs of the run's model against its source. What cannot be measured is named in the result.

    Args:
        run: of the quantized model: its prompt, its backend of llama.cpp, its options.
        source: as `open_source` gives it.
        text: whose predictions are compared; None for the run's prompt.
    """
    start = time.perf_counter()
    text = text or Text("the run's prompt", run.options.prompt)
    left: list[tuple[str, str]] = []
    found = []
    try:
        found = gemms.measure(run, source, left)
    except (LlamaRefused, HarnessError) as error:
        _check(error)
        left.append(("errors of GEMMs", str(error)))
    predicted = None
    try:
        if run.session.embeds or run.session.source:
            left.append(("predictions of tokens", "the model does not continue a text"))
        else:
            predicted = predictions.measure(run, source, text.name, text.text, text.sha256)
    except (LlamaRefused, HarnessError) as error:
        _check(error)
        left.append(("predictions of tokens", str(error)))
    return QuantizationCosts(
        source=source.info(), gemms=tuple(found), text=predicted, left=tuple(left),
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def _check(error: Exception) -> None:
    """What this machine or llama.cpp could not do is a line of the report; anything else ends the run."""
    if isinstance(error, HarnessError) and not isinstance(error, EnvironmentFault | UsageError):
        raise error
