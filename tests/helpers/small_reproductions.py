"""A small reproduction: a run with two cells and a study, with items of every kind; `reproduced()` has run it."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path

from helpers.small_runs import MEMORY, SETTINGS
from helpers.small_studies import dotted, number, write_study
from lilliput.studies.reproduction_plan import load_plan, run_plan

STEPS = 8
FILE = """
title = "A small report"
report = "S9"
recipe = "demo"
minutes = {{ full = 2, quick = 1 }}

[[settings]]
name = "optimizer"
stated = "sgd"
setting = "optimizer.kind"
reason = "faster"

[[settings]]
name = "layers"
stated = ""
setting = "model.layers"
reason = "small"

[[runs]]
name = "base"
recipe = "mytext.txt"
budget = {{ steps = {steps} }}
measure = ["training", "overlap", "example"]
settings = {settings}
cells = {{ greedy = {{ generate.temperature = 0.0 }}, sampling = {{ generate.temperature = 1.0 }} }}
quick = {{ budget = {{ steps = 3 }}, settings = {{ evaluate.every = 1 }} }}

[[studies]]
name = "small.toml"

[[items]]
place = "Table 1"
title = "Settings of the report"
kind = "settings"

[[items]]
place = "Table 2"
title = "History"
kind = "table"
first = "step"
run = "base"
columns = [
  {{ name = "loss", metric = "validation.loss", digits = 4 }},
  {{ name = "perplexity", metric = "validation.perplexity" }},
  {{ name = "batch", metric = "batch_loss", digits = 4 }},
]
rows = [
  {{ name = "3", step = 3, values = [5.5, 200.0, 6] }},
  {{ name = "half", progress = 0.5, values = [5.5, 200.0, ""] }},
  {{ name = "500", step = 500, values = [2.0, 7.4, 2.1] }},
]

[[items]]
place = "Table 3"
title = "Strategies"
kind = "table"
run = "base"
columns = [
  {{ name = "BLEU", metric = "bleu.4", scale = 0.01, digits = 4 }},
  {{ name = "of greedy", metric = "writing.tokens", over = "greedy" }},
]
rows = [
  {{ name = "greedy", cell = "greedy", values = [0.02, 1] }},
  {{ name = "sampling", cell = "sampling", values = [0.01, "more"] }},
]

[[items]]
place = "Table 4"
title = "Sizes"
kind = "table"
run = "base"
columns = [{{ name = "parameters", digits = 0 }}]
rows = [
  {{ name = "total", metric = "parameters.total", values = [1000] }},
  {{ name = "blocks", metric = "parameters.blocks", values = [900] }},
]

[[items]]
place = "Table 5"
title = "Windows"
kind = "table"
study = "small.toml"
metric = "validation.loss"
columns = [{{ name = "loss", points = true }}]
rows = [
  {{ name = "full", cell = "full", values = [5] }},
  {{ name = "window", cell = {{ window = "4 tokens" }}, values = [5.25] }},
]

[[items]]
place = "Figure 1"
title = "Curves"
kind = "curves"
run = "base"
curves = ["loss", "learning-rate"]

[[items]]
place = "Figure 2"
title = "All evaluations"
kind = "history"
run = "base"

[[items]]
place = "Figure 3"
title = "Samples and references"
kind = "samples"
run = "base"
shown = 2

[[items]]
place = "Figure 4"
title = "Heads"
kind = "heads"
run = "base"
layer = 1
published = ["previous", "article-noun"]

[[items]]
place = "Figure 5"
title = "Maps"
kind = "maps"
run = "base"
texts = ["A bee saw", "Every owl sang of the sea"]

[[items]]
place = "Figure 6"
title = "Texts"
kind = "texts"
run = "base"
prompts = ["A bee", "Zoë"]
tokens = 5
note = "The report has other prompts."

[[items]]
place = "Figure 7"
title = "Parts and shapes"
kind = "inspection"
run = "base"

[[items]]
place = "Figure 8"
title = "Losses of the windows"
kind = "plots"
study = "small.toml"
plots = [1]

[[items]]
place = "Table 6"
title = "One prompt"
kind = "examples"
run = "base"

[[items]]
place = "Figure 9"
title = "A photograph"
kind = "absent"
reason = "no camera"

[[doubts]]
item = "Strategies"
row = "sampling"
column = "BLEU"
reason = "Too low."

[[doubts]]
item = "Texts"
reason = "Too good."

[[doubts]]
reason = "The report has no date."
"""


def write_reproduction(folder: Path, steps: int = STEPS) -> Path:
    """Write mytext.txt, the study small.toml and the reproduction mine.toml."""
    write_study(folder, extra='[quick]\nseeds = [1]\n[[plots]]\nkind = "bars"\ny = "validation.loss"')
    own = {key: number(text) for key, text in SETTINGS.items() if key != "train.steps"}
    own |= {"data.cache": str(folder / "prepared"), "measure.prompts": 3, "measure.tokens": 8}
    own |= {"measure.example": "A bee"}
    path = folder / "mine.toml"
    path.write_text(FILE.format(steps=steps, settings=dotted(own)), encoding="utf-8")
    return path


@functools.cache
def reproduced() -> Path:
    """Return the folder of a finished reproduction. Do not change it."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_reproduction(folder)
    with chdir(folder):
        assert run_plan(load_plan("mine.toml")) == []
    return folder
