"""`lilliput train RECIPE --dry-run`: what would be trained, and what it costs.

Owns: what is assumed of data that nobody has read yet, the time and memory of a run, and how they are told.
Does not own: what a model costs by itself (`model.counting`), or how fast the machine is (`devices`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lilliput.cli.output import figures, print_json, readable
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.model.counting import Count
    from lilliput.settings.tree import Config

REACHED = 0.7  # of the machine's peak, by small models


def tell_costs(config: Config, as_json: bool) -> int:
    """Settings, parameters, FLOPs, memory and time; no text is read."""
    from lilliput.devices import choose_device, choose_precision, prepare_machine
    from lilliput.model.counting import count, recomputed_flops
    from lilliput.settings.loading import config_to_dict
    from lilliput.training.schedules import warm_up_note

    config = assume_data(config)
    counted, budget = count(config.model, config.vectors), config.train
    parameters = counted.parameters
    tokens_per_step = budget.batch * budget.accumulate * config.model.context
    prepare_machine(budget.threads)
    precision = choose_precision(budget.precision, choose_device(budget.device))
    again = recomputed_flops(config.model, budget.recompute, budget.recompute_every)
    seconds = expected_seconds(config)
    memory = memory_bytes(config, counted)
    notes = [note for note in (precision.note, warm_up_note(config)) if note]
    if as_json:
        found = {
            "config": config_to_dict(config),
            **counted.as_dict(),
            "recomputed_flops_per_token": again,
            "tokens_per_step": tokens_per_step,
            "memory_bytes": memory,
            "seconds_estimate": seconds,
            "notes": notes,
        }
        print_json(found)
        return 0
    from lilliput.settings.dotted import flatten

    console = figures()
    for name, value in flatten(config_to_dict(config)).items():
        console.print(f"{name} = {'none' if value is None else value}", markup=False)
    console.print()
    console.print("parameters  " + ", ".join(f"{part} {n:,}" for part, n in vars(parameters).items()))
    recomputed = f", and {readable(again)} to recompute" if again else ""
    console.print(
        f"FLOPs       {readable(counted.flops_per_token)} per token{recomputed}; {tokens_per_step:,} tokens a step"
    )
    more = ", and more for dropout" if config.model.dropout else ""  # its masks, and what attention keeps with it
    console.print(f"memory      about {readable(memory)}B{more}")
    console.print(f"time        about {seconds / 60:.1f} minutes")
    for note in notes:
        console.print(f"note        {note}", markup=False)
    return 0


def expected_seconds(config: Config, flops: float | None = None) -> float:
    """Of training on this machine: the minutes of its budget, or by `flops`, else those of its steps or tokens."""
    from lilliput.devices import choose_device, choose_precision, known_flops
    from lilliput.model.counting import count, recomputed_flops

    train, model = config.train, config.model
    if train.minutes is not None:
        return 60 * train.minutes
    if flops is None:
        tokens = train.tokens or (train.steps or 0) * train.batch * train.accumulate * model.context
        again = recomputed_flops(model, train.recompute, train.recompute_every)
        flops = tokens * (count(model, config.vectors).flops_per_token + again)
    device = choose_device(train.device)
    return flops / (REACHED * known_flops(device, choose_precision(train.precision, device).dtype))


def assume_data(config: Config) -> Config:
    """Without model.vocab_size, the tokenizer's is assumed; without model.classes, two. Rows that are learned for words
    without a vector are known only when the words are."""
    from lilliput.settings.loading import replace

    if config.model.vocab_size is None:
        config = replace(config, {"model.vocab_size": expected_vocabulary(config)})
    if config.model.task != "language" and config.model.classes is None:
        config = replace(config, {"model.classes": 2})  # known when the labels are read; a class costs next to nothing
    if config.vectors.source is not None and config.vectors.width is None:
        from lilliput.data.vectors import expected_width

        config = replace(config, {"vectors.width": expected_width(config.vectors.source)})
    return config


def expected_vocabulary(config: Config) -> int:
    """What the tokenizer will have at most; only one that exists already is asked."""
    from lilliput.data.tokenizer_choices import TOKENIZERS

    tokenizer = config.tokenizer
    if tokenizer.path is not None or tokenizer.vocabulary is not None:
        from lilliput.data.tokenizers import make_tokenizer

        return make_tokenizer(tokenizer, []).vocab_size
    size = TOKENIZERS[tokenizer.kind].vocab_size(tokenizer)
    if size is None:
        what = f"how many {tokenizer.kind}s there are is known only when the text has been read"
        raise UserError(what, "model.vocab_size", "--model.vocab_size or --tokenizer.max_vocabulary with a number")
    return size


def memory_bytes(config: Config, counted: Count) -> int:
    """Weights, their gradients, the optimizer's moments and the average; then what one micro-batch needs for its backward.

    All in the type of the weights: where products are of 16 bits, activations are less than is told here; with dropout more.
    """
    from lilliput.model.counting import activations
    from lilliput.training.choices import OPTIMIZERS

    parameters, train = counted.parameters, config.train
    per_token = activations(config.model, train.recompute, train.recompute_every).most
    numbers = parameters.total + parameters.trainable + OPTIMIZERS[config.optimizer.kind].moments(config, parameters)
    numbers += parameters.trainable if config.optimizer.average is not None else 0
    numbers += train.batch * config.model.context * per_token
    return numbers * (8 if train.precision == "float64" else 4)
