"""The cost of a quantization: each GEMM's relative error, and the change of the model's predictions.

The source is the model before quantization (F16, BF16, F32 or any other types): the same tensors with the same shapes,
and the same vocabulary.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

from ..gguf.model import Model, open_model
from ..llama.process import LlamaRefused
from ..results.costs import QuantizationCosts, TextCost
from ..rungs.run import Run
from ..support.errors import EnvironmentFault, HarnessError, UsageError
from ..support.files import read_input
from ..support.text import printable
from . import gemms, predictions

#: Size limit of a text in bytes; the usual text of `llama-perplexity` (wiki.test.raw) has 1.3 MB.
MOST_TEXT = 1 << 26
#: Keys that identify a model's vocabulary.
_VOCABULARY = ("tokenizer.ggml.model", "tokenizer.ggml.tokens")


@dataclass(frozen=True)
class Text:
    """A text to predict: its name in reports, and its content."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the text in UTF-8."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


def read_text(path: Path | str) -> Text:
    """Read a text from a UTF-8 file. Raises UsageError if it cannot be read or is empty."""
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
        UsageError: it is another model: the architecture, the tensors, a shape or the vocabulary differs; or it is
            quantized and the model is not.
    """
    source = open_model(path)
    difference = _difference(model, source)
    if difference is not None:
        source.close()
        raise UsageError(f"--source: {printable(source.path.name, 100)} is not the source of this model: {difference}")
    return source


def _difference(model: Model, source: Model) -> str | None:
    """Describe the first difference between two models that quantization does not explain; None if there is none."""
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
    coarser = [
        name for name, t in source.tensors.items() if t.type.quantized and not model.tensors[name].type.quantized
    ]
    if coarser and not any(t.type.quantized for t in model.tensors.values()):
        return f"its {printable(coarser[0], 64)} is quantized, that of the model is not; exchange the two files"
    if any(_value(model, key) != _value(source, key) for key in _VOCABULARY):
        return "it has another vocabulary"
    return None


def _value(model: Model, key: str) -> bytes | None:
    """Return the bytes of a key's value in the file."""
    first = model.parts[0]
    at = first.value_ranges.get(key)
    return None if at is None else bytes(first.buffer[at.start : at.stop])


def measure(run: Run, source: Model, text: Text | None = None) -> QuantizationCosts:
    """Measure the costs of the run's model against its source. The result lists what could not be measured.

    Args:
        run: the run of the quantized model: its prompt, llama.cpp backend and options.
        source: the model that `open_source` returned.
        text: the text for the predictions; None for the run's prompt.
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
            if predicted.enough:
                left.append((", ".join(_missing(predicted)), _too_few(predicted)))
    except (LlamaRefused, HarnessError) as error:
        _check(error)
        left.append(("predictions of tokens", str(error)))
    return QuantizationCosts(
        source=source.info(),
        gemms=tuple(found),
        text=predicted,
        left=tuple(left),
        seconds=time.perf_counter() - start,
    )


def _missing(text: TextCost) -> list[str]:
    """The figures that the predictions are too few for."""
    names = {
        "perplexity": ("perplexity", "source_perplexity", "ratio"), "KL divergence": ("kl_mean",),
        "equal predictions": ("top1",),
    }  # fmt: skip
    return [words for words, fields in names.items() if None in [getattr(text, field) for field in fields]]


def _too_few(text: TextCost) -> str:
    return (
        f"{text.scored:,} predictions are too few for a standard error of {100 * predictions.MOST_ERROR:g} %: about "
        f"{text.enough:,} tokens of text are needed, this one has {text.tokens:,} (--text FILE)"
    )


def _check(error: Exception) -> None:
    """Raise an error that ends the run; faults of this machine and of llama.cpp become a line of the report."""
    if isinstance(error, HarnessError) and not isinstance(error, EnvironmentFault | UsageError):
        raise error
