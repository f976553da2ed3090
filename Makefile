# Everything that people and CI do here is a target below; `make help` prints them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
NODES   ?= 8
GPUS    ?= 8
WORKERS ?= 6
ARGS    ?=

# Compiled files make every process start in half the time, and tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=

# With PYTHON=python3.12, a pyenv shim may name a Python that is installed but not switched on: take the interpreter
# itself. An environment of another Python than the one asked for is made again; if none is found, its recipe fails.
minor = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ifneq ($(origin PYTHON),file)
ifeq ($(call minor,$(PYTHON)),)
  override PYTHON := $(or $(shell python3 scripts/pythons.py $(PYTHON)),$(PYTHON))
endif
ifneq ($(or $(call minor,$(PYTHON)),not found),$(call minor,$(BIN)/python))
  .PHONY: $(VENV)/ready
endif
endif

##@ Use it
.PHONY: run demo cluster
run: $(VENV)/ready ## The cluster manager on this machine, with simulated GPUs, at work (Ctrl-C ends it) [ARGS="--port 9000"]
	@$(BIN)/gpu-orchestrator up --simulate 4 $(ARGS)

demo: $(VENV)/ready tools ## Operator and gpu-scheduler in a local cluster of 20 GPU nodes (Ctrl-C ends it) [ARGS=--nodes 50]
	@$(BIN)/python scripts/demo.py $(ARGS)

cluster: $(VENV)/ready ## A real local Kubernetes with GPU nodes [NODES=8 GPUS=8] (Ctrl-C ends it)
	@$(BIN)/python -m controlplane up --nodes $(NODES) --gpus $(GPUS)

##@ Install it into the cluster of kubectl's current context
.PHONY: install uninstall deploy undeploy
install: ## Only the custom resources
	@scripts/definitions.sh install

uninstall: ## Remove the custom resources, if nothing of theirs is there
	@scripts/definitions.sh uninstall

deploy: ## Everything: operator, gpu-scheduler, webhook, policies, agent [IMG=registry/gpu-orchestrator:1 ARGS=--no-wait]
	@scripts/deploy.sh $(if $(IMG),--image $(IMG)) $(ARGS)

undeploy: ## Remove it; claims, workloads and their custom resources stay [ARGS=--all]
	@scripts/uninstall.sh --scheduler $(ARGS)

##@ Build the image, which has every component: with docker or podman, or without either (docs/install.md)
.PHONY: docker docker-webhook docker-agent docker-build docker-push
docker-build: ## The image [IMG=registry/gpu-orchestrator:1]
	@scripts/image.sh build $(IMG)

docker-push: ## Send it to the registry of its name [IMG=registry/gpu-orchestrator:1]
	@scripts/image.sh push $(IMG)

docker: ## The same image under the name that the gpu-scheduler shall have [SCHED_IMG=...]
	@scripts/image.sh build $(SCHED_IMG)

docker-webhook: ## ... the webhook [WEBHOOK_IMG=...]
	@scripts/image.sh build $(WEBHOOK_IMG)

docker-agent: ## ... the agent [AGENT_IMG=...]
	@scripts/image.sh build $(AGENT_IMG)

##@ Prove it
.PHONY: lint check test-fast test test-pythons accept
lint = $(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports --no-logo
lint: $(VENV)/ready ## Format, lint and import rules
	@$(lint)

check: $(VENV)/ready ## What `lint` does, and types
	@$(lint)
	@$(BIN)/mypy

test-fast: $(VENV)/ready ## Pure code only: seconds, no server, no network [ARGS=...]
	@$(BIN)/python -m pytest -q -m "not real" -n 2 $(ARGS)

# What `check` does, too. mypy takes one core for half a minute: it runs beside the first tests, at low priority.
# A coverage report takes a fifth longer (Python 3.11, without sys.monitoring: half as long again).
test: $(VENV)/bench/ready $(VENV)/docs/ready $(VENV)/models/ready $(VENV)/release/ready tools ## What every change must pass [WORKERS=6 COVERAGE=yes ARGS=...]
	@rm -f .coverage .coverage.*
	@$(lint)
	@nice $(BIN)/mypy & types=$$!; \
	  $(BIN)/python -m $(if $(COVERAGE),coverage run -m) pytest -n $(WORKERS) --durations=20 $(ARGS) && tests=0 || tests=$$?; \
	  wait $$types || { echo "mypy found mistakes, see above or run: make check" >&2; exit 1; }; exit $$tests
	@$(if $(COVERAGE),$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report --skip-covered)

test-pythons: ## check and test-fast on each Python from 3.11 to 3.14 that is found here [ARGS=...]
	@MAKE="$(MAKE)" $(PYTHON) scripts/pythons.py

accept: $(VENV)/ready $(VENV)/models/ready tools ## The same scenarios at full scale; continues after an interruption [ARGS=...]
	@$(BIN)/python -m pytest --scale=accept --timeout=3600 -o faulthandler_timeout=3590 --ledger=.accept $(ARGS)

##@ Measure it
.PHONY: bench-agent bench-backfill bench-bind bench-client bench-decide bench-gang bench-kube-parse bench-kube-write bench-models bench-operator bench-scale bench-store bench-takeover bench-tasks bench-turns bench-vram bench-watchers bench-webhook load
bench-agent: $(VENV)/ready tools ## What a node agent costs its node, and 5,000 of them the API server [ARGS="--agents 100 --seconds 60"]
	@$(BIN)/python -m benchmarks.agent $(ARGS)

bench-backfill: $(VENV)/ready ## How long large requests wait: with reservation and backfill, without, and first come first served [ARGS="--seeds 5"]
	@$(BIN)/python -m benchmarks.backfill $(ARGS)

bench-bind: $(VENV)/ready tools ## Pods bound per second: gpu-scheduler beside kube-scheduler [ARGS="--who lease --before ../old/src"]
	@$(BIN)/python -m benchmarks.bind $(ARGS)

bench-client: $(VENV)/bench/ready ## 10,000 tasks submitted and gathered in Python, beside Celery's and dramatiq's clients [ARGS=...]
	@$(BIN)/python -m benchmarks.client $(ARGS)

bench-models: $(VENV)/ready ## Tasks of three models on GPUs with room for one or two: swaps, makespan, waits beside FIFO [ARGS="--seeds 20"]
	@$(BIN)/python -m benchmarks.models $(ARGS)

bench-operator: $(VENV)/ready tools ## The operator at 1,000 nodes and 1,000 workloads, and a killed leader [ARGS=...]
	@$(BIN)/python -m benchmarks.operator_scale $(ARGS)

bench-gang: $(VENV)/ready tools ## Seconds until a gang is bound: gpu-scheduler beside kube-scheduler [ARGS="--sizes 64 --at-once 1"]
	@$(BIN)/python -m benchmarks.gang $(ARGS)

bench-decide: $(VENV)/ready ## Decision time per strategy and size, engine throughput, memory [ARGS=...]
	@$(BIN)/python -m benchmarks.decide $(ARGS)

bench-kube-parse: $(VENV)/bench/ready ## Reading 5,000 pods: our client against the official one [ARGS=...]
	@$(BIN)/python -m benchmarks.kube_parse --official-python $(VENV)/bench/bin/python $(ARGS)

bench-kube-write: $(VENV)/ready tools ## Creates, patches and binds on a real API server: our transport beside aiohttp [ARGS=...]
	@$(BIN)/python -m benchmarks.kube_write $(ARGS)

bench-scale: $(VENV)/ready ## The cluster manager with 1,000 workers and 400,000 queued tasks of 10,000 shapes [ARGS=...]
	@$(BIN)/python -m benchmarks.scale $(ARGS)

bench-store: $(VENV)/bench/ready ## Script calls on the store: our client beside valkey-py and valkey-glide [ARGS=...]
	@$(BIN)/python -m benchmarks.store $(ARGS)

bench-takeover: $(VENV)/ready ## What a new leader of the gpu-scheduler costs before its first bind [ARGS="--before ../old/src"]
	@$(BIN)/python -m benchmarks.takeover $(ARGS)

bench-tasks: $(VENV)/bench/ready ## Tasks per second and round trips beside Celery, dramatiq, taskiq [ARGS=...]
	@$(BIN)/python -m benchmarks.tasks $(ARGS)

bench-turns: $(VENV)/ready ## The cluster manager of another checkout beside this one, in turn [ARGS="--before ../old/src"]
	@$(BIN)/python -m benchmarks.turns $(ARGS)

bench-vram: $(VENV)/ready ## Check that reported GPU memory is right on this machine [ARGS="--simulate 1xH200:141GiB"]
	@$(BIN)/python -m benchmarks.vram $(ARGS)

load: $(VENV)/bench/ready ## Five minutes of clients at 200 requests/s, played by locust: no 5xx, and their p99 [ARGS=...]
	@$(BIN)/python -m benchmarks.load $(ARGS)

bench-watchers: $(VENV)/ready ## What 500 clients on /ws cost the server [ARGS="--clients 500"]
	@$(BIN)/python -m benchmarks.watchers $(ARGS)

bench-webhook: $(VENV)/ready tools ## The webhook over TLS at 200 reviews/s: p99, and the most per second [ARGS="--seconds 30"]
	@$(BIN)/python -m benchmarks.webhook $(ARGS)

##@ Release it
.PHONY: build sbom release
# Everything in it has the time of the commit, and hatchling is the locked one: the same commit gives the same bytes.
epoch = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 1580601600)
build: $(VENV)/ready ## The wheel and the source distribution, in dist/
	@$(epoch) $(BIN)/python -m hatchling build -d dist

sbom: $(VENV)/ready ## What we depend on, as CycloneDX, in dist/
	@$(epoch) $(BIN)/python -m scripts.release.sbom dist

release: $(VENV)/ready $(VENV)/release/ready tools ## Check, test and make everything that is published, in dist/ [ARGS=--no-tests]
	@$(BIN)/python -m scripts.release $(ARGS)

##@ Work on it
.PHONY: fmt crds policies api-docs client-docs monitoring charts manifests chart docs docs-serve screens recordings tools lock clean help
fmt: $(VENV)/ready ## Format, and fix what can be fixed automatically
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

crds: $(VENV)/ready ## Write config/crd and its reference from the wire types
	@$(BIN)/python -m gpu_orchestrator.cli.crds config/crd docs/reference

policies: $(VENV)/ready ## Write config/policy and config/mutating-policy from the names that they guard
	@$(BIN)/python -m gpu_orchestrator.cli.admission_policies config

api-docs: $(VENV)/ready ## Write the reference of the HTTP API from its routes
	@$(BIN)/python -m gpu_orchestrator.cli.api_docs docs/reference/api.md

client-docs: $(VENV)/ready ## Write the reference of the Python client from its signatures and docstrings
	@$(BIN)/python -m scripts.client_docs docs/reference/python.md

monitoring: $(VENV)/ready ## Write config/monitoring: alerts and dashboards from the metrics in the code
	@$(BIN)/python -m scripts.monitoring config/monitoring

charts: $(VENV)/ready ## Write charts/gpu-scheduler from config and its values: templates, schema, table of values
	@$(BIN)/python -m scripts.chart config charts/gpu-scheduler

manifests: crds policies monitoring charts ## Write all manifests that are made from the code

chart: charts ## Check the Helm chart and pack it into dist/
	@$(BIN)/python -m controlplane run helm lint --strict --namespace gpu-orchestrator-system charts/gpu-scheduler
	@$(BIN)/python -m controlplane run helm package charts/gpu-scheduler --destination dist

mkdocs = PYTHONPATH=. $(VENV)/docs/bin/python -m mkdocs
docs: $(VENV)/docs/ready ## The documentation as a site, in site/; a broken link or a page in no menu fails it
	@$(mkdocs) build --strict
	@echo "site/index.html"

docs-serve: $(VENV)/docs/ready ## The same on http://127.0.0.1:8001, as you write (Ctrl-C ends it) [ARGS="-a 127.0.0.1:9001"]
	@$(mkdocs) serve --quiet -a 127.0.0.1:8001 $(ARGS)

screens: $(VENV)/ready ## Write docs/screens.md: the main screens at 110, 80 and 60 columns [ARGS="--widths 80"]
	@$(BIN)/python -m scripts.screens $(ARGS)

recordings: $(VENV)/ready tools ## Write docs/run.svg and docs/demo.svg: `make run` and `make demo`, played [ARGS="--only run"]
	@$(BIN)/python -m scripts.recordings $(ARGS)

tools: $(VENV)/ready ## Build the control plane's binaries into the per-user cache (about 10 minutes, once)
	@$(BIN)/python -m controlplane build

lock: $(VENV)/ready ## Resolve requirements/*.in into hash-locked *.txt [ARGS=--upgrade]
	@for name in runtime dev bench docs release go bootstrap; do \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-annotate --custom-compile-command "make lock" $(ARGS) requirements/$$name.in -o requirements/$$name.txt; done
	@for name in manager celery kubernetes image; do \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-annotate --custom-compile-command "make lock" -c requirements/dev.txt $(ARGS) \
	    requirements/runtime.in requirements/$$name.in -o requirements/$$name.txt; done
	@for name in build models; do \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-annotate --custom-compile-command "make lock" -c requirements/dev.txt $(ARGS) \
	    requirements/$$name.in -o requirements/$$name.txt; done

clean: ## Remove what `make` made in this folder (the cache of built binaries stays)
	@rm -rf dist $(VENV) .venv-3.* .accept site .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z%-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The virtual environment, made again whenever the locks or the package's own list change.
$(VENV)/ready: requirements/dev.txt requirements/bootstrap.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V)$(if $(wildcard $(BIN)/python), in place of $$($(BIN)/python -V 2>&1))"
	@$(PYTHON) -m venv --clear $(VENV) || \
	  { echo "could not make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip sync -q --compile-bytecode --require-hashes --python $(BIN)/python requirements/dev.txt
	@$(BIN)/uv pip install -q --no-deps --no-build-isolation --python $(BIN)/python -e .
	@touch $@

# The peers that benchmarks measure against, apart from our own environment.
$(VENV)/bench/ready: $(VENV)/ready requirements/bench.txt
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/bench
	@$(BIN)/uv pip sync -q --require-hashes --python $(VENV)/bench/bin/python requirements/bench.txt
	@touch $@

# The site generator, apart from our own environment.
$(VENV)/docs/ready: $(VENV)/ready requirements/docs.txt
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/docs
	@$(BIN)/uv pip sync -q --compile-bytecode --require-hashes --python $(VENV)/docs/bin/python requirements/docs.txt
	@touch $@

# What the handlers of models need, on top of our own environment: torch is large, and only tests of models load it.
$(VENV)/models/ready: $(VENV)/ready requirements/models.txt
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/models
	@$(BIN)/uv pip sync -q --require-hashes --python $(VENV)/models/bin/python requirements/models.txt
	@$(BIN)/python scripts/add_packages.py $(VENV)/models/bin/python
	@touch $@

# What looks at packages before they are published, apart from our own environment.
$(VENV)/release/ready: $(VENV)/ready requirements/release.txt
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/release
	@$(BIN)/uv pip sync -q --require-hashes --python $(VENV)/release/bin/python requirements/release.txt
	@touch $@
