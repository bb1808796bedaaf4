# The commands of this project. Each one first makes the virtual environment that it needs, with
# uv if it is there and with pip if not, and does so again when pyproject.toml has changed.
#
#   make demo      train the example model        make format   format the code
#   make test      run the tests                  make clean    remove what these commands made
#   make check     lint, types, imports, docs     make tpu      let the tests compile for TPUs, too
#   make gpu-plugins
#                  install XLA's compiler for NVIDIA GPUs for benchmarks/compiled_steps.py, which needs no GPU
#   make test-all  run all tests, also combinations that others nearly cover
#   make test-fast run the first test of each file, in about two minutes
#   make test-oldest
#                  run a sample with the oldest Python that is there, and the oldest versions of what Axonym needs
#   make compilers install both compilers where they are to be had
#   make fuzz      compare random sharded programs with NumPy: ARGS="--programs 5000"
#   make bench     measure what names cost, and write docs/benchmarks.md
#   make bench-smoke, make bench-rules
#                  find out whether that runs; measure the sharding rules
#   make parity    compare the models in examples/models with transformers, which brings PyTorch
#   make record-models
#                  write the files that the tests compare these models with
#
#   ARGS="..."     options for demo, tests or benchmarks: make test ARGS="-n 0 tests/test_docs.py"
#   PYTHON=...     the Python to use instead of the first one found
#   VENV=...       the directory of the virtual environment, .venv unless said
#   WORKERS=...    how many processes run the tests

VENV ?= .venv
PYTHON ?=
ARGS ?=
WORKERS ?= 2

bin := $(VENV)/bin
export AXONYM_LIBTPU := $(or $(AXONYM_LIBTPU),$(realpath $(VENV)/tpu))
export AXONYM_GPU_PLUGINS := $(or $(AXONYM_GPU_PLUGINS),$(realpath $(VENV)/gpu-plugins))

.PHONY: help demo test test-all test-fast test-oldest compilers fuzz bench bench-smoke bench-rules .bench parity record-models .parity tpu gpu-plugins check format clean FORCE
.DELETE_ON_ERROR:
.NOTPARALLEL:

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.installed-examples
	$(bin)/python examples/train_lm.py $(ARGS)

# Workers, and the processes that tests start, would each compile the same modules from their text.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.installed-dev
	$(bin)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-all:
	@$(MAKE) --no-print-directory test ARGS="--thorough $(ARGS)"

test-fast:
	@$(MAKE) --no-print-directory test ARGS="--first-tests=file $(ARGS)"

test-oldest: export UV_CONSTRAINT = $(abspath $(VENV)-oldest/constraints.txt)
test-oldest: export PIP_CONSTRAINT = $(UV_CONSTRAINT)
# A Python or compilers that are given are those of the newest versions.
test-oldest: oldest := VENV=$(VENV)-oldest PYTHON= AXONYM_LIBTPU= AXONYM_GPU_PLUGINS=
test-oldest:
	@oldest=$$(tools/find-python --oldest) && tools/make-venv $(VENV)-oldest "$$oldest"
	@grep -A 9 "^dependencies" pyproject.toml | sed -n 's/^    "\(.*\)>=\(.*\)",$$/\1==\2/p' >$(UV_CONSTRAINT)
	@$(MAKE) --no-print-directory test $(oldest) ARGS="--first-tests=folder"
	@$(MAKE) --no-print-directory test $(oldest) ARGS="tests/typing tests/test_packaging.py tests/ground/test_jax_compat.py"

# They are large, and not for every system.
compilers:
	@$(MAKE) --no-print-directory tpu || echo "== no libtpu, so nothing is compiled for TPUs"
	@$(MAKE) --no-print-directory gpu-plugins || echo "== no compiler for NVIDIA GPUs, so nothing is compiled for them"

fuzz: $(VENV)/.installed-dev
	$(bin)/python -W error -m tests.fuzz $(ARGS)

# In a virtual environment of its own: what is compared with brings some sixty packages.
bench: .bench
	$(VENV)-bench/bin/python -m benchmarks.performance $(ARGS)

bench-smoke: .bench
	$(VENV)-bench/bin/python -m benchmarks.performance --smoke $(ARGS)

bench-rules: .bench
	$(VENV)-bench/bin/python -m benchmarks.sharding_quality $(ARGS)

.bench:
	@$(MAKE) --no-print-directory VENV=$(VENV)-bench $(VENV)-bench/.installed-bench

# Also in a virtual environment of its own, of some gigabytes: with random models that nobody has recorded before.
parity: recorded := $(VENV)-parity/recorded
parity: .parity
	$(VENV)-parity/bin/python tools/record_models.py --out $(recorded) --seed $$(date +%s)
	AXONYM_RECORDED_MODELS=$(abspath $(recorded)) $(VENV)-parity/bin/python -m pytest -n $(WORKERS) --dist worksteal \
	    tests/nn/test_positions.py tests/examples/test_models.py tests/examples/test_generate.py $(ARGS)

record-models: .parity
	$(VENV)-parity/bin/python tools/record_models.py $(ARGS)

.parity:
	@$(MAKE) --no-print-directory VENV=$(VENV)-parity $(VENV)-parity/.installed-dev,parity

tpu: $(VENV)/tpu

gpu-plugins: $(VENV)/gpu-plugins

check: $(VENV)/.installed-dev,docs
	$(bin)/ruff check
	$(bin)/ruff format --check
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(bin)/pyright --pythonpath $(bin)/python
	$(bin)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict

format: $(VENV)/.installed-dev
	$(bin)/ruff check --fix
	$(bin)/ruff format

clean:
	rm -rf .venv .venv-* build dist site .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each apart from the rest, in the version for this JAX: where JAX finds it, it looks for TPUs or GPUs.
$(VENV)/tpu: wanted = next(one.split(";")[0] for one in requires("jax") if one.startswith("libtpu"))
$(VENV)/gpu-plugins: wanted = *(f"jax-cuda12-{part}==" + version("jaxlib") for part in ("plugin", "pjrt"))
$(VENV)/tpu $(VENV)/gpu-plugins: $(VENV)/.installed-dev
	@echo "Installing $(@F) into $@"
	@rm -rf $@ $@.part
	@wanted=$$($(bin)/python -c 'from importlib.metadata import requires, version; print($(wanted))') && \
	if command -v uv >/dev/null; \
	then uv pip install --quiet --python $(bin)/python --target $@.part --no-deps $$wanted; \
	else $(bin)/python -m pip install --quiet --disable-pip-version-check --target $@.part --no-deps $$wanted; \
	fi
	@mv $@.part $@

# Runs each time, and changes the file only if the virtual environment is made anew.
$(VENV)/.made: FORCE
	@tools/make-venv "$(VENV)" "$(PYTHON)"

# Modules are compiled when they are imported: pip would compile all of them, which takes two thirds of its time.
$(VENV)/.installed-%: $(VENV)/.made pyproject.toml
	@echo "Installing .[$*] into $(VENV)"
	@if command -v uv >/dev/null; \
	then uv pip install --quiet --python $(bin)/python --editable '.[$*]'; \
	else $(bin)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$*]'; \
	fi
	@touch $@
