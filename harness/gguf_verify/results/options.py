"""Options of a verification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from ..checks import Skipped
from ..support.command_line import cores
from ..support.durations import in_words
from ..support.seeds import fresh_seed

DEFAULT_PROMPT = "The quick brown fox jumps over the lazy dog. Once upon a time there was"

DEFAULT_N_PREDICT = 32
#: The default of `--kernel`: a family.
DEFAULT_KERNEL = "q8_1"
#: Value of `--effort` → the options that it sets.
EFFORTS: dict[str, dict[str, Any]] = {
    "quick": {"probes": "brief", "thorough": False},
    "full": {"probes": "full", "thorough": False},
    "thorough": {"probes": "full", "thorough": True},
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The user's choices; the command line's help explains each.

    Args:
        prompt: the text whose activations the kernel meets.
        n_predict: tokens to predict after it.
        threads: for llama.cpp, the CPU host and the exact products; by default one for each core.
        ctx_size: llama.cpp's context in tokens; 0 for what the prompt and the predicted tokens need.
        seed: of everything that is random; by default a new one for each run (`support.seeds`).
        tensor: a regular expression that selects tensors; None for all.
        repack: let llama.cpp repack its weights.
        reference: the device of llama.cpp that the kernel is compared with: "cpu", "gpu" for the first GPU, or ggml's
            name of one.
        llama: the folder of another build of llama.cpp; "" for that of llama-cpp-python.
        exact_on: where exact products are computed: "cpu", "gpu", or "auto" for the GPU where the kernel runs on one.
        time_limit: seconds that llama.cpp may take for one answer.
        kernel_time_limit: seconds that one call of a foreign kernel may take.
        kernel_memory: GiB of memory that a foreign kernel's processes may take together.
        require_coverage: the kernel is only verified if all of its author's code was executed.
        thorough: judge every element of large matrices, too; else some rows, and all outputs by random combinations.
        order: "find": find the order of summation of a kernel that declares none, and compare the bits of its outputs.
        probes: "full": the whole probe plan, and launches under other schedules; "brief": a small part of the plan.
            "planned": as "full", without the shapes and values that the kernel's own code suggests. No command offers
            it; measures compare it with "full".
        sanitize: check launches for races and bad accesses whatever the probes are, and on a GPU, too.
        verbose: let the logs of llama.cpp and of a foreign kernel through.
        progress: show progress bars on standard error; where that is no terminal, a line now and then.
        exit_first: end the run at the first failure that no waiver covers.
        budget: seconds that the run may take; the rest is not verified. None for no limit.
        only_call: make this call of the kernel alone, the `id` of a `Call`; "" for all.
        save_case: a folder to write the first wrong product into, as files; "" for none. It must not exist or be empty.
        sandbox: how processes are confined that are not trusted: "auto", "bubblewrap", "landlock" or "none".
        declare: a file that declares a foreign kernel, where its code does not; "" for none.
        imports, loads: modules and libraries that are loaded before PyTorch's operators are looked up.
    """

    prompt: str = DEFAULT_PROMPT
    n_predict: int = DEFAULT_N_PREDICT
    threads: int = field(default_factory=cores)
    ctx_size: int = 0
    seed: int = field(default_factory=fresh_seed)
    tensor: str | None = None
    repack: bool = False
    reference: str = "cpu"
    llama: str = ""
    exact_on: Literal["auto", "cpu", "gpu"] = "auto"
    time_limit: float = 900.0
    kernel_time_limit: float = 60.0
    kernel_memory: float = 16.0
    thorough: bool = False
    require_coverage: bool = False
    order: Literal["declared", "find"] = "declared"
    probes: Literal["full", "brief", "planned"] = "full"
    sanitize: bool = False
    verbose: bool = False
    progress: bool = True
    exit_first: bool = False
    budget: float | None = None
    only_call: str = ""
    save_case: str = ""
    sandbox: str = "auto"
    declare: str = ""
    imports: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()

    @property
    def guided(self) -> bool:
        """Whether the kernel's own code suggests further shapes and values."""
        return self.probes == "full"

    @property
    def skips(self) -> Iterator[Skipped]:
        """The checks that these options turn off. An option that turns off checks is here, or is recorded where it
        takes
        effect: `SHORTENING` lists both."""
        if self.tensor is not None:
            yield Skipped(
                "tensors", f"only those that match {self.tensor!a} (--tensor)", f"tensors {self.tensor[:60]!a}"
            )
        if self.sandbox == "none":
            yield Skipped("sandbox", "turned off (--sandbox none)", "no sandbox")


#: Options that can make a run check less than a whole one. The others change how it is made, or its subject.
SHORTENING = frozenset(
    {"tensor", "n_predict", "sandbox", "probes", "thorough", "only_call", "budget", "exit_first", "sanitize"}
)


def spent_words(budget: float | None) -> str:
    """The reason for what a spent budget left unverified."""
    return f"the budget of {in_words(budget)} was spent" if budget is not None else "the budget was spent"
