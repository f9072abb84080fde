"""`lilliput train RECIPE --dry-run`: print the settings and costs of a training run.

Owns: the output. Does not own: the estimates (`training.cost_estimate`), or the counts of a model (`model.counting`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lilliput.cli.output import print_json, readable, stdout_console

if TYPE_CHECKING:
    from lilliput.settings.tree import Config


def print_costs(config: Config, as_json: bool) -> int:
    """Print settings, parameters, FLOPs, memory and time, without reading the corpus."""
    from lilliput.devices import choose_device, choose_precision, prepare_machine
    from lilliput.model.counting import count, recomputed_flops
    from lilliput.settings.loading import config_to_dict
    from lilliput.training.cost_estimate import assume_data, expected_seconds, memory_bytes
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
    from lilliput.storage.dotted_names import flatten

    console = stdout_console()
    for name, value in flatten(config_to_dict(config)).items():
        console.print(f"{name} = {'none' if value is None else value}", markup=False)
    console.print()
    console.print("parameters  " + ", ".join(f"{part} {n:,}" for part, n in vars(parameters).items()))
    recomputed = f", plus {readable(again)} to recompute" if again else ""
    console.print(
        f"FLOPs       {readable(counted.flops_per_token)} per token{recomputed}; {tokens_per_step:,} tokens per step"
    )
    more = ", plus the masks of dropout" if config.model.dropout else ""
    console.print(
        f"memory      about {readable(memory)}B for weights, gradients, optimizer and activations, besides Python and torch{more}"
    )
    known = "depends on the length of the text" if seconds is None else f"about {seconds / 60:.1f} minutes"
    console.print(f"time        {known}")
    for note in notes:
        console.print(f"note        {note}", markup=False)
    return 0
