# Every target that needs the virtual environment sets it up itself. Needed beforehand: Python 3.11+, make, PyPI.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-dev
DEMO_STAMP := $(VENV)/.stamp-demo
BENCH_STAMP := $(VENV)/.stamp-bench

# uv is used where it runs (a shim on PATH may not). --seed below keeps pip in the environment either way. pip would compile
# all modules of 130 packages; Python compiles the few that are imported, at their first import.
UV := $(shell uv --version >/dev/null 2>&1 && echo uv)
INSTALL := $(if $(UV),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check)

# The versions that the tests passed with. `make lock` renews them.
LOCK := constraints.txt

SEEDS ?= 5000

# What `make test` runs: the gate runs more (`make ci`), and `make test-nightly` the rest.
MARKS ?= not slow and not nightly
PYTEST ?= $(BIN)/python -m pytest
ifndef SEED
SEED := $(shell date +%s)
endif

# Bytecode is compiled once, not again in each process that tests start.
unexport PYTHONDONTWRITEBYTECODE

# Another program that installs packages holds the lock of apt meanwhile.
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Create .venv with the project and all tools (PYTHON=... picks the interpreter)

.PHONY: fmt
fmt: $(STAMP) ## Format the code and apply the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: check
check: $(STAMP) ## Format, lint, types, import layers, links of the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/check_links.py

.PHONY: test
test: $(STAMP) compiled ## Run the tests, about 5 minutes on 2 cores (ARGS=... goes to pytest)
	$(PYTEST) -m "$(MARKS)" $(ARGS)

.PHONY: test-nightly
test-nightly: $(STAMP) compiled ## Run the rest: processes and servers killed, clocks, clusters, new random seeds (SEED=... repeats one)
	@echo "Seed: $(SEED)"
	HEADGATE_TEST_SEED=$(SEED) $(PYTEST) -m "nightly or hypothesis" --randomly-seed=$(SEED) --hypothesis-seed=$(SEED) $(ARGS)

.PHONY: test-busy
test-busy: $(STAMP) ## Run the gate beside four busy loops
	@for busy in 1 2 3 4; do while :; do :; done & loops="$$loops $$!"; done; \
		trap 'kill $$loops' EXIT; trap 'exit 1' INT TERM; $(MAKE) ci

.PHONY: test-pythons
test-pythons: ## Run the tests that need no server on each other supported Python that is installed
	@./tests/other_pythons.sh $(ARGS)

.PHONY: demo
demo: $(DEMO_STAMP) ## Watch Headgate work
	$(BIN)/headgate demo

.PHONY: bench
bench: $(BENCH_STAMP) ## Run the benchmarks, peers included
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: sim
sim: $(STAMP) ## Run the simulation over many more seeds (SEEDS=5000)
	HEADGATE_TEST_SIM_SEEDS=$(SEEDS) $(BIN)/python -m pytest --timeout=0 tests/engine/test_simulation.py $(ARGS)

.PHONY: docs
docs: $(STAMP) ## Build the site of the docs into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: screenshots
screenshots: $(STAMP) browser ## Take pictures of each page of the dashboard into screenshots/ (ARGS="--size full": of 1 M jobs)
	$(BIN)/python -m benchmarks.dashboard_pages --pictures screenshots $(ARGS)

.PHONY: dashboard-speed
dashboard-speed: $(STAMP) browser ## Measure the dashboard with 1 M jobs on both databases, and write docs/dashboard-speed.md
	$(BIN)/python -m benchmarks.dashboard_pages --page $(ARGS)

.PHONY: browser
browser: ## Install the Chromium that the tests of the dashboard drive, where there is none (Debian, Ubuntu; needs root)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		$(APT) update && $(APT) install --yes --no-install-recommends chromium; \
	} >/dev/null

.PHONY: pooler
pooler: ## Install the PgBouncer that some tests stand behind, where there is none (Debian, Ubuntu; needs root)
	@command -v pgbouncer >/dev/null || { \
		$(APT) update && $(APT) install --yes --no-install-recommends pgbouncer; \
	} >/dev/null

.PHONY: lock
lock: $(STAMP) ## Renew the versions in constraints.txt that the tools and tests are installed with (needs uv)
	uv pip compile --quiet --universal --upgrade --python-version 3.11 --all-extras --group dev --group bench \
		--no-emit-index-url --no-annotate --no-header --output-file $(LOCK) pyproject.toml

.PHONY: dist
dist: $(STAMP) ## Build the wheel and the source distribution into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build

# What is pushed is published: .github/workflows/release.yml runs the gate, builds, and uploads.
.PHONY: release
release: $(STAMP) ## Set the version, date the changelog, commit and tag (VERSION=0.1.0); you push
	@test -n "$(VERSION)" || { echo "Say which version: make release VERSION=0.1.0" >&2; exit 1; }
	@test "$$(git branch --show-current)" = main && test -z "$$(git status --porcelain)" \
		|| { echo "A release is made from main, with everything committed. See git status." >&2; exit 1; }
	@! git rev-parse --quiet --verify "refs/tags/v$(VERSION)" >/dev/null \
		|| { echo "The tag v$(VERSION) exists. Choose another version." >&2; exit 1; }
	@sed -i.old 's/^__version__ = .*/__version__ = "$(VERSION)"/' src/headgate/version.py && rm src/headgate/version.py.old
	@if grep -q '^## $(VERSION) (not released yet)' CHANGELOG.md; then \
		sed -i.old "s/^## $(VERSION) (not released yet)/## $(VERSION) ($$(date +%F))/" CHANGELOG.md && rm CHANGELOG.md.old; \
	else \
		$(BIN)/towncrier build --yes --version $(VERSION); \
	fi
	git add --all
	git commit --quiet --message "Release $(VERSION)"
	git tag --annotate --message "Headgate $(VERSION)" "v$(VERSION)"
	@echo "Look at it with git show, then publish it: git push origin main v$(VERSION)"

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) $(VENV)-3.* build dist site htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.PHONY: ci
ci: check ## The gate: check, and all tests but the nightly ones; what fails runs once more, alone
	$(MAKE) test MARKS="not nightly" PYTEST="$(BIN)/python -m tests.twice"

# ------------------------------------------------------------------------------------------------------- set-up

$(STAMP): pyproject.toml $(LOCK)
	@$(if $(UV),$(make_venv_with_uv),$(make_venv_with_python))
	$(INSTALL) --constraint $(LOCK) --editable . --group dev
	@touch $@ $(DEMO_STAMP)

# The demo needs what `pip install headgate` brings, and no tool.
$(DEMO_STAMP): pyproject.toml $(LOCK)
	@$(if $(UV),$(make_venv_with_uv),$(make_venv_with_python))
	$(INSTALL) --constraint $(LOCK) --editable .
	@touch $@

.PHONY: compiled
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q src tests

$(BENCH_STAMP): $(STAMP)
	$(INSTALL) --constraint $(LOCK) --group bench
	@touch $@

define make_venv_with_uv
	$(BIN)/python -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null \
		|| uv venv --quiet --clear --seed --python "$(or $(PYTHON),>=3.11)" $(VENV)
endef

# 1. An environment that works is kept. 2. Otherwise the first Python that really runs, is new enough and can make one.
# 3. `--group` needs pip 25.1, newer than the pip most Pythons bring along.
define make_venv_with_python
	set -e; \
	new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; \
	if ! $(BIN)/python -c "$$new_enough" 2>/dev/null || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		found=; bare=; \
		for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
			"$$python" -c "$$new_enough" >/dev/null 2>&1 || continue; \
			if "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then found=$$python; break; fi; \
			bare=$$python; \
		done; \
		if [ -z "$$found" ]; then \
			if [ -n "$$bare" ]; then \
				echo "$$bare is new enough but cannot make a virtual environment: its modules venv and ensurepip are missing." >&2; \
				echo "Install them (Debian and Ubuntu: apt install python3-venv), or name another Python: make PYTHON=/path/to/python" >&2; \
			else \
				echo "Headgate needs Python 3.11 or newer, and none of these runs and is: $(or $(PYTHON),python3.13 python3.12 python3.11 python3)." >&2; \
				echo "Install one, or say where it is: make PYTHON=/path/to/python" >&2; \
			fi; \
			exit 1; \
		fi; \
		echo "Creating $(VENV) with $$("$$found" --version)"; \
		"$$found" -m venv --clear $(VENV); \
	fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
endef
