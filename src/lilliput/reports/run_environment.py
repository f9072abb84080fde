"""Machine, versions, speed and memory of a run's training, all from its log.

Owns: the facts, and the parts of a run that was trained in several environments. Does not own: the log (`training.events`),
or the other sections of a report (`run_report`). Nothing is read from the machine that writes the report.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lilliput.reports.document import Block, FactList, Paragraph
from lilliput.reports.formatting import fixed, machine_facts

Event = Mapping[str, Any]
ENVIRONMENT = ("versions", "machine", "device_memory_bytes")


class TrainingPart(NamedTuple):
    """Consecutive steps of a run in one environment; `session` is the event that describes it, None in older logs."""

    session: Event | None
    steps: list[Event]


def training_parts(events: Sequence[Event]) -> list[TrainingPart]:
    """Return the parts of a run. Sessions in the same environment are one part; a part without a logged step is left out."""
    parts = [TrainingPart(None, [])]
    for event in events:
        if event["event"] == "session":
            before = parts[-1].session
            if before is None or any(before[name] != event[name] for name in ENVIRONMENT):
                parts.append(TrainingPart(event, []))
        elif event["event"] == "step":
            parts[-1].steps.append(event)
    return [part for part in parts if part.steps]


def training_blocks(events: Sequence[Event], machine: Mapping[str, Any]) -> list[Block]:
    """Return the facts of each part. `machine` is that of the last checkpoint, for logs that have no sessions."""
    parts = training_parts(events)
    if any(part.session for part in parts):
        machine = {}  # of an older part, only the log is known
    blocks: list[Block] = []
    for part in parts:
        if len(parts) > 1:
            first, last = part.steps[0]["step"], part.steps[-1]["step"]
            blocks.append(Paragraph(f"Logged steps {first:,} to {last:,}:"))
        blocks.append(FactList([*speed_facts(part), *environment_facts(part.session, machine)]))
    if not parts and machine:
        blocks.append(FactList(environment_facts(None, machine)))
    return blocks


def speed_facts(part: TrainingPart) -> list[tuple[str, str]]:
    """Return means over the logged steps, and the peak memory; an older log may lack some of them."""
    facts = []
    if speeds := logged(part, "tokens_per_second"):
        facts.append(("speed, mean of steps", f"{fixed(statistics.fmean(speeds), 0)} tokens/s"))
    if shares := logged(part, "share_of_peak"):
        facts.append(("share of peak FLOP/s, mean of steps", f"{statistics.fmean(shares):.1%}"))
    if part.session:
        facts.append(("peak, measured with matrix products", f"{fixed(part.session['peak_flops'] / 1e9, 1)} GFLOP/s"))
    if memory := logged(part, "memory_bytes"):
        text, available = f"{max(memory) / 1e9:.2f} GB", part.session and part.session["device_memory_bytes"]
        if available:
            text += f", {max(memory) / available:.1%} of {available / 1e9:.1f} GB"
        several = part.session and part.session["machine"].get("processes", 1) > 1
        facts.append(("peak memory of the first process" if several else "peak memory", text))
    return facts


def logged(part: TrainingPart, name: str) -> list[float]:
    return [step[name] for step in part.steps if step.get(name) is not None]


def environment_facts(session: Event | None, machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    if session is None:
        return machine_facts(machine)
    versions = [(f"{name} version", text) for name, text in session["versions"].items()]
    return [*machine_facts(session["machine"]), *versions]
