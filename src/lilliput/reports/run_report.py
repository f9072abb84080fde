"""The report of one run: metrics, curves, samples, attention heads, settings and machine, as HTML and Markdown.

Owns: its sections and their order. Does not own: plots (`run_plots`), the history (`run_history`), machine and speed
(`run_environment`), samples with references (`sample_section`), heads (`head_section`), HTML and Markdown (`html`,
`markdown`), or studies (`studies.study_report`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.data.corpora import STORYBOOK
from lilliput.decoding.mixture_weights import describe_mixture
from lilliput.errors import UserError
from lilliput.evaluation.metric_format import format_limit, format_perplexity
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
from lilliput.reports.formatting import counted, duration, format_value
from lilliput.reports.head_section import find_heads, head_blocks, save_heads
from lilliput.reports.report_files import REPORT, write_document
from lilliput.reports.run_environment import training_blocks
from lilliput.reports.run_history import HISTORY, history_csv, history_table, run_history
from lilliput.reports.run_plots import draw_run
from lilliput.reports.sample_section import find_samples, sample_blocks, save_samples
from lilliput.settings.loading import config_from_dict
from lilliput.storage.atomic_files import write_whole
from lilliput.storage.checkpoints import CONFIG
from lilliput.storage.dotted_names import flatten
from lilliput.storage.run_folders import RunFolder, describe

if TYPE_CHECKING:
    from lilliput.decoding.writer import Writer
    from lilliput.settings.tree import Config, GenerateSettings

# Settings without an effect on the storybook.
OF_FILES = tuple(
    f"data.{name}"
    for name in ("files", "validation_share", "separator", "line_ends", "text_field", "labelled", "label_field")
)
SAMPLES, SEED = 3, 1001  # the same texts that training prints at its end, which does not use generate.mix_ngram


def write_run_report(run: RunFolder, out: Path | None = None) -> tuple[Path, Path]:
    """Write HTML and Markdown, by default to the run's folder. The same run gives the same bytes."""
    place, samples, heads = out or run.folder / REPORT, find_samples(run), find_heads(run)
    written = write_document(describe_run(run, samples, heads), place)
    save_samples(run, samples)
    save_heads(run, heads)
    if rows := run_history(run.metrics()):
        write_whole(place.with_name(HISTORY if out is None else f"{place.stem}-{HISTORY}"), history_csv(rows))
    return written


def describe_run(
    run: RunFolder, samples: dict[str, Any] | None = None, heads: dict[str, Any] | None = None
) -> ReportDocument:
    """Return the report. `samples` and `heads` are the results of `find_samples` and `find_heads`; None omits them."""
    about, events = describe(run, verify=False), run.metrics()
    config = config_from_dict(about["config"], str(run.folder / CONFIG))
    sections = [
        Section("Results", result_blocks(about, config)),
        Section("Test sets", test_set_blocks(about)),
        Section("Warnings", warning_blocks(events)),
        Section("Speed and machine", training_blocks(events, run.last.machine() if run.last else {})),
        Section("Training", [Gallery(pictures)] if (pictures := draw_run(events)) else []),
        Section("History", [history_table(rows)] if (rows := run_history(events)) else []),
        *text_sections(run, config, samples, heads),
        Section("Checkpoints and parameters", size_blocks(about, config)),
        Section(
            "Settings",
            [FactList([(name, format_value(value)) for name, value in effective_settings(about["config"], config)])],
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


def effective_settings(settings: dict[str, Any], config: Config) -> list[tuple[str, Any]]:
    """Return the settings by dotted names; those that only apply to files are left out if all texts are the storybook's."""
    sources = {config.data.source, config.data.validation_source or STORYBOOK, *config.data.tests}
    unused = OF_FILES if sources == {STORYBOOK} else ()
    return [(name, value) for name, value in flatten(settings).items() if name not in unused]


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
    limited = (
        [] if about["limited_at"] is None else [Paragraph(f"The run was {format_limit(about['limited_at'])}.", True)]
    )
    return [FactList(facts, large=True), Paragraph(sentence), *limited]


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


def text_sections(
    run: RunFolder, config: Config, with_references: dict[str, Any] | None, heads: dict[str, Any] | None
) -> list[Section]:
    """Return samples of a language model and the attention of its heads; an empty list before the first checkpoint."""
    if config.model.task == "classifier" or not run.checkpoints():
        return []
    from lilliput.decoding.writer import load

    writer = load(run.folder)
    settings, mixture = resolve_mixture(writer)
    samples = writer.samples([config.generate.prompt] * SAMPLES, seed=SEED, settings=settings)
    texts = [
        QuotedText(
            (sample.prompt + sample.text).strip(), f"Sample {number} of {SAMPLES}, {counted(sample.tokens, 'token')}"
        )
        for number, sample in enumerate(samples, start=1)
    ]
    prompt = config.generate.prompt
    note = f"Generated with the run's generate.* settings, {f'from the prompt “{prompt}”' if prompt else 'without a prompt'}."
    return [
        Section("Samples", [Paragraph(f"{note} {mixture}".strip()), *texts]),
        Section("Samples with references", sample_blocks(with_references) if with_references else []),
        Section("Attention heads", head_blocks(writer, samples[0], heads)),
    ]


def resolve_mixture(writer: Writer) -> tuple[GenerateSettings, str]:
    """Return the run's settings, and a sentence about the mixture with n-grams if they have one.

    A report does not prepare data: without it, the texts are generated by the model alone.
    """
    settings = writer.config.generate
    if settings.mix_ngram is None:
        return settings, ""
    try:
        writer.ngrams.open(build=False)
        mixture = writer.mixture_for(settings)
    except UserError as error:
        alone = dataclasses.replace(settings, mix_ngram=None)
        return alone, f"generate.mix_ngram is not applied, the texts are those of the model alone: {error.what}."
    assert mixture is not None
    return settings, f"The texts are generated by a mixture: {describe_mixture(mixture.as_dict())}."


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
