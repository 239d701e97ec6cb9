# Every target works on a machine that has only make, a POSIX shell and python3 (3.11 or newer) with venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# Parallel test processes. More than two gain little: process tests start workers of their own, whose
# sidecars have the lowest priority, and come too late on cores that are shared by many.
JOBS ?= 2
# Rewritten tests and compiled modules are kept, also where an environment says otherwise: every test
# process, and every process of every job, would compile them again.
export PYTHONDONTWRITEBYTECODE :=

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help setup demo check test lint format types pure unit bench chaos gpu oldest hosts slurm ray kubernetes browser monitoring docs reference clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create .venv and install everything into it (instant when done before)
	@:

$(STAMP): pyproject.toml requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "setup: $(PYTHON) is older than 3.11; try make PYTHON=python3.12 setup"; exit 1; }
	@echo "== setup: installing into $(VENV) (the first time takes a minute or more)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -r requirements-dev.txt
	@$(PIP) install --no-build-isolation -c requirements-dev.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup ## run the demonstration
	@$(BIN)/holdfast demo

check: lint types pure ## lint, types and the tests of the pure packages: quick, while one works

# Types are checked beside the tests, which leave a core idle now and then.
test: lint ## everything a change must pass: lint, types, tests
	@nice $(BIN)/mypy --no-error-summary >$(VENV)/.types 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory unit; tests=$$?; \
	echo "== mypy (beside the tests)"; \
	wait $$types || { cat $(VENV)/.types; tests=1; }; \
	exit $$tests

lint: setup ## ruff: rules and format
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --quiet --check . \
	  || { echo "not formatted (make format does it):"; $(BIN)/ruff format --check .; exit 1; }

format: setup ## ruff: fix what can be fixed, and format
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

types: setup ## mypy, strict
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary

PURE := plan schedule planner control detect sim tidy

pure: setup
	@echo "== pytest, pure packages"
	@$(BIN)/pytest -q -n $(JOBS) -m "not chaos and not process and not slow" $(PURE:%=tests/%)

unit: setup ## the tests alone
	@echo "== pytest"
	@$(BIN)/python -m compileall -q src # by one, not by several that begin at the same time
	@$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m "not chaos and not browser and not monitoring and not hosts and not slurm and not ray and not kubernetes" --retry-processes

bench: setup ## quick run of every benchmark; fails when a goal is missed
	@missed=0; found=0; \
	for script in bench/[!_]*.py; do \
	  test -e "$$script" || continue; \
	  found=1; echo "== $$script --quick"; \
	  $(BIN)/python "$$script" --quick || missed=1; \
	done; \
	test $$found = 1 || echo "bench: there are no benchmarks yet"; \
	exit $$missed

# Hosts of tests are namespaces with rules of their own. Where the tools are missing and cannot be
# installed, tests that need them are skipped and say so.
TOOLS = for tool in $(1); do command -v $$tool > /dev/null || missing=1; done; \
  test -z "$$missing" || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null \
  || { echo "== installing $(2)"; apt-get -qq update; apt-get -qq install -y --no-install-recommends $(2) > /dev/null; } || true

chaos: setup ## fault runs with real processes
	@$(call TOOLS,iptables ip,iptables iproute2)
	@echo "== pytest -m chaos"
	@$(BIN)/pytest -q -m chaos; code=$$?; \
	if [ $$code = 5 ]; then echo "chaos: there are no fault runs yet"; code=0; fi; \
	exit $$code

gpu: setup ## the tests and quick benchmarks that need a GPU; says so where there is none
	@if ! $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  echo "gpu: torch finds no GPU here: nothing was run"; exit 0; \
	fi; \
	echo "== pytest -m gpu"; \
	$(BIN)/pytest -q -m gpu; missed=$$?; \
	for script in bench/*gpu*.py; do \
	  echo "== $$script --quick"; \
	  $(BIN)/python "$$script" --quick || missed=1; \
	done; \
	exit $$missed

hosts: setup ## jobs on several hosts, as namespaces of this machine; skipped without root
	@$(call TOOLS,iptables ip etcd,iptables iproute2 etcd-server)
	@echo "== pytest -m hosts"
	@$(BIN)/pytest -q -m hosts

slurm: setup ## jobs under a real Slurm on this machine, installed with apt where root may; skipped elsewhere
	@$(call TOOLS,slurmctld munged,slurm-wlm munge)
	@echo "== pytest -m slurm"
	@$(BIN)/pytest -q -m slurm

OLDEST := .venv-oldest
OLDEST_TESTS := tests/engine tests/snapshot $(addprefix tests/process/test_,equality.py snapshot_copies.py faults.py snapshots.py plan_changes.py)

oldest: $(OLDEST)/.setup-done ## what runs on torch, with the oldest one that is supported, in an environment of its own
	@echo "== pytest, oldest torch"
	@$(OLDEST)/bin/python -m pytest -q -n $(JOBS) --dist worksteal -m "not chaos" $(OLDEST_TESTS)

$(OLDEST)/.setup-done: $(STAMP)
	@echo "== oldest: installing into $(OLDEST) (several GB)"
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@grep -v '^torch==' requirements-dev.txt > $(OLDEST)/others.txt
	@$(OLDEST)/bin/python -m pip -qq --disable-pip-version-check install torch==2.9.1 -r $(OLDEST)/others.txt
	@echo "$(CURDIR)/src" > "$$($(OLDEST)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/holdfast-dev.pth"
	@touch $@

RAY := .venv-ray

ray: $(RAY)/.setup-done ## jobs on a real Ray cluster on this machine, in an environment of its own
	@echo "== pytest -m ray"
	@$(RAY)/bin/python -m pytest -q -m ray

$(RAY)/.setup-done: $(STAMP)
	@echo "== ray: installing into $(RAY)"
	@test -x $(RAY)/bin/python || $(BIN)/python -m venv $(RAY)
	@$(RAY)/bin/python -m pip -qq --disable-pip-version-check install 'ray[default]>=2.40,<3'
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"), "$(CURDIR)/src", sep="\n")' \
	  > "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/holdfast-dev.pth"
	@touch $@

KUBERNETES := .venv-kubernetes

kubernetes: $(KUBERNETES)/.setup-done ## manifests against the schemas of Kubernetes, in an environment of its own
	@echo "== pytest -m kubernetes"
	@$(KUBERNETES)/bin/python -m pytest -q -m kubernetes

$(KUBERNETES)/.setup-done: $(STAMP)
	@echo "== kubernetes: installing schemas into $(KUBERNETES)"
	@test -x $(KUBERNETES)/bin/python || $(BIN)/python -m venv $(KUBERNETES)
	@$(KUBERNETES)/bin/python -m pip -qq --disable-pip-version-check install kubernetes-validate
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"), "$(CURDIR)/src", sep="\n")' \
	  > "$$($(KUBERNETES)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/holdfast-dev.pth"
	@touch $@

browser: setup ## the page of a run in a real chromium; skipped where there is none
	@echo "== pytest -m browser"
	@$(BIN)/pytest -q -m browser

monitoring: setup ## a real Prometheus scrapes a real job, and its alerts fire; skipped where there is none
	@echo "== pytest -m monitoring"
	@$(BIN)/pytest -q -m monitoring

docs: $(VENV)/.docs-done ## build the documentation into site/; no network is used
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "== docs: open site/index.html"

$(VENV)/.docs-done: requirements-docs.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -r requirements-docs.txt
	@touch $@

reference: setup ## make the pages below docs/reference from the code
	@$(BIN)/python docs/generate.py

clean: ## remove .venv, caches and build outputs
	@rm -rf $(VENV) .venv-peers $(OLDEST) $(RAY) $(KUBERNETES) build dist site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
