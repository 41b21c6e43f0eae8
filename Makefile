# make serve   bring a graph up and wait for requests; Ctrl-C stops it
# make test    lint, types and tests
# make test-dynamo   the tests of what meets Dynamo, with all whole graphs and the dashboard, on the newest version it
#                    works with, in a .venv-dynamo-VERSION of its own
# make soak    load without a pause, storms over full caches, and rarer graphs, for half an hour; then a million
#              simulated schedules
# make chaos   whole graphs under load for 20 minutes, while processes are killed and disks, descriptors and memory fail
# make fuzz    5,000 drawn requests and 100,000 damaged messages against a running graph; ARGS="--seed 1" repeats one
#
# Each first installs what it needs into .venv; that takes minutes once and nothing afterwards.
#
#   GRAPH=agg_wavepp            another graph
#   ARGS="--PrefillWorker.pp=3" more arguments for dynamo serve (make serve), pytest (make test) or the campaign
#                               (make chaos, such as "--seed 7 --minutes 5 --graph tiers", or "--calm" without faults)
#   DYNAMO=1.6.1                the version of make test-dynamo
#   PYTHON=python3.12           the interpreter .venv is made with, 3.10 or newer
#   PIP_ARGS="..."              more arguments for pip install, such as an index with another build of torch

PYTHON ?= python3
GRAPH ?= disagg_wavepp
ARGS ?=
DYNAMO ?= 1.6.1
PIP_ARGS ?=

BIN := .venv/bin
# Tests wait for other processes half of their time. Files keep their order, so that the long ones come early.
THREE_AT_A_TIME := -n 3 --no-loadscope-reorder
COMPILED := setup.py $(wildcard components/wavepp_worker/model/cpu/kernels/*)
PIP := python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
INSTALL := $(BIN)/$(PIP)
OTHER := .venv-dynamo-$(DYNAMO)

.PHONY: serve test test-dynamo soak chaos fuzz clean

serve: .venv/.serve
	$(BIN)/dynamo serve graphs:$(GRAPH) -f configs/$(GRAPH).yaml $(ARGS)

test: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	timeout --kill-after=30 1800 $(BIN)/python -m pytest -m "not soak" $(THREE_AT_A_TIME) $(ARGS)

test-dynamo: $(OTHER)/.test
	timeout --kill-after=30 1800 $(OTHER)/bin/python -m pytest -m "not soak or e2e" $(THREE_AT_A_TIME) \
		tests/dynamo tests/e2e tests/serve/test_dynamo_planes.py tests/test_dashboard.py $(ARGS)

soak: .venv/.test
	$(BIN)/python -m pytest -m soak $(ARGS)
	$(BIN)/python -m tests.simulator --seeds 1000000

chaos: .venv/.test
	$(BIN)/python -m tests.chaos $(ARGS)

fuzz: .venv/.test
	$(BIN)/python -m tests.fuzz $(ARGS)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "error: PYTHON=$(PYTHON) is older than 3.10; give a newer one" >&2; exit 1; }
	@$(PYTHON) -m venv .venv \
		|| { echo "error: $(PYTHON) -m venv failed; on Debian, apt install python3-venv" >&2; exit 1; }

.venv/.serve: pyproject.toml constraints.txt $(COMPILED) | .venv/bin/python
	@echo "installing into .venv, once; it takes minutes, without a word: some hundred MB with a CPU build of torch, which" \
		"PIP_ARGS can ask an index for, and several GB with the usual one"
	$(INSTALL) -e '.[demo,nats]'
	@touch $@

# NIXL without its dependencies: those are both of its builds for CUDA, of which the tests need one.
.venv/.test: .venv/.serve
	$(INSTALL) -e '.[demo,dev,nats]'
	$(INSTALL) --no-deps nixl nixl-cu12
	@touch $@

# That version takes the place of the usual one without what it asks for, part of which PyPI does not have as a whole:
# nothing here imports aisimulate, and the certifi of the constraints will do.
$(OTHER)/.test: pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/$(PIP) -e '.[demo,dev,nats]'
	$(OTHER)/bin/$(PIP) 'redis>=6.2,<9' 'zstandard>=0.23,<1'
	$(OTHER)/bin/$(PIP) --no-deps nixl nixl-cu12
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) \
		ai-dynamo==$(DYNAMO) ai-dynamo-runtime==$(DYNAMO)
	@touch $@

clean:
	rm -rf .venv .venv-dynamo-*
