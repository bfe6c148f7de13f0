# Everything runs in .venv/py311 (jax 0.10.2, torch) or .venv/py312 (jax 0.12.0.1),
# which requirements/make_env.sh keeps in step with requirements/*.lock.

PY311 := .venv/py311/bin/python
PY312 := .venv/py312/bin/python

# One file a worker: the kernel interpreters keep state after a failure.
PYTEST := -m pytest -n 2 --dist loadfile
ADAPTER_TESTS := $(wildcard integrations/*/tests)

# make_env.sh reads these two, when given on the command line.
export PYTHON311 PYTHON312
# The CPU, and no look for an accelerator.
export JAX_PLATFORMS := cpu

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: env-py311 env-py312 native ## create or update both environments, build native

.PHONY: env-py311
env-py311:
	@requirements/make_env.sh py311 3.11

.PHONY: env-py312
env-py312:
	@requirements/make_env.sh py312 3.12

# One library for all environments, in core/src/tokumx/native. Without a compiler
# there is none, and everything runs on the portable kernels.
.PHONY: native
native: env-py312 ## build the native CPU kernels
	@requirements/make_native.sh .venv/py312/bin

.PHONY: demo
demo: native ## a small model in Flax, with and without tokumx
	$(PY312) e2e_tests/flax/demo.py

.PHONY: test
test: lint test-py312 test-py311 ## lint, and all tests on both Pythons

.PHONY: test-core
test-core: native ## the quick tests of core, on Python 3.12
	$(PY312) $(PYTEST) core/tests -m "not slow"

.PHONY: test-py311
test-py311: env-py311 native ## core and adapters on Python 3.11, the oldest jax; SLOW=1 for all
	$(PY311) $(PYTEST) core/tests $(ADAPTER_TESTS) $(if $(SLOW),,-m "not slow")

.PHONY: test-py312
test-py312: native ## core, adapters and quick end-to-end tests on Python 3.12
	$(PY312) $(PYTEST) core/tests $(ADAPTER_TESTS)
	$(PY312) $(PYTEST) e2e_tests -m "not slow"

.PHONY: lint
lint: env-py312 ## ruff, pyright and the import rules
	$(PY312) -m ruff check .
	$(PY312) -m ruff format --check .
	$(PY312) -m pyright
	.venv/py312/bin/lint-imports --no-logo

.PHONY: format
format: env-py312 ## fix what ruff can, and format
	$(PY312) -m ruff check --fix .
	$(PY312) -m ruff format .

.PHONY: bench-attention
bench-attention: env-py311 native ## attention against its peers; ARGS=... is passed on
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.attention $(ARGS)

.PHONY: bench-paged
bench-paged: native ## decoding over a paged cache; ARGS=... is passed on
	$(PY312) -m tokumx.bench.paged $(ARGS)

.PHONY: bench-cross-entropy
bench-cross-entropy: env-py311 native ## the linear cross-entropy against its peers
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.cross_entropy $(ARGS)

.PHONY: bench-glu
bench-glu: env-py311 native ## gated linear units against their peers
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.gated_linear_unit $(ARGS)

.PHONY: bench-moe
bench-moe: env-py311 native ## mixture-of-experts layers against their peers
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.moe $(ARGS)

.PHONY: bench-norm
bench-norm: env-py311 native ## norms of rows against their peers
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.normalization $(ARGS)

.PHONY: bench-quantized
bench-quantized: env-py311 native ## products with quantized weights against their peers
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.quantized_matmul $(ARGS)

.PHONY: bench-ragged-dot
bench-ragged-dot: env-py311 native ## grouped products against their peers
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.ragged_dot $(ARGS)

.PHONY: bench-rotary
bench-rotary: env-py311 native ## rotary embeddings against their peers
	TORCH_PYTHON=$(CURDIR)/$(PY311) $(PY312) -m tokumx.bench.rotary_embedding $(ARGS)

.PHONY: clean
clean: ## remove caches and build outputs, not the environments
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf core/dist core/build integrations/*/dist core/src/tokumx/native/*.so
	find core integrations e2e_tests requirements -name __pycache__ -type d -exec rm -rf {} +

.PHONY: clean-env
clean-env: ## remove both environments
	rm -rf .venv
