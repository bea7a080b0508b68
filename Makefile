# Every target makes its own environment. Nothing here names a registry: pip and uv use yours.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
READY := .venv/.ready

# A Python that is missing is a clear message here, not a download from somewhere.
export UV_PYTHON_DOWNLOADS := never
export UV_NO_PROGRESS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is switched off, hundreds of processes of a test run would compile everything once more, each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help:  ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: $(READY)  ## Watch 200 jobs survive a paused worker, a killed one and a failing bus, and then rules (KEEP=1 stays up)
	@$(PY) examples/agent_fleet/story.py $(if $(KEEP),--keep)

.PHONY: run-locks
run-locks: $(READY)  ## Watch a paused worker lose its lock, and its late write be refused
	@$(PY) examples/paused_worker/story.py

.PHONY: test
test: $(READY)  ## Run every check and every test, against real servers from wheels
	@# `make lint` is one of the tests. Every worker has servers of its own, so any test may run anywhere: work stealing keeps all
	@# cores busy to the end, where whole files per worker would wait for the longest one. Four
	@# workers on two cores: many tests wait for a lease of a real process to run out.
	@tools/promtool >/dev/null || echo "promtool is not to be had here: the alerts are checked only in part"
	@tools/redis7 >/dev/null || echo "Redis 7.0 is not to be had here: what is promised of Redis is checked on Valkey alone"
	@tools/pgbouncer >/dev/null || echo "PgBouncer is not to be had here: what is promised behind a pooler is not checked"
	$(PY) -m pytest -n 4 --dist worksteal

.PHONY: check
check: lint  ## Run every check: format, lint, types, layers, dead code, shape, documentation
	$(PY) -m pytest tests/test_shape.py tests/test_docs.py tests/test_docs_client.py tests/test_docs_examples.py

.PHONY: lint
lint: $(READY)
	@.venv/bin/ruff format --check --quiet . || { echo "Not formatted. Run: make format"; exit 1; }
	@.venv/bin/ruff check --quiet .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/vulture

.PHONY: format
format: $(READY)  ## Format the code
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix --exit-zero --quiet .

.PHONY: bench
bench: $(READY)  ## Measure against other lock libraries and job systems, and print the table
	@$(PY) -m bench

.PHONY: soak
soak: $(READY)  ## Tell many stories of a hostile world (SEEDS=1000000, STORY=lock), or attack real servers (MINUTES=30, ON=redis)
	@PYTHONPATH=tests $(PY) -m $(if $(MINUTES),soak --minutes $(MINUTES) $(ON),simulation soak --seeds $(or $(SEEDS),10000) $(STORY))

.PHONY: drill
drill: $(READY)  ## Rehearse every failure with real processes, and see that broken promises are found (report in holdfast-drill/)
	@$(PY) -m holdfast drill run --all --jobs 2
	@HOLDFAST_TEST_DRILLS=all $(PY) -m pytest tests/drills -k broken_on_purpose -n 2

.PHONY: soak-lock-set
soak-lock-set: $(READY)  ## Stop real processes inside their locks: what is lost with guards, and with a lease alone (UPDATES=100000)
	@PYTHONPATH=tests $(PY) -m soak.lock_set --updates $(or $(UPDATES),100000)

.PHONY: replay
replay: $(READY)  ## Tell one of them again, step by step (STORY=plane SEED=17; SHRINK=1 leaves out what it can; PICTURE=story.svg draws it)
	@PYTHONPATH=tests $(PY) -m simulation replay $(or $(STORY),plane) $(or $(SEED),0) $(if $(SHRINK),--shrink) \
		$(if $(PICTURE),--picture $(PICTURE))

.PHONY: lock
lock: $(READY)  ## Make requirements.lock anew from pyproject.toml (UPGRADE=--upgrade for newer versions)
	@# The lock holds versions and hashes, never an address: it must install from anybody's registry.
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras --group dev \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		$(UPGRADE) pyproject.toml -o requirements.lock

.PHONY: clean
clean:  ## Remove the environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find src tests bench examples tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): requirements.lock pyproject.toml tools/environment
	@tools/environment
	@touch $@
