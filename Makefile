# Every target installs what it needs first; `make` alone prints this help.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
UV := .uv/bin/uv
MEMBERS := shared services/rest services/launcher services/scheduler services/runtime-agent services/alerting cli
PACKAGES := muster rest launcher scheduler runtime_agent alerting cli
KAFKA_NEEDS := $(if $(filter apache,$(KAFKA)),kafka)
# Many images set PYTHONDONTWRITEBYTECODE; without bytecode every start compiles every library anew.
unexport PYTHONDONTWRITEBYTECODE
# The system knows the authority of a company's proxy; uv by itself knows the public ones only.
export UV_SYSTEM_CERTS ?= $(if $(wildcard /etc/ssl/certs/*),true,false)

help: ## Print this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

install: .venv/.installed-dev ## Install uv, the workspace and the development tools into this folder

.uv/.installed: Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Muster needs Python 3.11 or newer: make PYTHON=python3.11")'
	@test -x .uv/bin/pip || $(PYTHON) -m venv --clear .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	@touch $@

.venv/.installed: .uv/.installed requirements.lock pyproject.toml $(MEMBERS:%=%/pyproject.toml)
	@echo "Installing what running needs into .venv (once)"
	@test -x $(BIN)/python || $(UV) venv --quiet --python .uv/bin/python .venv
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps $(MEMBERS:%=-e %)
	@touch $@

.venv/.installed-dev: .venv/.installed requirements-dev.lock
	@echo "Installing the development tools into .venv (once)"
	@$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements-dev.lock
	@touch $@

EXPORT := $(UV) export --quiet --no-emit-workspace --no-header --no-annotate --format requirements-txt

lock: .uv/.installed ## Resolve the dependencies anew into requirements.lock and requirements-dev.lock
	$(EXPORT) --no-default-groups --group examples -o requirements.lock
	$(EXPORT) --only-group dev -o requirements-dev.lock

check: fmt-check lint types contracts deps generated words ## Format, lint, types, architecture, dependencies, generated files, words

fmt: install ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

fmt-check: install
	$(BIN)/ruff format --check --quiet .

lint: install ## Lint
	$(BIN)/ruff check --quiet .

types: install ## Check types, strictly
	$(BIN)/mypy

contracts: install ## Check the architecture
	$(BIN)/lint-imports --no-logo | tail -n 20

deps: install ## Check that each member declares what it imports
	@for member in $(MEMBERS); do (cd $$member && $(CURDIR)/$(BIN)/deptry --no-ansi src) || exit 1; done

generated: install ## Check that generated files are up to date and break no old reader
	$(BIN)/python -m documents.publish --check

words: install ## Check that pages, published texts and commit subjects keep plain words
	$(BIN)/python -m documents.words

generate: install ## Write schemas, AsyncAPI and OpenAPI documents, the settings page, dashboards and alert rules
	$(BIN)/python -m documents.publish

test: install ## Run every test that needs neither Java nor Kubernetes
	$(BIN)/pytest -n 4 --dist loadgroup -m "not apache and not k8s and not kubelet and not installation and not prometheus and not chaos"

test-deep: install ## Run 10,000 random histories of the core beside its slow oracle, and more of others (HISTORIES=…)
	HISTORIES=$(or $(HISTORIES),10000) $(BIN)/pytest -n $(or $(JOBS),auto) --dist worksteal \
		tests/simulation tests/scheduler/simulation tests/scheduler/test_{kept,recording,safety}.py \
		tests/launcher/test_{crashes,job}.py tests/rest/test_openapi.py

test-chaos: install ## Kill, stop and restore any part at random amid many jobs (EVENTS=1000 SEED=…)
	$(if $(SEED),MUSTER_TEST_SEED=$(SEED)) MUSTER_CHAOS_EVENTS=$(or $(EVENTS),1000) $(BIN)/pytest -v -m chaos tests/system

# Of the system tests those about the bus: its faults, repeats, losses, and all records of a job's life.
ON_KAFKA = $(patsubst %,tests/system/test_%.py,bad_days invariants jobs kills open_events restores)

test-kafka: install kafka ## Run the tests that need a real Apache Kafka (Java 17, Maven)
	$(BIN)/pytest -n 2 --dist loadgroup -m apache
	$(BIN)/pytest -n 2 --dist loadgroup --broker apache -m "not apache and not k8s and not chaos" tests/muster/test_plumbing.py $(ON_KAFKA)

test-k8s: install kube ## Run the tests that need a real Kubernetes control plane (FULL=1: at full size, an hour)
	$(if $(FULL),MUSTER_KUBE_FULL=1) $(BIN)/pytest -n 2 --dist loadgroup -m k8s

test-kubelet: install ## Run the tests that need a real kubelet and container runtime (root, Debian 12)
	tests/kubelet/enclosed $(BIN)/pytest -m kubelet tests/kubelet

test-installation: install kube kafka images ## Follow docs/install.md from nothing to a removal (root, Debian 12, Java 17, Maven)
	$(BIN)/pytest -s -m installation tests/deploy

test-prometheus: install prometheus ## Run every query of every dashboard and alert rule on a real Prometheus (Debian 12)
	$(BIN)/pytest -n 2 --dist loadgroup -m prometheus

plots: install prometheus ## Draw the pictures of docs/dashboards.md anew, from a running Muster (Debian 12)
	MUSTER_PLOTS=docs/dashboards $(BIN)/pytest tests/monitoring/test_live.py

prometheus: .venv/.installed ## Fetch Debian's Prometheus for `muster up --monitoring` and the tests, once
	@PYTHONPATH=deploy/images $(BIN)/python tests/support/real_prometheus.py

kube: install ## Build the Kubernetes control plane of the tests, once (minutes)
	$(BIN)/python tests/support/kube_programs.py

bench: .venv/.installed ## Measure latency, throughput, memory and idle CPU beside their floor
	$(BIN)/python tests/bench/bench.py

bench-scheduler: .venv/.installed ## Measure the scheduler's core (BENCH=--quick: for a minute; --help: more)
	$(BIN)/python tests/bench/bench_scheduler.py $(BENCH)

bench-alerting: .venv/.installed prometheus ## Measure seconds from an event to its receiver, and deliveries amid kills (BENCH="--deliveries 100000": more)
	PYTHONPATH=tests/support:deploy/images $(BIN)/python tests/bench/bench_alerting.py $(BENCH)

bench-k8s: install kube ## Measure pods bound a second on 1,000 simulated Kubernetes nodes (BENCH="--nodes 96 --gangs 50 --large-gangs 12": fewer)
	$(BIN)/python tests/support/kube_programs.py kwok
	$(BIN)/python tests/bench/bench_k8s.py $(BENCH)

experiment-sharing: .venv/.installed ## Jobs on private clusters, with a quota of GPUs, and with one of cells
	$(BIN)/python tests/bench/sharing_anomaly.py

experiment-run-times: .venv/.installed ## Ask how good learnt run times are, by a simulated stream of jobs
	$(BIN)/python tests/bench/learnt_run_times.py

experiment-judgement: .venv/.installed ## What backfill, reservations, protection and elastic gangs are worth
	$(BIN)/python tests/bench/judgement.py

run: .venv/.installed $(KAFKA_NEEDS) ## Run Muster on this machine and a sample job (KAFKA=apache: with a real Apache Kafka)
	@$(BIN)/muster up --demo $(if $(KAFKA),--kafka $(KAFKA))

demo: .venv/.installed $(KAFKA_NEEDS) ## The same, but end after the sample job, with its exit status
	@$(BIN)/muster demo $(if $(KAFKA),--kafka $(KAFKA))

kafka: .kafka/.prepared ## Fetch Apache Kafka's jars from Maven Central and prepare quick starts

.kafka/.prepared: deploy/kafka/pom.xml cli/src/cli/embedded/apache.py | .venv/.installed
	@rm -rf .kafka/jars .kafka/template .kafka/classes.jsa
	mvn -q -B -f deploy/kafka/pom.xml -Dmaven.repo.local=$(CURDIR)/.kafka/m2 dependency:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.kafka/jars
	$(BIN)/python -m cli.embedded.apache .kafka
	@touch $@

images: .venv/.installed ## Build the images for Kubernetes as OCI archives in .images (Debian 12, without Docker)
	@$(BIN)/python deploy/images/build.py

images-lock: .venv/.installed ## Pin the images' Debian packages at the versions that apt has now
	@$(BIN)/python deploy/images/build.py --lock

clean: ## Remove what make installed and made
	rm -rf .venv .uv .kafka .images uv.lock .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.PHONY: help install lock check fmt fmt-check lint types contracts deps generated words generate test test-deep test-chaos test-kafka test-k8s test-kubelet test-installation test-prometheus plots prometheus kube bench bench-scheduler bench-alerting bench-k8s experiment-sharing experiment-run-times experiment-judgement run demo kafka images images-lock clean
