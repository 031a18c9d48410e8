"""Mutations of bytes, of lines of text, of JSON and of messages. The same input and random numbers give the same.

libFuzzer's own mutations know nothing of a format; these keep most of an input as it is and lie in one place of it.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

#: The values to which a number is changed.
LIES = (
    0, 1, 2, 3, 4, 7, 8, 9, 12, 13, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 1024, 32767, 65535, 65536,
    (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 61) + 1, 1 << 62, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1, -1, -8, -32, -(1 << 31), -(1 << 63),
)  # fmt: skip
#: Texts that something between a file and a terminal, a page or a parser may take for its own.
HOSTILE = (
    "\x1b[31m", "\x1b]0;x\x07", "\x9b2J", "\0", "\r", "\n", "\u202e", "\u2028", "\ufeff", "\ufffe", "\U0001f600",
    "<script>", "</script>", "]]>", "&amp;", "\"'", "`|", "::error::", "%0A", "{{", "../", "~", "\\", "\udc80", "\x7f",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

Json = Any


def of_bytes(data: bytes, rng: random.Random, words: Sequence[bytes] = ()) -> bytes:
    """Some bytes changed, lost, doubled, moved or added, or a number of 1, 2, 4 or 8 bytes changed."""
    at = rng.randrange(len(data) + 1)
    length = min(len(data) - at, rng.choice((1, 1, 2, 4, 8, 16, 64)))
    match rng.randrange(10):
        case 0 | 1:
            return data[:at] + rng.randbytes(length) + data[at + length :]
        case 2 | 3:
            size = rng.choice((1, 2, 4, 4, 8))
            old = int.from_bytes(data[at : at + size], "little")
            new = rng.choice((*LIES, old + 1, old - 1, old * 2, old ^ 1 << rng.randrange(8 * size)))
            order: Any = rng.choice(("little", "little", "big"))
            return data[:at] + (new % (1 << 8 * size)).to_bytes(size, order) + data[at + size :]
        case 4:
            return data[:at] + data[at + length :]
        case 5:
            return data[:at] + rng.randbytes(rng.choice((1, 2, 8))) + data[at:]
        case 6:
            return data[:at] + data[at : at + length] * 2 + data[at + length :]
        case 7:
            other = rng.randrange(len(data) + 1)
            return data[:other] + data[at : at + length] + data[other:]
        case 8 if words:
            return data[:at] + rng.choice(words) + data[at + rng.choice((0, length)) :]
        case 9 if rng.randrange(4) == 0:
            return data[:at]
    return of_number(data, rng)


def of_number(data: bytes, rng: random.Random) -> bytes:
    """A number in ASCII changed; without one, some bytes added."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data + rng.randbytes(4)
    at = rng.choice(found)
    new = rng.choice((*map(str, LIES), "1e999", "-0.0", "NaN", "1" * 400, "0x10", "1_0", "\u0661")).encode()
    return data[: at.start()] + new + data[at.end() :]


def of_lines(words: Sequence[str] = ()) -> Callable[[bytes, random.Random], bytes]:
    """A mutator of lines of text, which may put in these words."""
    raw = [word.encode("utf-8", "surrogateescape") for word in (*words, *HOSTILE)]

    def mutate(data: bytes, rng: random.Random) -> bytes:
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 3 | 4:
                line, place = lines[at], rng.randrange(len(lines[at]) + 1)
                lines[at] = line[:place] + rng.choice(raw) + line[place + rng.choice((0, 0, 1, 4)) :]
            case 5:
                lines[at] = of_number(lines[at], rng) if _NUMBER.search(lines[at]) else lines[at]
            case _:
                return of_bytes(data, rng, raw)
        return b"\n".join(lines)

    return mutate


def of_value(rng: random.Random, depth: int = 0) -> Json:
    """An unexpected JSON value."""
    kinds = 8 if depth < 3 else 6
    match rng.randrange(kinds):
        case 0:
            return rng.choice((None, True, False))
        case 1 | 2:
            return rng.choice(LIES)
        case 3:
            return rng.choice((0.5, -1.5, 1e308, -0.0, 1e-320))
        case 4 | 5:
            return rng.choice((*HOSTILE, "", "x", "NaN", "Infinity", "Q4_0", "verified"))
        case 6:
            return [of_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(("x", "", *HOSTILE)): of_value(rng, depth + 1) for _ in range(rng.randrange(3))}


def of_json_value(value: Json, rng: random.Random) -> Json:
    """The value with one change in one place of it."""
    if isinstance(value, (dict, list)) and value and rng.randrange(8):
        made: Any = dict(value) if isinstance(value, dict) else list(value)
        key: Any = rng.choice(list(made)) if isinstance(made, dict) else rng.randrange(len(made))
        match rng.randrange(12):
            case 0:
                del made[key]
            case 1 if isinstance(made, list):
                made.insert(key, made[key])
            case 1:
                made[rng.choice((*HOSTILE, "more", *map(str, made)))] = made[key]
            case 2:
                other: Any = rng.choice(list(made)) if isinstance(made, dict) else rng.randrange(len(made))
                made[key], made[other] = made[other], made[key]
            case _:
                made[key] = of_json_value(made[key], rng)
        return made
    if isinstance(value, str) and rng.randrange(2):
        place = rng.randrange(len(value) + 1)
        return value[:place] + rng.choice(HOSTILE) + value[place + rng.choice((0, 1)) :]
    return of_value(rng)


def of_json(data: bytes, rng: random.Random) -> bytes:
    """JSON with one change in its values, or in its bytes."""
    if rng.randrange(5) == 0:
        return of_bytes(data, rng, (b"[" * 2000, b'{"":' * 2000, b"1e999", b"NaN", b"\\ud800", b"null", b"\xff"))
    try:
        return json.dumps(of_json_value(json.loads(data), rng), ensure_ascii=rng.random() < 0.9).encode(
            "utf-8", "surrogateescape"
        )
    except (ValueError, RecursionError):
        return of_bytes(data, rng)


def framed(*messages: bytes) -> bytes:
    """Messages as `multiprocessing.connection` writes them: a length of four bytes, big-endian, before each."""
    return b"".join(struct.pack("!i", len(message)) + message for message in messages)


def frames(data: bytes) -> list[bytes]:
    """The messages of `framed` as far as they are complete; the rest is the last one."""
    found = []
    while len(data) >= 4:
        (length,) = struct.unpack("!i", data[:4])
        if not 0 <= length <= len(data) - 4:
            break
        found.append(data[4 : 4 + length])
        data = data[4 + length :]
    return [*found, data] if data else found


def of_frames(data: bytes, rng: random.Random) -> bytes:
    """Messages, of which one is changed: its first line as JSON, or its bytes; or their lengths lie."""
    messages = frames(data)
    if not messages or rng.randrange(8) == 0:
        return of_bytes(data, rng)
    at = rng.randrange(len(messages))
    line, feed, rest = messages[at].partition(b"\n")
    match rng.randrange(8):
        case 0:
            del messages[at]
        case 1:
            messages.insert(rng.randrange(len(messages) + 1), messages[at])
        case 2:
            rest = of_bytes(rest, rng)
            messages[at] = line + feed + rest
        case _:
            messages[at] = of_json(line, rng) + feed + rest
    return framed(*messages)
