# Targets need nothing done before: each makes the environment it runs in, or uses the one that is there.
# PYTHON=/path/to/python3.12 chooses the interpreter; ARGS=... is added to the sweep or to pytest.

.PHONY: help tune test setup lint test-deviceless test-gpu prove mutate legality bench-startup bench-enumeration clean

help:
	@echo 'make tune             tune one matmul: on the GPU, or without one by compiling and predicting'
	@echo 'make test             lint, types and every test that needs no GPU'
	@echo 'make setup            the environment of `make test`, .venv'
	@echo 'make lint             lint and types only'
	@echo 'make test-deviceless  the tests that compile for a GPU without one'
	@echo 'make test-gpu         the tests that need a GPU, with the python3 at hand and what it has installed'
	@echo 'make prove            hold the rules against JAX and ptxas on every architecture; half an hour on two cores'
	@echo 'make mutate           show that no rule, and no number in one, can change unseen'
	@echo 'make legality         renew docs/legality.md, which tells the rules'
	@echo 'make bench-startup    how long `tuner --help` takes'
	@echo 'make bench-enumeration  our enumeration against itertools, python-constraint2 and pyATF'
	@echo 'make clean            remove what these made, environments too'

tune:
	@tools/tune.sh $(ARGS)

setup:
	@tools/setup.sh dev

lint: setup
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

test: lint
	.venv/bin/python -m pytest -n 2 -m 'not gpu and not deviceless' $(ARGS)
	@$(MAKE) --no-print-directory test-deviceless

test-deviceless:
	@tools/setup.sh deviceless
	.venv-deviceless/bin/python -m pytest -n 2 -m 'deviceless and not gpu' $(ARGS) || [ $$? -eq 5 ]  # 5: ARGS chose none

test-gpu:
	$(or $(PYTHON),python3) -m pytest -m gpu $(ARGS)

prove:
	@tools/prove.sh $(ARGS)

mutate: setup
	.venv/bin/python -m tests.proof.mutate

legality: setup
	.venv/bin/python -m tools.legality_page --write

bench-enumeration: setup
	.venv/bin/python -m benchmarks.enumeration $(ARGS)

bench-startup: setup
	.venv/bin/python benchmarks/startup.py $(ARGS)

clean:
	rm -rf .venv* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
