# Everything a developer or CI does. First use of any target makes .venv and installs the package.
#
#   make demo    the trained model drives a simulated car through the real daemon and bus
#   make test    the quick tests of every part: five minutes on two cores
#   make check   formatting, lint, types, import layers, wording of the documents
#   make test-changed  the tests that depend on changes since SINCE=HEAD; --list only lists them
#   make test-all      every test: the quick ones, then each stage below
#   make test-slow     the tests that the quick run leaves out
#   make test-times    where the quick tests spend their time, by cause and by file
#   make mutants       plants 120 small faults in the code and reports the share that tests catch
#   make test-conditions  tests under forced conditions: other processors, one core, odd paths ...
#   make regress outputs and launches of the example models on two drives, against tests/regression
#   make regress-drives  how the trained model drives, in metres, against tests/regression/driving.json
#   make regress-half    the trained model in fp16: effect on outputs and drives, in metres
#   make onnx    ONNX's own test suite, compiled and run on the OpenCL device
#   make fuzz    20 000 random programs on the device; FUZZ_ARGS='onnx --seconds 3600 --seed 7'
#   make test-logs  10 000 damaged logs, and 50 log writers that are killed
#   make test-pages  HTML pages in headless Chromium and rerun recordings, if both are installed
#   make test-interfaces  each revision of the driving models against a second, independent loop
#   make drives  all closed-loop guarantees of the driving model, into build/drives
#   make train   train the driving model on rendered worlds; TRAIN_ARGS='--minutes 20 --seed 1'
#   make compare-trainings  check that two trained models, A=DIR B=DIR, perform alike
#   make test-train  the tests of the training that need torch
#   make soak    a daemon under random faults for SOAK_SECONDS, seeded by SOAK_SEED
#   make test-drivers    a reduced suite under each other OpenCL driver that is installed
#   make test-gpu    all tests and measurements for a real GPU, in 8 minutes, into build/gpu/report.md
#   make gpu-kit     a folder for a machine with a GPU and no network: build/gpu-kit
#   make test-aarch64  driver, artifacts, tests and daemon on aarch64, through qemu; --quick is shorter
#   make test-python  the quick tests under Debian 13's Python, 3.13
#   make adreno  compile all kernels with a real Adreno compiler; compare with tests/adreno/*.json
#   make adreno-tools  fetch that compiler only
#   make test-deploy  docs/deploy.md and docs/beside-openpilot.md in a bare Debian with systemd
#   make bench   speed of the example models and of other runtimes, into benchmarks/results/
#   make bench-adreno  our kernels and tinygrad's, both compiled by Mesa for an Adreno 630
#   make setup   only .venv           make format  format the code, fix what can be fixed
#   make map     write docs/map.md and docs/adr/README.md from docstrings and titles
#   make site    build the documents as a site in build/site
#   make screenshots  take README's pictures with Chromium, into docs/screenshots
#   make clean   remove build/ and the tools' caches; make help: this list

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
BENCH_STAMP := .venv/.bench-installed
IR3_STAMP := .venv/.ir3-installed
TRAIN_STAMP := .venv/.train-installed
ADRENO_STAMP := .venv/.adreno-installed
BUILD := build
PYTEST_ARGS ?=
CONDITIONS_ARGS ?=
TEST_WORKERS ?= 2
BENCH_ARGS ?=
BENCH_ADRENO_ARGS ?=

# Of `make test-changed`: the commit to compare with, `--list`, and after `--` options of pytest.
SINCE ?= HEAD
CHANGED_ARGS ?=

# Of `make test-times`: which tests; of `make mutants`: how many, from which seed, and more.
TIMES_ARGS ?= -m 'not slow'
MUTANTS_ARGS ?= --count 120 --seed 1

# 1 of SAMPLE slow tests, conditions, ... where a stage takes a sample; CI does, with the commit as
# the seed, so that different ones run every time. `make test-all` runs all of them.
SAMPLE ?= 1
SAMPLE_SEED ?= $(shell git rev-parse HEAD 2>/dev/null || echo 1)
SAMPLED := --sample $(SAMPLE) --sample-seed $(SAMPLE_SEED)

# Of `make onnx`: processes, each with an OpenCL context of its own, and more options of pytest.
ONNX_WORKERS ?= 2
ONNX_ARGS ?=

# Of `make fuzz`: kinds of programs, how many, for how long; `python -m tests.fuzz --help`.
FUZZ_ARGS ?=

# Of `make test-drivers`: names of drivers, and after `--` more options of pytest.
DRIVERS_ARGS ?=

# Of `make test-gpu`: --target gpu --device cpu tries a GPU's row on a CPU; of `make gpu-kit`:
# --python 3.12 --architecture aarch64.
GPU_ARGS ?=
GPU_KIT_ARGS ?=
# Of `make adreno`: names of golden figures, --gpus 630 660 740, --update --reason TEXT.
ADRENO_ARGS ?=

# Of `make test-deploy`.
DEPLOY_ARGS ?=

# Of `make test-aarch64`: names of stages, --quick, --list.
AARCH64_ARGS ?=

# Of `make soak`: for how long, which faults and how many; SOAK_ARGS=--undisturbed has none.
SOAK_SECONDS ?= 300
SOAK_SEED ?= 1
SOAK_FAULTS_PER_MINUTE ?= 7
SOAK_ARGS ?=

# Of `make train` and `make test-train`: options of `modeld train`, the training's directory, and
# which build of torch; the index's own one may be for graphics cards, and ten times as large:
# TORCH='torch==2.13.0+cpu'.
TRAIN_ARGS ?=
TRAIN_DIR ?= $(BUILD)/training
TORCH ?= torch

# Of `make drives`: what is driven with the daemon process, and how much by processes beside each
# other; DRIVES_ARGS names runs: 'recovery stopping-lead', 'roads --rate-hz 10'.
DRIVES_MODELS ?= tools/models
DRIVES_ROADS ?= 20
DRIVES_KM ?= 2
DRIVES_RECOVERIES ?= 200
DRIVES_LEADS ?= 100
DRIVES_FAULT_ROADS ?= 3
DRIVES_WORKERS ?= 2
DRIVES_ARGS ?=

# Of `make regress`: the timing gate (its references hold for one processor only), more options.
REGRESS_TIMING ?= --no-timing
REGRESS_ARGS ?=

# The tests start hundreds of interpreters: bytecode is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all test-changed test-times mutants test-conditions regress onnx test-logs test-pages test-drivers test-gpu gpu-kit test-interfaces test-aarch64 test-python test-deploy test-train train compare-trainings drives regress-drives regress-half soak fuzz check format map site screenshots bench bench-adreno adreno adreno-tools clean
.PHONY: regress-program drives-program test-slow-alone test-slow-others

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

# Two passes: most tests on TEST_WORKERS processes, then those that must run alone. PYTEST_ARGS may
# choose none of a pass, which pytest ends with 5.
test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile -m 'not slow and not alone' $(PYTEST_ARGS) || \
		test $$? -eq $(if $(PYTEST_ARGS),5,0)
	$(BIN)/python -m pytest -m 'not slow and alone' $(PYTEST_ARGS) || \
		test $$? -eq $(if $(PYTEST_ARGS),5,0)

# Those that run alone mostly wait, so the others run beside them, on one process that gives way.
# The interfaces frame by frame are a stage of their own.
test-slow: $(STAMP)
	$(MAKE) --no-print-directory -j2 --output-sync=target test-slow-alone test-slow-others

test-slow-alone: $(STAMP)
	$(BIN)/python -m pytest -q -m 'slow and alone' $(SAMPLED) $(PYTEST_ARGS) || test $$? -eq $(if $(PYTEST_ARGS),5,0)

test-slow-others: $(STAMP)
	nice $(BIN)/python -m pytest -q -m 'slow and not alone' --ignore tests/reference_loop $(SAMPLED) \
		$(PYTEST_ARGS) || \
		test $$? -eq $(if $(PYTEST_ARGS),5,0)

test-changed: $(STAMP)
	$(BIN)/python -m tests.changed --since $(SINCE) $(CHANGED_ARGS)

test-times: $(STAMP)
	rm -rf $(BUILD)/times
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile -p tests.times.plugin \
		--times $(BUILD)/times $(TIMES_ARGS)
	$(BIN)/python -m tests.times $(BUILD)/times

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

# Each stage can be run by itself; what one needs beside Python packages it names and leaves out.
STAGES := test-slow test-interfaces test-conditions regress regress-drives onnx test-logs soak \
	test-train test-pages test-drivers adreno test-aarch64 test-python test-deploy
test-all: test $(STAGES)

# CONDITIONS_ARGS: names of conditions, --full, --list.
test-conditions: $(STAMP)
	$(BIN)/python -m tests.conditions $(SAMPLED) $(CONDITIONS_ARGS)

# Both take root, and apt with a mirror of Debian; what they fetch stays in build/debian.
test-aarch64: $(ADRENO_STAMP)
	$(BIN)/python -m tests.debian aarch64 $(AARCH64_ARGS)

test-python: $(STAMP)
	$(BIN)/python -m tests.debian python

# DEPLOY_ARGS: --root DIRECTORY is a bare Debian to copy, --harness does without systemd.
test-deploy: regress-program
	$(BIN)/python -m tests.deploy --model $(BUILD)/regress/driving.pkl $(DEPLOY_ARGS)

# One row of target figures and no measured tables, whatever this machine is: the same kernels and
# launches everywhere.
regress-program: $(STAMP)
	$(BIN)/modeld make-model $(BUILD)/regress/models
	TUNED=0 $(BIN)/modeld compile $(BUILD)/regress/models/vision.onnx $(BUILD)/regress/models/policy.onnx \
		-o $(BUILD)/regress/driving.pkl --target cpu

# A rendered drive with a lane change and a lost frame, and recorded footage where it lies beside the
# checkout.
regress: regress-program
	rm -rf $(BUILD)/regress/drives
	$(BIN)/modeld make-drive $(BUILD)/regress/drives --seconds 8 --seed 1 --drop 130
	$(BIN)/modeld regress --model $(BUILD)/regress/driving.pkl \
		--drives $(BUILD)/regress/drives/* $(wildcard ../shared/data/dashcam/solidWhiteRight.mp4) \
		--reference tests/regression --report $(BUILD)/regress/report.html \
		$(REGRESS_TIMING) $(REGRESS_ARGS)
	rm -rf $(BUILD)/regress/strict
	$(BIN)/modeld make-drive $(BUILD)/regress/strict --seconds 1 --seed 1
	TUNED=0 $(BIN)/modeld compile $(BUILD)/regress/models/vision.onnx $(BUILD)/regress/models/policy.onnx \
		-o $(BUILD)/regress/strict.pkl --numerics strict
	$(BIN)/modeld regress --model $(BUILD)/regress/strict.pkl --drives $(BUILD)/regress/strict/* \
		--reference tests/regression --no-timing $(REGRESS_ARGS)

# The trained model, for a row of target figures as above.
drives-program: $(STAMP)
	@mkdir -p $(BUILD)/drives
	TUNED=0 $(BIN)/modeld compile $(DRIVES_MODELS)/vision.onnx $(DRIVES_MODELS)/policy.onnx \
		-o $(BUILD)/drives/driving.pkl --target cpu

# More than an hour on two cores: the roads alone are 40 km, by the clock. The report is
# build/drives/report.html, the tables for documents are in table.md beside it, and what came of each
# drive is there as soon as it is over.
drives: drives-program
	$(BIN)/python -m tests.acceptance --model $(BUILD)/drives/driving.pkl --directory $(BUILD)/drives \
		--roads $(DRIVES_ROADS) --km $(DRIVES_KM) --recoveries $(DRIVES_RECOVERIES) \
		--leads $(DRIVES_LEADS) --fault-roads $(DRIVES_FAULT_ROADS) --workers $(DRIVES_WORKERS) \
		$(DRIVES_ARGS)

# How the trained model drives, against how it drove: two kinds of drives, two of each. Another
# program of the same model is judged so with DRIVES_MODEL=fp16.pkl; what is accepted is copied to
# tests/regression/driving.json. A drive that is not clean is compared like any other.
DRIVES_MODEL ?= $(BUILD)/drives/driving.pkl
regress-drives: drives-program
	$(BIN)/modeld drive --model $(DRIVES_MODEL) --scenario lane-keeping stopping-lead --seed 100 \
		--drives 2 --km 0.3 --workers $(DRIVES_WORKERS) --gate 'completed_share >= 0' \
		--report $(BUILD)/drives/regress.html --json > $(BUILD)/drives/regress.json
	$(BIN)/modeld compare tests/regression/driving.json $(BUILD)/drives/regress.json --gates-only \
		--gates tests/regression/driving.gates

# The trained model in fp16 beside itself in fp32: frame by frame on a rendered drive, then driving.
regress-half: drives-program
	rm -rf $(BUILD)/drives/fp16
	$(BIN)/modeld make-drive $(BUILD)/drives/fp16 --seconds 20 --seed 1
	TUNED=0 $(BIN)/modeld compile $(DRIVES_MODELS)/vision.onnx $(DRIVES_MODELS)/policy.onnx \
		-o $(BUILD)/drives/fp16.pkl --target cpu --precision fp16
	$(BIN)/modeld regress --model $(BUILD)/drives/driving.pkl --drives $(BUILD)/drives/fp16/* \
		--reference $(BUILD)/drives/fp32 --no-timing --update --reason "fp32"
	$(BIN)/modeld regress --model $(BUILD)/drives/fp16.pkl --drives $(BUILD)/drives/fp16/* \
		--reference $(BUILD)/drives/fp32 --no-timing --gates-only --gates tests/regression/trained.gates
	$(MAKE) regress-drives DRIVES_MODEL=$(BUILD)/drives/fp16.pkl

onnx: $(STAMP)
	$(BIN)/python -m pytest tests/onnx_suite -n $(ONNX_WORKERS) --onnx-figures \
		--onnx-failures $(BUILD)/onnx-failures.txt -q -r fE $(ONNX_ARGS)

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

test-logs: $(STAMP)
	$(BIN)/python -m tests.logs mutations --count 10000
	$(BIN)/python -m tests.logs kills --count 50

test-pages: $(STAMP)
	$(BIN)/python -m pytest tests/tools/views/test_pages_in_a_browser.py tests/tools/views/test_rerun_file.py \
		tests/tools/live/test_view_in_a_browser.py

# The report is in build/soak.md, whatever comes of it.
soak: $(STAMP)
	$(BIN)/python -m tests.soak --seconds $(SOAK_SECONDS) --seed $(SOAK_SEED) \
		--faults-per-minute $(SOAK_FAULTS_PER_MINUTE) --report $(BUILD)/soak.md $(SOAK_ARGS)

# 221 frames of an example of each revision, and planted faults.
test-interfaces: $(STAMP)
	$(BIN)/python -m pytest tests/reference_loop -n $(TEST_WORKERS) -m slow $(SAMPLED)

# Only training needs torch, so only these targets install it.
$(TRAIN_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)' -e '.[train]'
	@touch $@

train: $(TRAIN_STAMP)
	$(BIN)/modeld train $(TRAIN_DIR) $(TRAIN_ARGS)

# Two trained models: errors on held-out worlds as their trainings found them, then four drives with
# each, as those of regress-drives.
A ?=
B ?=
compare-trainings: $(STAMP)
	@test -n "$(A)" && test -n "$(B)" || { echo "compare-trainings: expected two trained models, \
	found A='$(A)' B='$(B)'; name the folders of both: make compare-trainings A=tools/models \
	B=$(BUILD)/training/model" >&2; exit 2; }
	set -e; mkdir -p $(BUILD)/trainings; for which in "a $(A)" "b $(B)"; do \
		to="$(BUILD)/trainings/$${which%% *}"; model="$${which#* }"; \
		TUNED=0 $(BIN)/modeld compile "$$model/vision.onnx" "$$model/policy.onnx" \
			-o "$$to.pkl" --target cpu; \
		$(BIN)/modeld drive --model "$$to.pkl" --scenario lane-keeping stopping-lead \
			--seed 100 --drives 8 --km 0.3 --workers $(DRIVES_WORKERS) \
			--gate 'completed_share >= 0' --json > "$$to.json"; \
	done
	failed=0; \
	$(BIN)/modeld compare "$(A)/figures.json" "$(B)/figures.json" --gates-only \
		--gates tests/regression/trainings.gates || failed=1; \
	$(BIN)/modeld compare $(BUILD)/trainings/a.json $(BUILD)/trainings/b.json --gates-only \
		--gates tests/regression/trainings-drives.gates || failed=1; \
	exit $$failed

test-train: $(TRAIN_STAMP)
	$(BIN)/python -m pytest tests/tools/training/with_torch $(PYTEST_ARGS)

test-drivers: $(STAMP)
	$(BIN)/python tests/drivers/run.py $(DRIVERS_ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m tests.gpu --output $(BUILD)/gpu $(GPU_ARGS)

gpu-kit: $(STAMP)
	$(BIN)/python -m tests.gpu.kit --directory $(BUILD)/gpu-kit $(GPU_KIT_ARGS)

# ziglang builds a program for arm64.
$(ADRENO_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[linker]' || \
		echo "the linker extra cannot be installed here" >&2
	@touch $@

adreno-tools: $(ADRENO_STAMP)
	$(BIN)/python -m tools.adreno.toolchain

# Where the compiler cannot be fetched, one line says why, and there is nothing to compare. Tests
# have a cache of their own, so they are told where it is.
adreno: $(ADRENO_STAMP)
	$(BIN)/python -m tests.adreno $(ADRENO_ARGS)
	MODELD_ADRENO_DIR="$$($(BIN)/python -m tools.adreno.toolchain --where)" \
		$(BIN)/python -m pytest -q tests/tools/adreno/with_compiler $(PYTEST_ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/make_map.py --check
	$(BIN)/python docs/prose.py
	$(BIN)/mkdocs build --strict --quiet

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# After a module was added, renamed, or has another first line.
map: $(STAMP)
	$(BIN)/python docs/make_map.py

screenshots: $(STAMP)
	PYTHONPATH=. $(BIN)/python docs/make_screenshots.py

site: $(STAMP)
	$(BIN)/mkdocs build --strict

# Where the peers cannot be installed, those that are there are compared with.
$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]' || \
		echo "some peers are not installed; comparing with the others" >&2
	@touch $@

$(BUILD)/bench-models/.made: $(STAMP) $(wildcard tools/example_models/*.py)
	$(BIN)/modeld make-model $(BUILD)/bench-models --benchmarks
	@touch $@

bench: $(BENCH_STAMP) $(BUILD)/bench-models/.made
	$(BIN)/python -m benchmarks.narrow_models $(BUILD)/bench-models
	$(BIN)/python -m benchmarks.all_models $(BUILD)/bench-models $(BENCH_ARGS)

# tinygrad's kernels need no device either: its compiler is Mesa's, in a package of PyPI.
$(IR3_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ir3]'
	@touch $@

bench-adreno: $(IR3_STAMP) $(BUILD)/bench-models/.made adreno-tools
	$(BIN)/modeld make-model $(BUILD)/bench-models/supercombo-2026 --interface supercombo-2026
	$(BIN)/python -m benchmarks.adreno_peers $(BUILD)/bench-models/vision.onnx \
		$(BUILD)/bench-models/policy.onnx $(BUILD)/bench-models/supercombo-2026/supercombo.onnx \
		tools/models/vision.onnx tools/models/policy.onnx $(BENCH_ADRENO_ARGS)

clean:
	rm -rf $(BUILD) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
