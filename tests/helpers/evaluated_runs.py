"""Runs for tests of evaluation, trained once: unknown words, labels, both, storybook. Do not change them."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from helpers.labelled_corpora import labelled_changes
from helpers.small_runs import MEMORY, small_config, train_small

VOCABULARY = "30"  # fewer than the words of the text


@functools.cache
def judged_runs() -> Path:
    """Return a folder with runs/{words,classifier,both,storybook}, said.tsv (training) and heard.tsv (test). In runs/words half
    of the text is for validation; its last document is also in training."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    labelled = labelled_changes(folder)
    train_small(small_config(folder, "classifier", **labelled))
    train_small(small_config(folder, "both", **labelled | {"model__task": "both"}))
    source, held = folder / "mytext.txt", folder / "held.txt"
    documents = source.read_text("utf-8").split("\n<|endoftext|>\n")
    held.write_text(
        "\n<|endoftext|>\n".join([f"The Quagga met {text}" for text in documents[:3]] + documents[-1:]), "utf-8"
    )
    words = {"tokenizer__kind": "word", "tokenizer__max_vocabulary": VOCABULARY, "data__validation_source": str(held)}
    train_small(small_config(folder, "words", **words, data__tests=f"all={source},held={held}"))
    train_small(small_config(folder, "storybook", data__source="storybook", data__documents="10", train__steps="3"))
    return folder
