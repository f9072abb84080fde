"""`lilliput train RECIPE --dry-run`: print the length, time and memory of a training run.

Owns: the output. Does not own: the estimates (`training.run_estimate`), or the counts of a model (`model.counting`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lilliput.cli.output import print_json, progress, readable, stderr_console, stdout_console

if TYPE_CHECKING:
    from lilliput.settings.tree import Config
    from lilliput.training.run_estimate import RunEstimate


def print_costs(config: Config, processes: int, as_json: bool, verbose: bool) -> int:
    """Print parameters, FLOPs, length, memory and time; with `verbose` or as JSON also all settings. Nothing is written."""
    from lilliput.devices import choose_device
    from lilliput.model.counting import count, recomputed_flops
    from lilliput.settings.loading import config_to_dict
    from lilliput.storage.dotted_names import flatten
    from lilliput.training.cost_estimate import tensor_bytes
    from lilliput.training.estimate_data import open_estimate_data
    from lilliput.training.run_estimate import estimate_run
    from lilliput.training.schedules import warm_up_note

    device = choose_device(config.train.device)
    with progress(stderr_console()) as report, open_estimate_data(config, report) as data:
        found = estimate_run(data, device, processes, report)
    config, budget = found.config, found.config.train
    counted = count(config.model, config.vectors)
    tokens_per_step = budget.batch * budget.accumulate * config.model.context
    again = recomputed_flops(config.model, budget.recompute, budget.recompute_every)
    tensors, late = tensor_bytes(config, counted), warm_up_note(config)
    notes = [*found.notes, *([late] if late else [])]
    if as_json:
        summary = {
            "config": config_to_dict(config),
            **counted.as_dict(),
            "recomputed_flops_per_token": again,
            "tokens_per_step": tokens_per_step,
            "steps": found.steps,
            "tokens": found.tokens,
            "epochs": found.epochs,
            "memory_bytes": found.memory,
            "tensor_bytes": tensors,
            "seconds_estimate": found.seconds,
            "evaluation_seconds": found.evaluation,
            "notes": notes,
        }
        print_json(summary)
        return 0
    console = stdout_console()
    console.print("parameters  " + ", ".join(f"{part} {n:,}" for part, n in vars(counted.parameters).items()))
    recomputed = f", plus {readable(again)} to recompute" if again else ""
    console.print(
        f"FLOPs       {readable(counted.flops_per_token)} per token{recomputed}; {tokens_per_step:,} tokens per step, "
        "padding included"
    )
    console.print(f"length      {describe_length(found)}")
    more = ", plus the masks of dropout" if config.model.dropout else ""
    console.print(
        f"memory      about {readable(found.memory)}B, of which weights, gradients, optimizer and activations "
        f"{readable(tensors)}B{more}"
    )
    console.print(f"time        {describe_time(found)}")
    for note in notes:
        console.print(f"note: {note}", markup=False)
    if verbose:
        console.print()
        for name, value in flatten(config_to_dict(config)).items():
            console.print(f"{name} = {'none' if value is None else value}", markup=False)
    return 0


def describe_length(found: RunEstimate) -> str:
    if found.steps is None or found.tokens is None:
        return "depends on the length of the text"
    length = f"{found.steps:,} steps, {readable(found.tokens)} tokens"
    if found.epochs is None:
        return length
    return f"{length}, {found.epochs:,.0f} epochs" if found.epochs >= 100 else f"{length}, {found.epochs:.3g} epochs"


def describe_time(found: RunEstimate) -> str:
    if found.seconds is None:
        return "depends on the length of the text"
    evaluation = f", of which evaluation {minutes(found.evaluation)}" if found.evaluation else ""
    return f"about {minutes(found.seconds)}{evaluation}"


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} seconds"
