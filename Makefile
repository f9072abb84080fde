# The two commands of a newcomer are `make demo` and `make test`. Python 3.11 or newer is all they need.
# Everything is installed into .venv; nothing outside this folder is touched, but that `make test` needs a browser for the
# pages: where there is none it installs Debian's chromium with apt-get, as root or with sudo.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# The shipped recipes and the tests look for real texts here, where they exist; without them those tests are skipped.
SHARED := $(wildcard ../shared/data)
ifneq ($(SHARED),)
export LILLIPUT_DATA ?= $(abspath $(SHARED))
endif

.PHONY: help setup demo test browser torture bench studies gallery schema clean

help:
	@echo "make demo     set up, train the built-in recipe, evaluate it, write stories and a report (about six minutes)"
	@echo "make test     set up, lint, types, every check (under 15 minutes on two cores)"
	@echo "make setup    the environment in .venv, and nothing else"
	@echo "make torture  kill a training process at 100 random moments and compare (by hand, long)"
	@echo "make bench    the benchmarks, with the peers they are measured against (by hand, long)"
	@echo "make studies  the shipped comparisons, with their reports in docs/studies (by hand, hours; goes on where it stopped)"
	@echo "make gallery  pictures of the reports and of an attention page, in docs/gallery"
	@echo "make schema   the JSON schema of recipes, from the types"

setup: $(VENV)/.runtime

# torch comes first and pinned: what depends on it then finds it, and pulls no other build.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(INSTALL) torch
	@$(INSTALL) -e ".[baselines,data,vectors]"
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	@$(INSTALL) -e ".[test]"
	@touch $@

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
BROWSER := $(strip $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))
browser:
ifeq ($(BROWSER),)
	@echo "installing chromium, which the tests of pages need ..."
	@$(SUDO) apt-get update -qq
	@DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq chromium >/dev/null
endif

# llama-cpp-python compiles llama.cpp for this very processor, which takes minutes; what only images and sounds need is left out.
$(VENV)/.bench: $(VENV)/.test
	@CMAKE_ARGS="-DLLAVA_BUILD=OFF" $(INSTALL) -e ".[bench]"
	@touch $@

demo: setup
	$(BIN)/lilliput train demo --overwrite
	$(BIN)/lilliput report demo

test: $(VENV)/.test browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

torture: setup
	$(BIN)/python tests/torture.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/techniques.py
	$(BIN)/python benchmarks/preparing.py
	$(BIN)/python benchmarks/vectors.py
	$(BIN)/python benchmarks/duplicates.py
	$(BIN)/python benchmarks/decoding.py

# Each goes on where it stopped, and is skipped when it is done; table and report are kept in docs/studies.
STUDIES := window decoding accumulation checkpointing kv-cache norm positions embeddings tokenizers optimizers width-depth scaling
studies: $(addprefix study-,$(STUDIES))

study-%: setup
	$(BIN)/lilliput study $*
	@mkdir -p docs/studies
	@$(BIN)/lilliput report $* --out docs/studies/$*.html
	@cp runs/$*/table.csv docs/studies/$*.csv

# Needs the report of the demo and a browser.
gallery: $(VENV)/.test browser
	$(BIN)/lilliput attention demo --generate 40 "There was once a fox who lived near a river." --out runs/demo/attention
	$(BIN)/python docs/make_gallery.py demo=runs/demo/report.html attention=runs/demo/attention/attention.html \
	  $(foreach study,$(STUDIES),$(if $(wildcard docs/studies/$(study).html),$(study)=docs/studies/$(study).html))

schema: setup
	$(BIN)/lilliput info --schema > recipes/recipe.schema.json

clean:
	rm -rf $(VENV) build dist
