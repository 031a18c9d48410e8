"""Messages of usage and environment errors by id: what is wrong, why it matters, how to fix it.

An error carries its id (`HarnessError.id`), and its own line names the thing that is wrong. `gguf-verify explain ID`
and the page of messages in the documentation print these texts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """The explanation of an id.

    Args:
        id: the stable id.
        what: what is wrong, as a sentence.
        why: why the command does not continue, as a sentence.
        fix: what to do, as a sentence.
    """

    id: str
    what: str
    why: str
    fix: str


_GIVEN = "A verdict on something other than what was requested would be worthless."

#: Id → message.
MESSAGES: dict[str, Message] = {
    message.id: message
    for message in (
        Message(
            "unknown-command",
            "The first word of the command line is not a command, and no file has this name.",
            "A word that is not a command is read as a model, as in `gguf-verify MODEL.gguf`.",
            "Correct the word; `gguf-verify --help` lists the commands.",
        ),
        Message(
            "no-declaration",
            "A kernel in CUDA C++ does not declare its arguments and its definition.",
            "Without a declaration it is unknown how to launch the kernel and what its outputs should be.",
            "Paste the printed block into the file, correct it, and run the command again.",
        ),
        Message(
            "usage",
            "An option does not exist, lacks its value, or does not take this value.",
            _GIVEN,
            "Correct it; `gguf-verify COMMAND --help` lists the options and their values.",
        ),
        Message(
            "settings",
            "A gguf-verify.toml or pyproject.toml cannot be read, or its settings have a wrong key or value.",
            "The file of the current folder, or of its nearest parent that has one, changes defaults of every command "
            "that runs something.",
            "Correct it, remove it, or work in another folder; `docs/command-line.md` lists the keys.",
        ),
        Message(
            "url",
            "A URL was given in place of a file.",
            "gguf-verify verifies the bytes of local files; only `gguf-verify audit` reads remote files: the header "
            "and a sample of blocks.",
            "Download the file and give its path.",
        ),
        Message(
            "remote-file",
            "A remote file could not be read, or not in ranges, or the server's answers contradict each other.",
            "An audit of a remote file reads its header and a sample of its blocks, never the whole file.",
            "Repeat the audit if the network or the server failed; otherwise download the file and give its path.",
        ),
        Message(
            "no-such-file",
            "The model file does not exist.",
            "There is nothing to read.",
            "Correct the path; for a split model, give the first part.",
        ),
        Message(
            "is-a-directory",
            "A folder was given in place of a file.",
            "A folder may hold several models.",
            "Give the path of the GGUF file in it.",
        ),
        Message(
            "unreadable-file",
            "The file cannot be opened, or is a pipe or a device.",
            "The file's bytes are mapped into memory, which works only for regular files.",
            "Give read permission, or copy the pipe's output into a file.",
        ),
        Message(
            "nothing-to-verify",
            "The file is well formed but holds no matrix.",
            "A check that measured nothing is never a pass, so the exit code is 5.",
            "Give a model with weights; a file that holds only a vocabulary has none.",
        ),
        Message(
            "unknown-kernel",
            "--kernel names no shipped kernel, family or file.",
            _GIVEN,
            "Use a name from `gguf-verify --help`, or give your own kernel as FILE.py:NAME or FILE.cu:SYMBOL.",
        ),
        Message(
            "unknown-host",
            "--host names no known host.",
            _GIVEN,
            "Use `auto`, or one of the hosts in `gguf-verify --help`.",
        ),
        Message(
            "unknown-rung",
            "--rungs names a rung that does not exist.",
            "A rung skipped by mistake would look like one that passed.",
            "Use some of bytes, blocks, layers and tokens, separated by commas.",
        ),
        Message(
            "host-not-usable",
            "The requested host cannot be used on this machine.",
            "Another host would give a verdict about another machine, so none is substituted.",
            "For a GPU, install CuPy (`pip install cupy-cuda13x`, or `cupy-cuda12x`) and NVIDIA's driver; or use "
            "`--host cpu`, where the same CUDA source gives the same bits.",
        ),
        Message(
            "unsupported-machine",
            "This is not Linux on an x86-64 processor.",
            "The definitions of llama.cpp's CPU backend are those of its x86-64 builds, and processes are confined by "
            "what only Linux offers.",
            "On Windows with such a processor, use WSL2. Elsewhere, run the image of the repository's Dockerfile with "
            "`docker run --platform linux/amd64`, which emulates one.",
        ),
        Message(
            "device",
            "--device names no device of this build of llama.cpp.",
            "Another device runs other code.",
            "Use a name that `gguf-verify devices` lists. ggml hides Vulkan's software renderers unless "
            "GGML_VK_VISIBLE_DEVICES=0 is set.",
        ),
        Message(
            "llama-build",
            "The path of --llama holds no libraries of llama.cpp, or those of several builds.",
            "The verdict is about one build.",
            "Give the folder that contains libllama, libggml and libggml-base.",
        ),
        Message(
            "cache-type",
            "-ctk or -ctv names no type of ggml.",
            "A cache of another type is computed by other code.",
            "Use f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.",
        ),
        Message(
            "slots",
            "--slots needs a model for which llama.cpp keeps a KV cache.",
            "An encoder has no slots whose outputs could be compared.",
            "Remove --slots.",
        ),
        Message(
            "prompt-too-long",
            "The prompt, or its text, is too long for the model or the context.",
            "Truncated tokens would not be verified.",
            "Use a shorter prompt (-p, -f), fewer tokens (-n) or a larger context (-c).",
        ),
    )
}
