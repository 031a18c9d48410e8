"""How well a wrong kernel is told from a right one: see --help."""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processes are forked
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mutation_kill

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    sub = parser.add_subparsers(dest="part", required=True)
    mutation_kill.add_arguments(sub.add_parser("kill"))
    sys.exit(mutation_kill.run(parser.parse_args()))
