"""Stands in for a run of the harness in tests of the nightly: what it does is its prompt's first word.

python -I -S nightly_stub.py MODEL --prompt=WORD … --json FILE
"""

import json
import os
import signal
import subprocess
import sys
import time

model = sys.argv[1]
word, *rest = next(a for a in sys.argv if a.startswith("--prompt=")).removeprefix("--prompt=").split()
target = sys.argv[sys.argv.index("--json") + 1]
kernel = sys.argv[sys.argv.index("--kernel") + 1]


def rung(name):
    own = {
        "name": name, "verdict": "passed", "seconds": 0.25, "fault": None, "checked": {}, "not_checked": {},
        "unverified": [], "failures": [], "n_failures": 0, "worst": {}, "score": {}, "diagnosis": None, "figures": {},
        "notes": [], "details": [],
    }  # fmt: skip
    if name == "layers":
        own["worst"] = {"kernel": {"utilisation": 0.03125, "where": "blk.0 row 1"}}
        own["score"] = {"kernel": 1.5}
        own["figures"] = {"gap to llama.cpp, worst NMSE": 0.0003}
        own["details"] = [{"tensor": "blk.0", "kernel": 0.03125}, {"tensor": "blk.0", "kernel": 0.0625}]
    return own


def report():
    names = ("gguf-verify", "llama-cpp-python", "llama.cpp", "ggml", "llama.cpp build", "python", "numpy", "gguf",
             "reference", "platform")  # fmt: skip
    header = dict.fromkeys(names, "1") | {"host": "cpu: stub (x86_64), 1 threads, c++ 1"}
    rungs = [rung(name) for name in ("bytes", "blocks", "layers", "tokens")]
    return {"schema": 1, "verdict": "verified", "exit_code": 0, "header": header, "seconds": 1.0, "command": kernel,
            "rungs": rungs}  # fmt: skip


def write(made):
    with open(target, "w") as file:
        json.dump(made, file)


def failed(made, said, code, **changes):
    made["verdict"], made["exit_code"] = said, code
    made["rungs"][2] |= changes
    write(made)
    sys.exit(code)


if log := os.environ.get("STUB_LOG"):
    with open(log, "a") as file:
        file.write(f"{os.path.basename(model)} {kernel} {word} {' '.join(rest)}\n")
made = report()
if word == "pass":
    time.sleep(float(rest[0]) if rest else 0)
    write(made)
elif word == "lies":  # a pass without a report
    pass
elif word == "garbage":
    with open(target, "w") as file:
        file.write("{")
elif word == "list":
    write([made])
elif word == "schema":
    write(made | {"schema": 2})
elif word == "lacks":
    del made["rungs"][1]["worst"]
    write(made)
elif word == "says-mismatch":
    write(made | {"verdict": "mismatch"})
elif word == "three-rungs":
    del made["rungs"][3]
    write(made)
elif word == "one-failed":
    made["rungs"][3]["verdict"] = "unverified"
    write(made)
elif word == "holds-failures":
    made["rungs"][2]["failures"] = [{"what": "wrong"}]
    write(made)
elif word == "report-exit":
    write(made | {"exit_code": 5})
elif word == "contradicts":
    write(made)
    sys.exit(1)
elif word == "mismatch":
    failed(made, "mismatch", 1, verdict="failed", failures=[{"what": "blk.0 row 3 is wrong"}], n_failures=4)
elif word == "unverified":
    failed(made, "not everything verified", 5, verdict="unverified", unverified=[{"name": "x", "why": "no kernel"}])
elif word == "fault":
    failed(made, "broken off", 3, verdict="unverified", fault="llama.cpp died in evaluate (SIGSEGV)")
elif word == "says-wrong":
    print("gguf-verify: the kernel wrote outside its output", file=sys.stderr)
    sys.exit(1)
elif word == "raises":
    raise ValueError("no")
elif word == "malformed":
    print("gguf-verify: \x1b[31mno GGUF", file=sys.stderr)
    sys.exit(4)
elif word == "usage":
    print("one\ngguf-verify: no such kernel\n", file=sys.stderr)
    sys.exit(2)
elif word == "segv":
    write(made)
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
elif word == "hangs":  # with a pass in its report, and a grandchild in a session of its own
    write(made)
    print("still going", file=sys.stderr, flush=True)
    code = "import time; time.sleep(600)"
    for session in (True, False):
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code, "STUB"], start_new_session=session)
        with open(rest[0], "a") as file:
            file.write(f"{child.pid}\n")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
elif word == "leaves":  # a pass that leaves a process behind
    write(made)
    code = "import os, time; os.setsid(); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    with open(rest[0], "a") as file:
        file.write(f"{child.pid}\n")
elif word == "floods":
    for _ in range(20_000):
        print("x" * 100, file=sys.stderr)
    write(made)
else:
    sys.exit(99)
