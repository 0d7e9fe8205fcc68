# Two commands do all the set-up on Debian or Ubuntu with Python 3.11 or newer and python3-venv:
#
#     make look TEXT="The animal didn't cross the street because it was too tired"
#     make test
#
# What was installed is remembered by stamps in .venv/stamps, each written only when its step has ended well and holding
# the folder it was made for; a step is done again when what it depends on has changed, or the checkout has moved.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help look test test-all check format lint types layers changes fix native docs wheel wheels notebooks bench bench-check architectures clean

# A text may hold quotes, apostrophes, $ and line breaks: it goes through the environment, expanded by neither make nor
# the shell. The other names are common ones (TOKEN, OUT), so they count only where they are given to make itself.
OPTIONS := TOKEN LAYER HEAD MODEL OUT TARGET COMPARE WORDS
override TEXT := $(value TEXT)
export TEXT
$(foreach name,$(OPTIONS),$(eval override $(name) := $$(if $$(findstring command,$$(origin $(name))),$$(value $(name)))))
export $(OPTIONS)

PYTHON ?=
STAMPS := .venv/stamps
RUN := .venv/bin/python -m
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(RUN) pip install --no-input -c constraints.txt
SAY := @printf '\n%s\n' >&2
# Processes side by side, of one thread each: small tensors gain nothing from more, and two busy pools lose much.
TESTS := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(RUN) pytest -n logical --maxprocesses 8 --dist worksteal
RESULTS := benchmarks/results/speed-$(shell nproc)-cores.json
# Ratios depend on the processor: what CI checks is held against the run of one like this machine's, where there is one.
MEASURED = $(wildcard $(RESULTS:.json=*.json))
# What speed is compared with lies apart, on the path of `regard bench` alone, and without its dependencies: a peer can
# never change the versions of what is measured.
PEERS := .venv/peers
# Cases of bench-check: a minute on two cores, in which nothing is loaded or compiled.
CHECKED := dense bf16 window sparse beyond decoding
SOURCES := src tests benchmarks examples docs tools native hatch_build.py
CPP := $(wildcard native/*.cpp native/*.h tests/native/*.cpp tests/native/*.h)
# What the compiled kernels depend on: the sources, and their folder, whose own time changes where one is added or removed.
KERNELS := native/. native/build.py src/regard/backends/native/sources.py $(wildcard native/*.cpp native/*.h)

# A checkout that was moved or copied with its .venv installs again.
moved = $(if $(wildcard $(1)),$(if $(filter-out $(CURDIR),$(file <$(1))),moved))

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F '|' '{printf "%-18s %s\n", $$1, $$2}'
	@printf '%s\n' '' 'make look takes TEXT="…", a text or the name of a text file, and, if you like,' \
	  '  TOKEN=word LAYER=2 HEAD=1 MODEL=me5|minilm|smollm2|folder|id TARGET="…"' \
	  '  OUT=page.html|figure.png|figure.svg|it.atlas' \
	  '  COMPARE="a second text" WORDS=one,other'

look: $(STAMPS)/models $(STAMPS)/native ## See what a real model attends to in TEXT="…"; sets everything up the first time
	@if [ -z "$$TEXT" ]; then \
	  echo 'make look needs a text: make look TEXT="The cat sat on the mat because it was tired"' >&2; exit 2; fi; \
	set --; \
	[ -z "$$TOKEN" ] || set -- "$$@" --token "$$TOKEN"; \
	[ -z "$$LAYER" ] || set -- "$$@" --layer "$$LAYER"; \
	[ -z "$$HEAD" ] || set -- "$$@" --head "$$HEAD"; \
	[ -z "$$MODEL" ] || set -- "$$@" --model "$$MODEL"; \
	[ -z "$$TARGET" ] || set -- "$$@" --target "$$TARGET"; \
	[ -z "$$OUT" ] || set -- "$$@" --out "$$OUT"; \
	[ -z "$$COMPARE" ] || set -- "$$@" --compare "$$COMPARE"; \
	[ -z "$$WORDS" ] || set -- "$$@" --words "$$WORDS"; \
	.venv/bin/regard look "$$@" -- "$$TEXT" || exit $$?; \
	command -v regard >/dev/null || echo '(regard is in .venv: ". .venv/bin/activate" makes this shell know it)' >&2

test: $(STAMPS)/dev $(STAMPS)/native $(STAMPS)/models ## Run the tests, without those that take long (three and a half minutes on two cores)
	@$(TESTS) -m "not slow"

test-all: $(STAMPS)/dev $(STAMPS)/native $(STAMPS)/models ## Run every test: what CI runs (a quarter of an hour)
	@$(TESTS)

check: format lint types layers test-all ## Everything that must be green: format, lint, types, layers, every test

format: $(STAMPS)/dev ## Is the code formatted? (make fix formats it)
	@$(RUN) ruff format --check $(SOURCES)
	@.venv/bin/clang-format --dry-run -Werror $(CPP)

lint: $(STAMPS)/dev ## Does the code follow the rules of ruff?
	@$(RUN) ruff check $(SOURCES)

types: $(STAMPS)/dev ## Do the types fit? (mypy, strict)
	@$(RUN) mypy

layers: $(STAMPS)/dev ## Do imports point down only, without circles? (import-linter)
	@.venv/bin/python -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo

fix: $(STAMPS)/dev ## Format the code, and mend what ruff can mend
	@$(RUN) ruff check --fix $(SOURCES)
	@$(RUN) ruff format $(SOURCES)
	@.venv/bin/clang-format -i $(CPP)

changes: $(STAMPS)/dev ## List the public names that changed since the last release (griffe)
	@.venv/bin/python tools/public_changes.py

native: $(STAMPS)/all ## Compile the kernels of native/ (the other commands do it by themselves where they have changed)
	$(compile)

docs: $(STAMPS)/dev $(STAMPS)/native ## Write the pages made from docstrings (docs/mechanisms, docs/nn.md), and build the site in out/site
	@.venv/bin/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --quiet --strict
	@echo 'Open out/site/index.html in a browser; no server and no network are needed.'

wheel: $(STAMPS)/dev ## Build the wheel in out/wheel, and try it with its kernels, without, and with each extra (some minutes)
	@rm -rf out/wheel
	@$(RUN) nox -s kernels pure extras \
	  --python $$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

wheels: $(STAMPS)/dev ## Build the wheels of all platforms and the sdist in dist, for a release (some minutes)
	@$(RUN) nox -s wheels

notebooks: $(STAMPS)/dev $(STAMPS)/native $(STAMPS)/models ## Run the notebooks of examples, and write them and their pages (five minutes)
	@.venv/bin/python docs/notebooks.py

bench: $(STAMPS)/models $(STAMPS)/peers $(STAMPS)/dev $(STAMPS)/native ## Measure speed on this machine, and write table and figures (20 minutes; leave it alone)
	@mkdir -p benchmarks/results out
	@PYTHONPATH=$(PEERS) .venv/bin/regard bench --out out/bench.json
	@mv out/bench.json $(RESULTS)
	@.venv/bin/python benchmarks/table.py $(MEASURED)

bench-check: $(STAMPS)/all $(STAMPS)/native ## Has anything become slower by a quarter than in benchmarks/results? (a minute or two)
	@mkdir -p out
	@if [ -n "$(MEASURED)" ]; then \
	  .venv/bin/regard bench $(CHECKED) --quick $(MEASURED:%=--compare %) --out out/bench-check.json; else \
	  echo 'there is no $(RESULTS): nothing to compare the speed of this machine with'; fi

architectures: $(STAMPS)/dev $(STAMPS)/native ## Watch a tiny model of every architecture of transformers (half an hour; resumes), and write its table
	@OMP_NUM_THREADS=1 .venv/bin/python benchmarks/architectures.py
	@OMP_NUM_THREADS=1 .venv/bin/python benchmarks/architectures.py --table

clean: ## Remove .venv and everything that was made
	rm -rf .venv build dist out src/regard/backends/native/lib .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +

# The set-up, step by step. It talks on the standard error stream: what `make look` prints can be piped on.

# `pip install` compiles the kernels, of which it shows nothing (hatch_build.py), or leaves the reason why it did not.
COMPILES := This compiles its kernels too: half a minute, and 100 MB for a compiler that is not kept
define compiled
@if [ -e src/regard/backends/native/lib/absent.txt ]; then \
  echo "regard runs without its kernels, and slower: $$(cat src/regard/backends/native/lib/absent.txt)" >&2; fi
@printf '%s' '$(CURDIR)' > $(STAMPS)/native
endef
# What tests regard includes the compiler, and compiles in seconds.
define compile
$(SAY) 'Compiling the kernels (half a minute at most)'
@if .venv/bin/python -c 'import ziglang' 2>/dev/null; then .venv/bin/python native/build.py >&2; else \
  $(PIP) --no-deps -e . >&2 || echo 'regard runs without its kernels, and slower, until `make native` succeeds' >&2; fi
$(compiled)
endef

$(STAMPS)/python:
	@python= ; for one in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
	  if [ -n "$$one" ] && "$$one" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python=$$one; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "regard needs Python 3.11 or newer, and this machine has $$(python3 --version 2>/dev/null || echo none):" \
	    "install one (apt-get install python3 python3-venv), or name it with PYTHON=/path/to/python3" >&2; exit 2; fi; \
	if [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1; then :; else \
	  if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    echo "$$python cannot make virtual environments: install them with apt-get install python3-venv" \
	      "(for a Python other than the system's: python$$version-venv)" >&2; exit 2; fi; \
	  echo "1 of 3: making .venv with $$("$$python" --version) (seconds)" >&2; \
	  "$$python" -m venv .venv; fi
	@mkdir -p $(STAMPS)
	@printf '%s' '$(CURDIR)' > $@

$(STAMPS)/all: $(STAMPS)/python pyproject.toml constraints.txt $(call moved,$(STAMPS)/all)
	$(SAY) '2 of 3: installing PyTorch and regard with its extras (the first time a few minutes: PyTorch is 190 MB, or 2.7 GB with CUDA)' \
	  '$(COMPILES)'
	@$(PIP) -e '.[all]' >&2
	$(compiled)
	@printf '%s' '$(CURDIR)' > $@

$(STAMPS)/dev: $(STAMPS)/python pyproject.toml constraints.txt $(call moved,$(STAMPS)/dev)
	$(SAY) 'Installing PyTorch, regard with its extras, and what tests it (the first time a few minutes)' \
	  '$(COMPILES)'
	@$(PIP) -e '.[dev]' >&2
	$(compiled)
	@printf '%s' '$(CURDIR)' > $(STAMPS)/all
	@printf '%s' '$(CURDIR)' > $@

$(STAMPS)/native: $(KERNELS) | $(STAMPS)/all
	$(compile)

$(STAMPS)/models: src/regard/hub/catalogue.py src/regard/render/fonts.py | $(STAMPS)/all
	$(SAY) '3 of 3: getting three small real models and a font for Chinese figures (270 MB, a minute or so)'
	@.venv/bin/regard models get >&2
	@printf '%s' '$(CURDIR)' > $@

$(STAMPS)/peers: benchmarks/peers.txt | $(STAMPS)/all
	$(SAY) 'Installing what speed is compared with, apart from all else (a minute)'
	@rm -rf $(PEERS)
	@$(PIP) --no-deps --target $(PEERS) -r benchmarks/peers.txt >&2 || \
	  grep -v '^#' benchmarks/peers.txt | while read -r one; do \
	    $(PIP) --no-deps --target $(PEERS) "$$one" >&2 || echo "$$one cannot be installed: its rows will say so" >&2; done
	@printf '%s' '$(CURDIR)' > $@

.PHONY: moved
