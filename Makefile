# Every target works on a fresh clone and prepares what it needs. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Tools that tests build live outside the repository and survive `make clean`.
export PATH := $(PATH):/usr/sbin:/sbin:/usr/local/go/bin
export CALICO_IPAM_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/calico-ipam
CNITOOL_VERSION := v1.3.0
CNITOOL := $(CALICO_IPAM_CACHE)/cnitool-$(CNITOOL_VERSION)/cnitool
CRICTL_VERSION := v1.34.0
CRICTL := $(CALICO_IPAM_CACHE)/crictl-$(CRICTL_VERSION)/crictl

# Folders of tests/ that `make test` runs. Benchmarks (scale) are `make bench`.
SUITE ?= unit property golden replay integration netns e2e
# Processes that run tests side by side; each test has a host and names of its own (tests/conftest.py).
JOBS ?= $(shell nproc)
# More arguments for pytest: make test SUITE=unit ARGS="-k selector"
ARGS ?=

.PHONY: help demo test lint format bench clean venv cnitool crictl kube-apiserver

help:
	@echo 'make demo                     wire two network namespaces with our plugins and ping across (root)'
	@echo 'make test                     every test but the benchmarks (root for netns, e2e; else these skip)'
	@echo 'make test SUITE="unit golden" only these folders of tests/'
	@echo 'make lint                     format, lint rules, strict types, import contracts'
	@echo 'make format                   rewrite the sources as `make lint` wants them'
	@echo 'make bench                    the figures of README.md, measured here (root)'
	@echo 'make clean                    remove what these targets made in this folder'

venv: $(INSTALLED)

# An editable install: only a change of pyproject.toml (dependencies, scripts) asks for another one. Two `make`s at
# once wait for each other.
$(INSTALLED): pyproject.toml
	@scripts/prerequisites --python $(PYTHON) build
	@mkdir -p $(VENV)
	@exec 9>$(VENV)/.lock; flock 9; \
	if [[ ! -e $@ || pyproject.toml -nt $@ ]]; then \
	    echo 'installing into $(VENV)'; \
	    $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV); \
	    scripts/again $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; \
	    touch $@; \
	fi

demo: venv
	@$(BIN)/python scripts/demo.py

test: venv cnitool crictl kube-apiserver
	@scripts/prerequisites test || true
	$(BIN)/pytest --numprocesses=$(JOBS) --dist=worksteal $(ARGS) $(addprefix tests/,$(SUITE))

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

bench: venv kube-apiserver
	@scripts/prerequisites bench
	@$(BIN)/python -m tests.scale.bench
	@$(BIN)/python -m tests.scale.etcd_bench
	@$(BIN)/python -m tests.scale.kube_bench
	@$(BIN)/python -m tests.scale.pod_bench
	@$(BIN)/python -m tests.scale.ctl_bench
	@$(BIN)/python -m tests.scale.gc_growth
	@$(BIN)/python -m tests.scale.gc_scale --minutes 0.5 --leaks 10000 --grace 20s
	@$(BIN)/python -m tests.scale.gc_kube

# cnitool, CNI's reference runtime, drives our plugins in tests/e2e. Without Go those tests skip and say so.
cnitool:
	@if [[ ! -x $(CNITOOL) ]] && command -v go >/dev/null; then \
	    scripts/build-tool $(CNITOOL) github.com/containernetworking/cni/cnitool@$(CNITOOL_VERSION) \
	        || echo 'cnitool could not be built; its tests will skip'; \
	fi

# crictl does the kubelet's part in tests/e2e: pod sandboxes of containerd. Built once, about two minutes.
crictl:
ifneq (,$(filter e2e,$(SUITE)))
	@if [[ ! -x $(CRICTL) ]] && command -v go >/dev/null; then \
	    scripts/build-tool $(CRICTL) sigs.k8s.io/cri-tools/cmd/crictl@$(CRICTL_VERSION) \
	        || echo 'crictl could not be built; its tests will skip'; \
	fi
endif

# A real API server for the Kubernetes datastore's tests: built once, about six minutes. Only for suites that use it.
kube-apiserver:
ifneq (,$(filter integration golden e2e,$(SUITE)))
	@if [[ -z $${KUBEBUILDER_ASSETS:-} ]] && command -v go >/dev/null; then \
	    scripts/build-kube-apiserver >/dev/null || echo 'kube-apiserver could not be built; its tests will skip'; \
	fi
endif

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
