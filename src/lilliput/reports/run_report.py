"""The report of one run: metrics, curves, samples, attention heads, settings and machine, as HTML and Markdown.

Owns: its sections and their order. Does not own: plots (`run_plots`), the history (`run_history`), machine and speed
(`run_environment`), attention (`interpret`), HTML and Markdown (`html`, `markdown`), or studies (`studies.study_report`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.data.corpora import STORYBOOK
from lilliput.evaluation.metric_format import format_perplexity
from lilliput.model.counting import count
from lilliput.reports.document import (
    Block,
    Bullets,
    FactList,
    Gallery,
    Paragraph,
    QuotedText,
    ReportDocument,
    Section,
    Table,
)
from lilliput.reports.formatting import counted, duration, fixed, format_value, listed
from lilliput.reports.plot_style import finish, styled
from lilliput.reports.report_files import REPORT, write_document
from lilliput.reports.run_environment import training_blocks
from lilliput.reports.run_history import HISTORY, history_csv, history_table, run_history
from lilliput.reports.run_plots import draw_run
from lilliput.reports.sample_section import find_samples, sample_blocks, save_samples
from lilliput.settings.loading import config_from_dict
from lilliput.storage.atomic_files import write_whole
from lilliput.storage.checkpoints import CONFIG
from lilliput.storage.dotted_names import flatten
from lilliput.storage.run_folders import Run, describe

if TYPE_CHECKING:
    from lilliput.decoding.writer import Sample, Writer
    from lilliput.settings.tree import Config

SAMPLES, SEED = 3, 1001  # the same texts that training prints at its end
TOKENS = 20  # of the text whose attention is drawn, so that labels stay readable
HEADS, LISTED = 4, 32  # numbers of heads that are drawn, and listed in the table


def write_run_report(run: Run, out: Path | None = None) -> tuple[Path, Path]:
    """Write HTML and Markdown, by default to the run's folder. The same run gives the same bytes."""
    place, samples = out or run.folder / REPORT, find_samples(run)
    written = write_document(describe_run(run, samples), place)
    save_samples(run, samples)
    if rows := run_history(run.metrics()):
        write_whole(place.with_name(HISTORY if out is None else f"{place.stem}-{HISTORY}"), history_csv(rows))
    return written


def describe_run(run: Run, samples: dict[str, Any] | None = None) -> ReportDocument:
    """Return the report. `samples` is the result of `find_samples`; None leaves its section out."""
    about, events = describe(run, verify=False), run.metrics()
    config = config_from_dict(about["config"], str(run.folder / CONFIG))
    sections = [
        Section("Results", result_blocks(about, config)),
        Section("Test sets", test_set_blocks(about)),
        Section("Warnings", warning_blocks(events)),
        Section("Speed and machine", training_blocks(events, run.last.machine() if run.last else {})),
        Section("Training", [Gallery(pictures)] if (pictures := draw_run(events)) else []),
        Section("History", [history_table(rows)] if (rows := run_history(events)) else []),
        *text_sections(run, config, samples),
        Section("Checkpoints and parameters", size_blocks(about, config)),
        Section(
            "Settings",
            [FactList([(name, format_value(value)) for name, value in flatten(about["config"]).items()])],
        ),
    ]
    shape = config.model
    kind = {"language": "A language model", "classifier": "A classifier", "both": "A language model and classifier"}[
        shape.task
    ]
    size = f"{counted(shape.layers, 'layer')}, dim {shape.dim}, {counted(shape.heads, 'head')}"
    lead = f"{kind} with {size}, trained on {source_name(config)}."
    line = [
        about["state"],
        counted(about["steps"], "step"),
        f"{about['tokens_seen']:,} tokens",
        f"{duration(about['seconds'])} of training",
    ]
    return ReportDocument(run.name, lead, " · ".join(line), [section for section in sections if section.blocks])


def source_name(config: Config) -> str:
    source = config.data.source or ""
    return "the built-in storybook" if source == STORYBOOK else Path(source).name


def result_blocks(about: dict[str, Any], config: Config) -> list[Block]:
    found, parameters = about["validation"], count(config.model, config.vectors).parameters
    facts = quality(found) if found else []
    facts += [("parameters", f"{parameters.total:,}"), ("training time", duration(about["seconds"]))]
    facts += [("tokens seen", f"{about['tokens_seen']:,}")]
    if found is None:
        return [Paragraph("The run has no evaluation yet.", warning=True), FactList(facts, large=True)]
    amounts = [f"{found[name]:,} {name}" for name in ("tokens", "documents") if found[name]]
    split = "the whole validation split" if found["whole"] else "a sample of the validation split"
    sentence = f"Evaluated on {split} ({', '.join(amounts)}) with the weights of step {found['weights']:,}."
    if found["floor"]:
        over = found["bits_per_byte"] / found["floor"] - 1
        sentence += (
            f" A perfect model needs {found['floor']:.4f} bits per byte (the floor); this model needs {over:.1%} more."
        )
    return [FactList(facts, large=True), Paragraph(sentence)]


def quality(found: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [("validation loss", f"{found['loss']:.4f}")]
    if found["accuracy"] is not None:
        facts.append(("accuracy", f"{found['accuracy']:.1%}"))
    if found["perplexity"] is not None:
        facts.append(("perplexity", format_perplexity(found["perplexity"])))
    if found["bits_per_byte"] is not None:
        facts.append(("bits per byte", f"{found['bits_per_byte']:.4f}"))
    if found["floor"]:
        facts.append(("floor, bits per byte", f"{found['floor']:.4f}"))
    return facts


def test_set_blocks(about: dict[str, Any]) -> list[Block]:
    if not about["tests"]:
        return []
    columns = {
        "loss": ".4f",
        "perplexity": ",.2f",
        "bits_per_byte": ".4f",
        "accuracy": ".1%",
        "tokens": ",",
        "documents": ",",
    }
    known = [name for name in columns if any(found[name] is not None for found in about["tests"].values())]
    rows = [
        [test, *("–" if found[name] is None else format(found[name], columns[name]) for name in known)]
        for test, found in about["tests"].items()
    ]
    note = "Each test set is evaluated once, in full, at the end of training, with the weights of the best validation loss."
    return [Table(["test set", *(name.replace("_", " ") for name in known)], rows, note=note)]


def warning_blocks(events: Sequence[dict[str, Any]]) -> list[Block]:
    found = [(f"Step {event['step']:,}:", event["text"]) for event in events if event["event"] == "warning"]
    return [Bullets(found)] if found else []


# Sections that require the model --------------------------------------------------------------------------------------


def text_sections(run: Run, config: Config, with_references: dict[str, Any] | None) -> list[Section]:
    """Return samples of a language model and the attention of its heads; an empty list before the first checkpoint."""
    if config.model.task == "classifier" or not run.checkpoints():
        return []
    from lilliput.decoding.writer import load

    writer = load(run.folder)
    samples = writer.samples([config.generate.prompt] * SAMPLES, seed=SEED)
    texts = [
        QuotedText(
            (sample.prompt + sample.text).strip(), f"Sample {number} of {SAMPLES}, {counted(sample.tokens, 'token')}"
        )
        for number, sample in enumerate(samples, start=1)
    ]
    prompt = config.generate.prompt
    note = f"Generated with the run's generate.* settings, {f'from the prompt “{prompt}”' if prompt else 'without a prompt'}."
    return [
        Section("Samples", [Paragraph(note), *texts]),
        Section("Samples with references", sample_blocks(with_references) if with_references else []),
        Section("Attention heads", head_blocks(writer, samples[0])),
    ]


def head_blocks(writer: Writer, sample: Sample) -> list[Block]:
    """Return the scores of every head with uniform attention as a reference, and the layer with the lowest entropy."""
    from lilliput.interpret import capture_text, draw_heads
    from lilliput.interpret.head_score_definitions import SCORES
    from lilliput.interpret.head_scores import Tally, merge_even

    tokenizer = writer.tokenizer
    text = tokenizer.decode(tokenizer.encode(sample.prompt + sample.text)[: TOKENS - 1])
    if len(writer.encode_prompt(text)) < 3:  # attention of fewer tokens is trivial
        return []
    attention = capture_text(writer, text, title="")
    tally = Tally().add(attention)
    heads = tally.heads()
    sharpest = sorted(heads, key=lambda one: one.scores["entropy"] or 0.0)
    kept = [one for one in heads if one in sharpest[:LISTED]]
    named = [(f"layer {one.layer}, head {one.head}", one) for one in kept]
    named += [(f"{name_layers(layers)}, uniform", one) for layers, one in merge_even(tally.even())]
    rows = [
        [name, *("–" if value is None else fixed(value, 2) for value in one.scores.values())] for name, one in named
    ]
    layer = sharpest[0].layer
    chosen = sorted([one.head for one in sharpest if one.layer == layer and one.head is not None][:HEADS])
    drawing = draw_heads(attention, layer, chosen)
    words = re.sub(r"\s+", " ", text).strip()
    alt = f"Heat maps of the attention in layer {layer}, heads {', '.join(map(str, chosen))}, over: {words}"
    caption = f"Attention weights of layer {layer}, which has the head with the lowest entropy. "
    caption += "“lilliput attention” shows all heads."
    with styled():
        picture = finish(drawing, "attention", alt, caption, paper=True)
    fewer = f"The {LISTED} of {len(heads)} heads with the lowest entropy. " if len(kept) < len(heads) else ""
    note = (
        f"{fewer}Scores over the first {len(attention.tokens)} tokens of sample 1. Entropy is in bits, distance in tokens, the "
        "others are mean weights; docs/attention.md defines them. “uniform” gives the scores of equal weights on all visible "
        "tokens. A dash means that no token could be scored. The scores describe a head; they do not prove its function."
    )
    return [Gallery([picture]), Table(["head", *(score.title for score in SCORES.values())], rows, note=note)]


def name_layers(layers: Sequence[int] | None) -> str:
    if layers is None:
        return "all layers"
    return f"{'layer' if len(layers) == 1 else 'layers'} {listed([str(layer) for layer in layers])}"


def size_blocks(about: dict[str, Any], config: Config) -> list[Block]:
    """Return the checkpoints and the parameter counts."""
    facts = []
    for checkpoint in about["checkpoints"]:
        roles = [role for role in ("best", "last") if checkpoint[role]]
        size = f"{checkpoint['bytes'] / 1e6:.1f} MB"
        facts.append((f"checkpoint {checkpoint['name']}", ", ".join([size, *roles])))
    counts = count(config.model, config.vectors)
    facts += [(f"parameters, {part}", f"{n:,}") for part, n in dataclasses.asdict(counts.parameters).items()]
    facts.append(("FLOPs per token", f"{counts.flops_per_token:,}"))
    return [FactList(facts)]
