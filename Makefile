# The two commands of the README: everything else is `python train.py ...` inside .venv.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.PHONY: train test lint lock

train: .venv/installed
	$(BIN)/python train.py $(ARGS)

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# Made again only when the lock or the package's own declaration changes.
.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Lockstep needs Python 3.11 or later: make PYTHON=python3.11 ...')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# Resolves pyproject.toml anew for every platform, with hashes and without naming an index. Needs uv.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --extra dev --no-header --quiet \
		--upgrade pyproject.toml -o requirements.lock
