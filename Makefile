# The commands of the README: everything else is `python train.py ...` inside .venv.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# Importing torch and Lightning takes more than twice as long from sources, which are installed without bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test test-all parity gpu lint reference docs lock

train: .venv/installed
	$(BIN)/python train.py $(ARGS)

test: lint
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" $(ARGS)

# The slow ones too, as CI does; four at a time on two cores: some of them wait. What fails (pytest's exit code 1) beside three others
# runs once more, alone, and must pass then; both reports are printed.
test-all: lint
	$(BIN)/python -m pytest -n 4 --dist worksteal --durations=30 $(ARGS) || { test $$? = 1 && $(BIN)/python -m pytest --last-failed $(ARGS); }

# Two processes against one, every shipped model on small data. ResNets are slow in float64: a few steps show it.
TINY := datamodule=synthetic_images datamodule.length=64 datamodule.val_length=20 datamodule.test_length=20 datamodule.shape=[3,8,8] datamodule.batch_size=8
PARITY := $(BIN)/lockstep parity trainer=cpu trainer.devices=2
parity: .venv/installed
	$(PARITY) model=linear datamodule=random_regression optimized_metric=val/loss optimized_mode=min $(ARGS)
	$(PARITY) model=mlp model.net.dropout=0.2 datamodule.drop_last=false $(ARGS)
	$(PARITY) model=cnn datamodule.drop_last=false parity.steps=25 $(ARGS)
	$(PARITY) model=resnet18 $(TINY) parity.steps=3 $(ARGS)
	$(PARITY) model=resnet50 $(TINY) parity.steps=2 $(ARGS)

# What only a GPU can show.
gpu: .venv/installed
	$(BIN)/python -m pytest -n 4 tests/gpu $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# The page of every key, from conf/.
reference: .venv/installed
	$(BIN)/python docs/make_reference.py

# The documentation as a site, in site/; a link that leads nowhere is an error.
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo site/index.html

.venv-docs/installed: docs/requirements.lock
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	touch $@

# Made again only when the lock or the package's own declaration changes. uv unpacks several packages at once, in a third of pip's
# time; pip does it where its settings name an index, of which uv knows nothing, and where there is no uv.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
.venv/installed: requirements.lock pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Lockstep needs Python 3.11 or later: make PYTHON=python3.11 ...')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	sed -n '/^uv==/,/# via/p' requirements.lock > .venv/uv.lock
	sed '/^uv==/,/# via/d' requirements.lock > .venv/others.lock
	if ! $(BIN)/python -m pip config list | grep -q '\.index-url=' && $(PIP) --require-hashes -r .venv/uv.lock \
		&& $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r .venv/others.lock; \
	then :; else $(PIP) --no-compile --require-hashes -r .venv/others.lock; fi
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# Resolves pyproject.toml anew for every platform, with hashes and without naming an index. Needs uv, which `make train` installs.
lock:
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --extra dev --no-header --quiet \
		--upgrade pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet \
		--upgrade docs/requirements.in -o docs/requirements.lock
