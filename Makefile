# `make up` trains CartPole from nothing; `make test` runs everything that needs no cluster, `make test-cluster` the rest.
PYTHON ?= python3
VENV ?= .venv
SPEC ?= specs/cartpole-impala.yaml
TIERS ?= cluster
# many tests wait for processes most of their time: two workers more than there are cores
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
# each of the long tests of a cluster has a run, which takes up to 2 GiB and computes while it is waited for
CLUSTER_WORKERS ?= $(shell workers=$$(nproc); echo $$((workers < 6 ? workers : 6)))
CLUSTER_TESTS := tests/cluster tests/conformance tests/images/test_real_image.py
# a session looks only where it has tests: importing what the others test takes every worker seconds
NO_CLUSTER := --ignore=tests/cluster
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)
BIN := $(VENV)/bin
PIP := python -m pip install --quiet --disable-pip-version-check
LISTS := $(VENV)/lists
# the hundreds of processes that tests start, and every worker of theirs, compile this tree once and not each anew
export PYTHONDONTWRITEBYTECODE :=
INPUTS := pyproject.toml requirements.lock rlctl/images/requirements.py

.PHONY: up test test-fast test-fast-list test-full test-cluster learn bench bench-regression check format lint types checkov site trackers lock clean

up: $(VENV)/.local
	$(BIN)/rlctl up $(SPEC)

# at the end, one at a time, those that measure what the machine gives them
test: $(VENV)/.dev
	@ended=0; set -x; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(NO_CLUSTER) -m "not cluster and not alone" || ended=$$?; \
	$(BIN)/python -m pytest -m "alone and not cluster" $(ALONE) || ended=$$?; \
	exit $$ended

# every point of the exhaustive tests, and proof that tests of each promise fail when it is taken back
test-full: export RLCTL_TEST_FULL = 1
test-full: test
	$(BIN)/python -m tests.mutations

# hardly any of these waits, and a worker takes seconds to import what it tests: as many as there are cores
FAST = $(BIN)/python -m pytest -n $$(nproc) --dist worksteal $(NO_CLUSTER) --hypothesis-profile=quick -m "not cluster and not processes and not learning$(1)"
test-fast: $(VENV)/.dev
	$(call FAST, and not slow)

# which tests `make test-fast` leaves out, from what each takes here
test-fast-list: $(VENV)/.dev
	$(call FAST) --junitxml=build/fast.xml
	$(BIN)/python -m tests.support.slow build/fast.xml

# on the cluster of $RLCTL_TEST_CONTEXT, made for tests (tests/cluster/support/contract.py); as in TIERS="api or smoke". At the end,
# one at a time, those that disturb the cluster or fill it. 5: no test of these tiers is of that kind
test-cluster: $(VENV)/.dev
	@beside=0; alone=0; export RLCTL_TEST_MADE=$$(mktemp -d); trap 'rm -rf "$$RLCTL_TEST_MADE"' EXIT; set -x; \
	$(BIN)/python -m pytest $(CLUSTER_TESTS) -n $(CLUSTER_WORKERS) --no-loadscope-reorder \
	  -m "($(TIERS)) and not disturb and not scale" || beside=$$?; \
	$(BIN)/python -m pytest $(CLUSTER_TESTS) -m "($(TIERS)) and (disturb or scale)" || alone=$$?; \
	case $$beside$$alone in 00|05|50) ;; *) exit 1 ;; esac

# the short form of every benchmark: figures into benchmarks/results, tables into docs/performance.md. Peers are installed
# once, in environments of their own below ~/.cache/rlctl-bench. `make bench-scaling FORM=full` is the protocol
FORM ?= short
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks all --form $(FORM)

bench-regression: $(VENV)/.dev
	$(BIN)/python -m benchmarks regression --form $(FORM) --out build/bench --document build/bench/performance.md

bench-%: $(VENV)/.dev
	$(BIN)/python -m benchmarks $* --form $(FORM)

# every seed of docs/learning.md that is not there or not valid any more; as in ROW="cartpole-ppo acrobot-ppo" SEED=0,
# or ROW=vtrace for both sides of a comparison
learn: $(VENV)/.learn
	$(BIN)/python -m benchmarks.learning $(ROW) $(addprefix --seed ,$(SEED))

check: lint types test-fast

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.links

types: $(VENV)/.dev
	$(BIN)/mypy

# a scanner with a hundred packages of its own, so it gets an environment of its own
checkov: $(VENV)/.dev $(VENV)-checkov/.ready
	rm -rf build/checkov
	$(BIN)/python -m tests.render.write build/checkov
	$(VENV)-checkov/bin/checkov --config-file tests/render/checkov/config.yaml --directory build/checkov

# docs/ as pages to read in a browser, build/site/index.html: every link is followed, none asks another host for anything
site: $(VENV)/.local $(VENV)-site/.ready
	$(BIN)/python -m scripts.pages build/pages
	rm -rf build/site
	$(VENV)-site/bin/zensical build --strict --clean
	$(BIN)/python -m scripts.pages.local build/site

$(VENV)-checkov/.ready: tests/render/checkov/requirements.lock
$(VENV)-site/.ready: scripts/pages/requirements.lock
$(VENV)-checkov/.ready $(VENV)-site/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/$(PIP) --require-hashes -r $<
	@touch $@

# Weights & Biases and MLflow as they are installed, with core and in an environment of their own: what is written is read back
trackers: $(VENV)-trackers/.ready
	PYTHONPATH=.:agents $(VENV)-trackers/bin/python -m tests.manager.trackers.real

# modules of hundreds of megabytes that are hardly imported are not compiled
$(VENV)-trackers/.ready: rlctl/images/trackers.lock requirements.lock rlctl/images/requirements.py
	$(PYTHON) -m venv $(@D)
	$(PYTHON) rlctl/images/requirements.py --extras wandb,mlflow . $(@D)/lists
	$(@D)/bin/$(PIP) --require-hashes --no-deps --no-compile -r $(@D)/lists/core.txt -r $(@D)/lists/trackers.txt
	@touch $@

# the locks anew from pyproject.toml: every version that still fits stays. UPGRADE=--upgrade takes the newest of all; a new
# torch needs TORCH_INDEX="--torch-index URL", torch's own index of builds for CPUs
lock:
	$(PYTHON) rlctl/images/requirements.py . build/lists
	test -x $(VENV)-lock/bin/uv || $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/$(PIP) --require-hashes -r build/lists/lock.txt
	$(VENV)-lock/bin/python scripts/lock.py $(UPGRADE) $(TORCH_INDEX)

clean:
	rm -rf $(VENV) $(VENV)-checkov $(VENV)-site $(VENV)-trackers $(VENV)-lock build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rlctl needs Python 3.11 or newer; choose one with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# Only files that requirements.lock names by hash. torch first and alone: what is there already stays, else its build without
# CUDA where pip knows of one, else that of the index, whose CUDA comes with it. The lists are whole, so nothing is left to
# resolve; what was installed builds our own code
define install
	$(BIN)/python rlctl/images/requirements.py . $(LISTS)
	$(BIN)/python -c 'import importlib.metadata as m; print("torch==" + m.version("torch").partition("+")[0] + " ")' 2> /dev/null | \
	  grep -qf - $(LISTS)/torch.txt || \
	  $(BIN)/$(PIP) --require-hashes --no-deps -r $(LISTS)/torch-cpu.txt 2> /dev/null || \
	  $(BIN)/$(PIP) --require-hashes --no-deps -r $(LISTS)/torch.txt
	$(BIN)/$(PIP) --require-hashes --no-deps -r $(LISTS)/torch-needs.txt -r $(LISTS)/build.txt -r $(LISTS)/$(1).txt \
	  $$($(BIN)/python -c 'import importlib.metadata as m; print("" if "+" in m.version("torch") else "-r $(LISTS)/torch-cuda.txt")')
	$(BIN)/$(PIP) --no-deps --no-build-isolation --no-index -e .
endef

$(VENV)/.local: $(INPUTS) | $(BIN)/python
	$(call install,local)
	@touch $@

$(VENV)/.dev: $(INPUTS) | $(BIN)/python
	$(call install,dev)
	@touch $(VENV)/.local $@

# into the same environment: simulators that tests do without
$(VENV)/.learn: $(INPUTS) | $(VENV)/.dev
	$(call install,learn)
	@touch $@
