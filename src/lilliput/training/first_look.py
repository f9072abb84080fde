"""Notes before the first step: a text that is too small, and how well the weights of another run fit the text.

Owns: these sentences and their limits. Does not own: warnings during training (`training_warnings`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lilliput.data.prepare.token_files import Prepared
from lilliput.settings.tree import Config
from lilliput.storage.run_folders import RunFolder, best_validation, looks_like_run
from lilliput.training.training_warnings import uniform_loss

if TYPE_CHECKING:
    from lilliput.storage.checkpoints import Checkpoint
    from lilliput.training.loop import Trainer

FEWEST_BYTES = 20_000  # of training text; a smaller text is learnt by heart within seconds
FEWEST_DOCUMENTS = 50  # of a classifier


def text_notes(config: Config, prepared: Prepared) -> list[str]:
    """Return notes about a training text from which little can be learned."""
    return list(filter(None, (large_validation_note(config, prepared), small_text_note(config, prepared))))


def large_validation_note(config: Config, prepared: Prepared) -> str | None:
    """Return a note if more than half of the text is used for validation."""
    data, splits = config.data, prepared.manifest["splits"]
    train, validation = splits["train"]["bytes"], splits["validation"]["bytes"]
    if data.validation_source is not None or data.validation_share <= 0.5 or validation <= train:
        return None
    return (
        f"{validation / (train + validation):.0%} of the text is used for validation (data.validation_share "
        f"{data.validation_share:g}); set data.validation_share to 0.1 to train on more of it"
    )


def small_text_note(config: Config, prepared: Prepared) -> str | None:
    """Return a note if the training text is too small to learn from."""
    found = prepared.manifest["splits"]["train"]
    if config.model.task == "classifier":
        if found["documents"] >= FEWEST_DOCUMENTS:
            return None
        return (
            f"{found['documents']:,} training documents are too few to learn labels from; add documents, a few hundred per "
            "label if possible"
        )
    if found["bytes"] >= FEWEST_BYTES:
        return None
    return (
        f"{found['bytes']:,} bytes of training text are too few to learn a language from: the model will repeat the text; add "
        "text (1 MB or more is a good start), or start from the weights of another run"
    )


def starting_notes(trainer: Trainer[Any], prepared: Prepared, origin: Checkpoint) -> list[str]:
    """Compare the text with that of the run whose weights are used; return notes. All processes must call this."""
    loss, guess = (
        trainer.evaluator.measure_rows("validation", trainer.plan.samples["validation"]).loss,
        uniform_loss(trainer.config),
    )
    notes = []
    if trainer.config.model.task != "classifier":
        here, there = prepared.manifest["splits"]["train"]["bytes_per_token"], bytes_per_token(origin)
        before = "" if there is None else f", {there:.2f} on the text of the run"
        notes.append(f"the tokenizer of the run has {here:.2f} bytes per token on this text{before}")
    sentence = f"starting loss {loss:.3f} on the validation sample"
    if guess is not None:
        sentence += f" (uniform guessing: {guess:.3f})"
        if loss > guess:
            sentence += "; the weights do not fit this text: train a new model with its own tokenizer"
    return [*notes, sentence]


def bytes_per_token(checkpoint: Checkpoint) -> float | None:
    """Return the bytes per token of the validation text of the run that contains the checkpoint, from its log."""
    folder = checkpoint.folder.absolute().parents[1]
    found = best_validation(RunFolder(folder).metrics()) if looks_like_run(folder) else None
    if not found or not found["perplexity"] or not found["bits_per_byte"]:
        return None
    return math.log2(found["perplexity"]) / float(found["bits_per_byte"])
