# Start with `make demo` or `make test`. Both require Python 3.11 or newer.
# Everything is installed into .venv. One exception: `make test` needs a browser; if there is none, it installs Debian's
# chromium with apt-get, as root or with sudo.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Data for the shipped recipes and the tests; tests that need missing data are skipped.
SHARED := $(wildcard ../shared/data)
ifneq ($(SHARED),)
export LILLIPUT_DATA ?= $(abspath $(SHARED))
endif

.PHONY: help setup demo test browser torture bench studies reproductions gallery schema clean

help:
	@echo "make demo     install, train the demo recipe, evaluate it, generate stories, write a report (about six minutes)"
	@echo "make test     install, lint, type-check and run all tests (under 15 minutes on two cores)"
	@echo "make setup    install Lilliput and its dependencies into .venv"
	@echo "make torture  kill a training process at 100 random moments, resume and compare (long)"
	@echo "make bench    run the benchmarks of Lilliput and its peers (long)"
	@echo "make studies  run the shipped studies and write their reports to docs/studies (hours; can be resumed)"
	@echo "make reproductions  repeat the five published reports and write their documents to docs/reproductions (hours)"
	@echo "make gallery  write screenshots of the reports and of an attention page to docs/gallery"
	@echo "make schema   write the JSON schema of recipes"
	@echo "make clean    delete .venv and build files"

setup: $(VENV)/.runtime

# The pinned torch is installed first, so that no dependency pulls another build.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(INSTALL) torch
	@$(INSTALL) -e ".[baselines,data,export,vectors]"
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	@$(INSTALL) -e ".[test]"
	@touch $@

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
BROWSER := $(strip $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))
browser:
ifeq ($(BROWSER),)
	@echo "installing chromium for the tests of web pages ..."
	@$(SUDO) apt-get update -qq
	@DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq chromium >/dev/null
endif

# llama-cpp-python compiles llama.cpp for this processor, which takes minutes; image and audio support is left out.
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
	$(BIN)/python benchmarks/busy_machine.py

# Each study is resumed, or skipped if it is finished; its table and report are copied to docs/studies.
STUDIES := window decoding accumulation checkpointing kv-cache norm positions embeddings tokenizers optimizers width-depth scaling
studies: $(addprefix study-,$(STUDIES))

study-%: setup
	$(BIN)/lilliput study $*
	@mkdir -p docs/studies
	@$(BIN)/lilliput report $* --out docs/studies/$*.html
	@cp runs/$*/table.csv docs/studies/$*.csv

# Each reproduction is resumed, or only rendered if it is finished; its document is copied to docs/reproductions.
REPRODUCTIONS := fasttext speeches words gpt2 course
reproductions: $(addprefix reproduction-,$(REPRODUCTIONS))

reproduction-%: setup
	$(BIN)/lilliput reproduce $*
	@mkdir -p docs/reproductions/$*-figures
	@cp runs/reproduce-$*/report-figures/*.png docs/reproductions/$*-figures/
	@sed 's#report-figures/#$*-figures/#g' runs/reproduce-$*/report.md > docs/reproductions/$*.md

# Requires the report of the demo and a browser.
gallery: $(VENV)/.test browser
	$(BIN)/lilliput attention demo --generate 40 "There was once a fox who lived near a river." --out runs/demo/attention
	$(BIN)/python docs/make_gallery.py demo=runs/demo/report.html attention=runs/demo/attention/attention.html \
	  $(foreach study,$(STUDIES),$(if $(wildcard docs/studies/$(study).html),$(study)=docs/studies/$(study).html))

schema: setup
	$(BIN)/lilliput info --schema > recipes/recipe.schema.json

clean:
	rm -rf $(VENV) build dist
