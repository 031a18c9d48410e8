"""The messages of usage and environment errors, by their ids: what is wrong, why it matters, how to fix it.

An error carries its id (`HarnessError.id`) and its own line names the thing that is wrong; `gguf-verify explain ID` and
the documentation's page of messages print what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    """What an id means.

    Args:
        id: stable.
        what: what is wrong, a sentence.
        why: why the command does not go on regardless, a sentence.
        fix: what to do, a sentence.
    """

    id: str
    what: str
    why: str
    fix: str


_GIVEN = "A verdict about something else than what was asked for would be worth nothing."

#: Id → message.
MESSAGES: dict[str, Message] = {
    message.id: message
    for message in (
        Message(
            "unknown-command",
            "The first word of the command line is no command, and no file has this name.",
            "A word that is no command is taken for a model, as in `gguf-verify MODEL.gguf`.",
            "Correct the word; `gguf-verify --help` lists the commands.",
        ),
        Message(
            "no-declaration",
            "A kernel in CUDA C++ does not say what it takes and what it computes.",
            "Without that nobody knows what its outputs should be, nor how it is launched.",
            "Paste the block that is printed into the file, correct it, and run the command again.",
        ),
        Message(
            "usage",
            "An option does not exist, lacks its value, or does not take this value.",
            _GIVEN,
            "Correct it; `gguf-verify COMMAND --help` lists the options and what they take.",
        ),
        Message(
            "url",
            "A URL was given in place of a file.",
            "What is verified is the bytes of a local file; `gguf-verify audit` alone reads a header and a sample of "
            "blocks of a remote one.",
            "Download the file and give its path.",
        ),
        Message(
            "remote-file",
            "A remote file could not be read, or not in ranges, or the server says of it what cannot be.",
            "An audit of a remote file reads its header and a sample of its blocks, and never all of it.",
            "Repeat the audit if the network or the server failed; else download the file and give its path.",
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
            "The bytes of the file are mapped into memory, which only regular files allow.",
            "Give read permission, or copy what the pipe gives into a file.",
        ),
        Message(
            "nothing-to-verify",
            "The file is well formed and holds no matrix.",
            "Nothing measured is never a pass, so the exit code is 5.",
            "Give a model with weights; a file that holds only a vocabulary has none.",
        ),
        Message(
            "unknown-kernel",
            "--kernel names no shipped kernel, no family and no file.",
            _GIVEN,
            "Take a name of `gguf-verify --help`, or give your own kernel as FILE.py:NAME or FILE.cu:SYMBOL.",
        ),
        Message(
            "unknown-host",
            "--host names no place where kernels can run.",
            _GIVEN,
            "Take `auto`, or one of the hosts of `gguf-verify --help`.",
        ),
        Message(
            "unknown-rung",
            "--rungs names a rung that does not exist.",
            "A rung that is left out by mistake would look like one that passed.",
            "Take some of bytes, blocks, layers and tokens, separated by commas.",
        ),
        Message(
            "host-not-usable",
            "The host that was asked for cannot be used on this machine.",
            "Another host would give a verdict about another machine, so none takes its place.",
            "For a GPU, install CuPy (`pip install cupy-cuda13x`, or `cupy-cuda12x`) beside NVIDIA's driver; or take "
            "`--host cpu`, where the same CUDA source gives the same bits.",
        ),
        Message(
            "device",
            "--device names no device of this build of llama.cpp.",
            "Another device computes by other code.",
            "Take a name that `gguf-verify devices` lists. ggml leaves out software renderers of Vulkan, unless "
            "GGML_VK_VISIBLE_DEVICES=0 asks for one.",
        ),
        Message(
            "llama-build",
            "The path that --llama names holds no libraries of llama.cpp, or those of several builds.",
            "The verdict is about one build.",
            "Give the folder that libllama, libggml and libggml-base lie in.",
        ),
        Message(
            "cache-type",
            "-ctk or -ctv names no type of ggml.",
            "A cache of another type is computed by other code.",
            "Take f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.",
        ),
        Message(
            "slots",
            "--slots needs a model whose llama.cpp keeps a cache.",
            "An encoder has no slots, whose outputs could be compared.",
            "Leave --slots out.",
        ),
        Message(
            "prompt-too-long",
            "The prompt, or its text, is too long for the model or the context.",
            "Tokens that are cut off would not be verified.",
            "Take a shorter prompt (-p, -f), fewer tokens (-n) or a larger context (-c).",
        ),
    )
}
