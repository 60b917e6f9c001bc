# The front door. `make` lists the targets.
PYTHON ?= python3.11
airflow_python = $(shell $(PYTHON) -m local.install --python airflow)
gpu_python = $(shell $(PYTHON) -m local.install --python gpu)
airflow_bin = $(dir $(airflow_python))

.DEFAULT_GOAL := help
.PHONY: help install install-test demo demo-stop demo-clean status env check test test-fast test-sglang
.PHONY: bench-tokens bench-text bench-shard

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install:  ## make the environments and the small model in the cache folder (EAGLE3_CACHE)
	@$(PYTHON) -m local.install

install-test:
	@$(PYTHON) -m local.install apt browser airflow gpu vllm sglang model tokenizers

demo: install  ## start Airflow, vLLM and a loopback GPU host, and run the Dag `demo` (KEEP=0: stop afterwards)
	@$(airflow_python) -m local.demo

demo-stop:  ## stop what the demo has left running
	@$(PYTHON) -m local.services stop

demo-clean:  ## stop it, and remove what it has written
	@$(PYTHON) -m local.services wipe

status:  ## say what runs
	@$(PYTHON) -m local.services status

env:  ## print the demo's environment for a shell: eval "$$(make -s env)"
	@$(PYTHON) -m local.services env

check:  ## formatter, linter, types and the direction of imports
	$(airflow_bin)ruff format --check .
	$(airflow_bin)ruff check .
	$(airflow_bin)mypy include local benchmarks
	$(dir $(gpu_python))mypy eagle3
	$(airflow_bin)lint-imports

test: install-test check  ## everything: real engines, sshd, Airflow and browser
	@$(PYTHON) -m local.run_tests

bench-tokens:  ## rendering, reconstruction and audit against the peers (PEERS_DIR: what their setup script made)
	@$(airflow_python) -m benchmarks.tokens

bench-text:  ## ids put together from text against the ids of a real vLLM; 20 minutes on two cores
	@$(PYTHON) -m local.install airflow gpu vllm model
	@$(airflow_python) -m benchmarks.text_capture

bench-shard:  ## 100,000 samples of 2,000 tokens through reconstruct and audit; 1.5 GB of temporary files, 10 minutes
	@$(airflow_python) -m benchmarks.shard

test-fast:  ## what needs no engine, no browser and no Airflow
	@$(PYTHON) -m local.run_tests --fast

test-sglang:  ## only what runs on a real SGLang server on the CPU
	@$(PYTHON) -m local.install airflow sglang model
	@$(PYTHON) -m local.run_tests --sglang
