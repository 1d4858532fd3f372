# Everything a developer or CI does. First use of any target makes .venv and installs the package.
#
#   make demo    a short rendered drive through the real daemon and the real bus
#   make test    all tests            make check   formatting, lint, types, layers
#   make bench   speed of the example models on this machine

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
BUILD := build
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

# PoCL links the kernels it compiles; where the machine has no linker, the one inside ziglang serves.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "modeld needs Python 3.11 or newer; none found in PATH" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@command -v ld >/dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[linker]'
	@touch $@

demo: $(STAMP)
	$(BIN)/modeld demo --directory $(BUILD)/demo

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(BUILD)/models/vision.onnx: $(STAMP)
	$(BIN)/modeld make-model $(BUILD)/models

$(BUILD)/driving.pkl: $(BUILD)/models/vision.onnx
	$(BIN)/modeld compile $(BUILD)/models/vision.onnx $(BUILD)/models/policy.onnx -o $@

bench: $(BUILD)/driving.pkl
	$(BIN)/modeld bench $(BUILD)/driving.pkl

clean:
	rm -rf $(BUILD) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
