"""Tables of an evaluation, for terminals and notebooks.

Owns: the tables and sentences. Does not own: the metrics, or their JSON (`evaluation.evaluate`), or printing
(`cli.evaluate`, `evaluation_result`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lilliput.api.mixture_tables import generated_by, mixture_block
from lilliput.evaluation.metric_format import PERPLEXITY, PLAIN, SHARE, NumberForm, format_part, format_perplexity
from lilliput.evaluation.prompt_selection import describe_prompts
from lilliput.settings.loading import as_typed
from lilliput.settings.tree import GenerateSettings

MOST_CLASSES = 12  # of a printed confusion matrix
MOST_SAMPLES = 10  # in a printed table
PERPLEXITY_OF_TEXTS = (
    "perplexity under the model: exp(mean nats per token) of the tokens after the prompts, by the probabilities "
    "before logit processors"
)
NAMES = {
    "loss": "loss (nats/token)",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "bits_per_byte_spelled": "bits per byte, <unk> spelled",
    "word_perplexity": "perplexity per word",
    "word_perplexity_spelled": "perplexity per word, <unk> spelled",
    "accuracy": "accuracy",
    "label_loss": "loss (nats/label)",
    "macro_f1": "macro F1",
}
FORMS = {
    "perplexity": PERPLEXITY,
    "word_perplexity": PERPLEXITY,
    "word_perplexity_spelled": PERPLEXITY,
    "accuracy": SHARE,
    "macro_f1": SHARE,
}
SCORE = NumberForm(2)  # BLEU and chrF
LOSS_DIFFERENCE, POINTS = NumberForm(3, sign="+"), NumberForm(1, 100.0, sign="+")  # POINTS: percentage points
# Statistics of generated texts and of documents.
PROSE: dict[str, tuple[str, Callable[[float], str]]] = {
    "words": ("words per text", "{:.1f}".format),
    "sentence_words": ("words per sentence", "{:.1f}".format),
    "unfinished": ("unfinished texts", "{:.1%}".format),
    "names": ("names per text", "{:.1f}".format),
    "names_kept": ("names that are repeated", "{:.1%}".format),
    "repeated_sentences": ("repeated sentences", "{:.1%}".format),
}

FEW = 3  # baselines that are listed by name
VERDICTS = {"loses": "worse than", "ahead": "better than", "ties": "not significantly different from"}
RULE = "not significantly different: the confidence interval of the paired difference includes zero"


def heading(found: Mapping[str, Any]) -> str:
    """Return the first line, with markup."""
    run = found["run"] or "the checkpoint"
    return f"[bold]{escape(run)}[/] at {found['checkpoint']} on {escape(found['on'])}: {format_size(found)}"


def format_size(found: Mapping[str, Any]) -> str:
    parts = [f"{found['documents']:,} document{'' if found['documents'] == 1 else 's'}", f"{found['bytes']:,} bytes"]
    return ", ".join(parts + ([f"{found['tokens']:,} tokens"] if "tokens" in found else []))


def figure(name: str, value: float) -> str:
    return FORMS.get(name, PLAIN).text(value)


def main_table(found: Mapping[str, Any]) -> Table:
    """Return the metrics, their confidence intervals, and the metrics without leaked documents, if there are any."""
    unknown, without = found.get("unknown_rate", 0.0) > 0, (found.get("leaked") or {}).get("without")
    table = plain_table("", "", "95% confidence interval", *(["not leaked"] if without else []))
    for name, title in NAMES.items():
        if name not in found or (name.endswith("_spelled") and not unknown):
            continue
        interval, form = (found["interval"] or {}).get(name), FORMS.get(name, PLAIN)
        rest = [form.text(without[name], interval) if name in without else ""] if without else []
        table.add_row(title, form.text(found[name], interval), form.interval_text(interval), *rest)
    return table


def plain_table(*columns: str) -> Table:
    """Return a table with left-aligned names and right-aligned values."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def beneath(table: Table, *sentences: str) -> Group:
    """Return the table with sentences below it, wrapped at the width of the console."""
    return Group(table, *(Text(sentence, no_wrap=False, overflow="fold") for sentence in sentences))


def sentences(found: Mapping[str, Any]) -> Iterator[str]:
    if "context" in found:
        stride, context = found["stride"], found["context"]
        windows = "aligned as in training" if stride == context else f"one every {stride:,} tokens"
        over = f"; confidence intervals over {found['interval_over']}" if found["interval"] else ""
        yield f"windows of {context:,} tokens, {windows}; each token is predicted once{over}"
    if found.get("unknown_rate"):
        yield f"unknown words: {found['unknown_rate']:.2%} of the tokens (ends of documents not counted)"
        yield "<unk> spelled: the letters of unknown words are counted; use these values to compare tokenizers"
    if found.get("lost"):
        yield f"the tokens do not preserve {' and '.join(filter(None, [', '.join(found['lost'][:-1]), found['lost'][-1]]))}"
    if found.get("floor"):
        over = found["bits_per_byte"] / found["floor"] - 1
        yield f"floor: {found['floor']:.4f} bits per byte (a perfect model); this model is {over:.1%} above"
    if found.get("gap"):
        gap = found["gap"]
        start = f"a unigram model ({gap['start']:.4f} bits per byte)"
        closed = f"closes {format_part(gap['closed'])} of the gap between {start} and the floor"
        yield f"this model {closed if gap['closed'] > 0 else f'is worse than {start}'}"
    if found.get("overlapping"):
        every = found["overlapping"]
        yield (
            f"windows at every offset: loss {every['loss']:.4f}, perplexity {format_perplexity(every['perplexity'])} "
            "= exp(mean of batch losses)"
        )
    leaked = found.get("leaked")
    if leaked and leaked["documents"]:
        yield f"leaked documents: {leaked['documents']:,} of {found['documents']:,} also occur in the training split"
    elif leaked is None:
        yield "leaked documents: unknown, because the training data is not available"
    if "calibration" in found:
        rest = leaked and leaked["without"]
        also = f" ({rest['calibration']['error']:.1%} without leaked documents)" if rest else ""
        error = f"{found['calibration']['error']:.1%}{also}"
        yield f"calibration error {error}: mean difference between confidence and accuracy"


def tables(
    found: Mapping[str, Any], by: Sequence[str] = (), call: Callable[[str], str] = str
) -> Iterator[RenderableType]:
    parts = found.get("by", {})
    for name in ("set", "label"):
        if parts.get(name) and (name in by or name == "set"):
            yield group_table(name, parts[name], (found["overlapping"] or {}).get("sets", []) if name == "set" else [])
    if "position" in by and parts.get("position"):
        yield part_table("tokens of context", parts["position"])
    if "frequency" in by and parts.get("frequency"):
        yield part_table("occurrences in training", parts["frequency"])
    if "mixture" in found:
        yield mixture_block(found)
    if "classes" in found:
        yield class_table(found["classes"])
        if len(found["labels"]) <= MOST_CLASSES:
            yield confusion_table(found["labels"], found["confusion"])
    if "bleu" in found:
        yield beneath(overlap_table(found), *overlap_sentences(found, call))
    if "samples" in found:
        yield sample_table(found["samples"], call)
    if "stories" in found:
        stories = found["stories"]
        valid = [] if stories["valid"] is None else ["valid stories: texts that the storybook can produce"]
        yield beneath(story_table(stories, found["floor"] is not None), *valid, *generated_by(stories))
    for columns in baseline_columns(found):
        rows = baseline_rows(found, columns)
        yield beneath(baseline_table(rows, columns), *verdict_sentences(rows, columns[-1]))


def group_table(name: str, rows: list[dict[str, Any]], overlapping: list[dict[str, Any]]) -> Table:
    columns = ("documents", "tokens", "loss", "perplexity", "bits/byte", "unknown")
    table = plain_table(name, *columns, *(["at every offset"] if overlapping else []))
    for number, row in enumerate(rows):
        shown = (f"{row['loss']:.4f}", format_perplexity(row["perplexity"]), f"{row['bits_per_byte']:.4f}")
        counts = f"{row['documents']:,}", f"{row['tokens']:,}"
        also = [format_perplexity(overlapping[number]["perplexity"])] if overlapping else []
        table.add_row(escape(row["name"]), *counts, *shown, f"{row['unknown_rate']:.2%}", *also)
    return table


def part_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = plain_table(title, "tokens", "share of all tokens", "loss", "perplexity")
    whole = sum(row["tokens"] for row in rows)
    for row in rows:
        if row["from"] is None:
            name = "unknown words"
        else:
            name = f"{row['from']:,}" if row["from"] == row["to"] else f"{row['from']:,} to {row['to']:,}"
        shown = f"{row['tokens']:,}", f"{row['tokens'] / whole:.1%}", f"{row['loss']:.4f}"
        table.add_row(name, *shown, format_perplexity(row["perplexity"]))
    return table


def class_table(rows: list[dict[str, Any]]) -> Table:
    table = plain_table("label", "documents", "precision", "recall", "F1")
    for row in rows:
        shares = (f"{row[name]:.1%}" for name in ("precision", "recall", "f1"))
        table.add_row(escape(row["name"]), f"{row['documents']:,}", *shares)
    return table


def confusion_table(names: list[str], confusion: list[list[int]]) -> Table:
    table = plain_table("actual / predicted", *(escape(name) for name in names))
    for name, row in zip(names, confusion, strict=True):
        table.add_row(escape(name), *(f"{count:,}" for count in row))
    return table


def overlap_table(found: Mapping[str, Any]) -> Table:
    bleu, overlap = found["bleu"], found["overlap"]
    task, written, reference = overlap["task"], overlap["written"], overlap["reference"]
    title = f"{task['prompts']} continuations of {task['tokens']} tokens"
    table = plain_table(title, "generated", "95% confidence interval", "original")
    for order in ("1", "2", "3", "4"):
        table.add_row(f"BLEU-{order}", f"{bleu[order]:.2f}", SCORE.interval_text(bleu["interval"][order]))
    table.add_row("chrF", f"{overlap['chrf']['score']:.2f}", SCORE.interval_text(overlap["chrf"]["interval"]))
    shares = {"distinct words (distinct-1)": ("distinct", "1"), "repeated 4-grams": ("repetition", "4")}
    for title, (name, order) in shares.items():
        pair = ("" if one[name][order] is None else f"{one[name][order]:.1%}" for one in (written, reference))
        table.add_row(title, next(pair), "", next(pair))
    perplexities = format_perplexity(overlap["perplexity"]), format_perplexity(overlap["reference_perplexity"])
    table.add_row("perplexity under the model", perplexities[0], "", perplexities[1])
    table.add_row("tokens/s", f"{overlap['tokens_per_second']:,.0f}")
    return table


def overlap_sentences(found: Mapping[str, Any], call: Callable[[str], str] = str) -> Iterator[str]:
    """Yield what is needed to compare the metrics with others."""
    overlap = found["overlap"]
    task = overlap["task"]
    requested = "" if task["prompts"] == overlap["asked_prompts"] else f" of {overlap['asked_prompts']} requested"
    distinct = f"{overlap['different_prompts']} distinct"
    choice = describe_prompts(task["prompt_choice"], task["prompt_tokens"], task["seed"])
    yield f"prompts: {task['prompts']}{requested} ({distinct}): {choice}"
    if 2 * overlap["different_prompts"] <= task["prompts"] and task["prompts"] > 1:
        advice = f"set {call('prompt_tokens')} above {task['prompt_tokens']}"
        yield f"warning: few prompts are distinct, so the intervals are too narrow; {advice}"
    if task["full_reference"]:
        yield "references: the whole rest of each document"
    yield f"decoding: {format_generation(overlap['generate'], task['seed'])}"
    yield from generated_by(overlap)
    yield PERPLEXITY_OF_TEXTS
    yield f"BLEU-n: corpus BLEU of sacrebleu with orders 1 to n, {found['bleu']['signature']}"
    yield f"chrF: {overlap['chrf']['signature']}"
    yield f"the JSON output has BLEU (0 to 1) by {len(overlap['conventions'])} other definitions (docs/evaluation.md)"


def sample_table(samples: list[dict[str, Any]], call: Callable[[str], str] = str) -> Group:
    """Return the first samples, each as a few rows of a table with wrapped texts."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for number, row in enumerate(samples[:MOST_SAMPLES], start=1):
        own, other = (format_perplexity(row[f"{name}_perplexity"]) for name in ("generated", "reference"))
        table.add_row(f"sample {number}", Text(row["prompt"].strip(), style="bold"))
        table.add_row("generated", Text(row["generated"].strip()))
        table.add_row("reference", Text(row["reference"].strip()))
        table.add_row("perplexity", f"{own} generated, {other} reference; sentence BLEU-4 {row['sentence_bleu']:.2f}\n")
    return beneath(
        table, f"{min(len(samples), MOST_SAMPLES)} of {len(samples)} samples; {call('overlap_csv')} writes all"
    )


def format_generation(settings: dict[str, Any], seed: int) -> str:
    """Format the decoding strategy (sampling, greedy or beams) and all settings that are not the default."""
    default = asdict(GenerateSettings())
    others = {name for name in default if settings[name] != default[name]} - {
        "prompt",
        "tokens",
        "temperature",
        "engine",
    }
    drawn = GenerateSettings(**settings).is_drawn
    parts = [f"temperature {settings['temperature']:g}"] if drawn else ["greedy"] if settings["beams"] is None else []
    parts += [f"{name} {as_typed(settings[name])}" for name in default if name in others]
    return ", ".join(parts + ([f"seed {seed}"] if drawn else []))


def story_table(stories: dict[str, Any], is_storybook: bool) -> Table:
    """`is_storybook`: the documents are stories of the storybook, which are all valid."""
    written, reference = stories["written"], stories["reference"]
    table = plain_table(f"{written['texts']} texts", "generated", "original")
    for name, (title, form) in PROSE.items():
        pair = ("-" if one[name] is None else form(one[name]) for one in (written, reference))
        table.add_row(title, *pair)
    if stories["valid"] is not None:
        valid = f"{stories['valid']:.1%} ({SHARE.interval_text(stories['valid_interval'])})"
        table.add_row("valid stories (95% confidence interval)", valid, "100.0%" if is_storybook else "-")
    return table


def baseline_columns(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the columns of each table of baselines (tokens, labels). The table is sorted by the last one."""
    bits = "bits_per_byte_spelled" if found.get("unknown_rate") else "bits_per_byte"
    for columns in (("perplexity", bits), ("accuracy",)):
        if any(row.get(columns[-1]) is not None for row in found.get("baselines", [])):
            yield columns


def baseline_rows(found: Mapping[str, Any], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the baselines and the model, the best first."""
    own = {**{key: found[key] for key in columns}, "name": "this model", "own": True}
    rows = [row for row in (*found["baselines"], own) if row.get(columns[-1]) is not None]
    return sorted(rows, key=lambda row: row[columns[-1]], reverse=columns[-1] == "accuracy")


def baseline_table(rows: list[dict[str, Any]], columns: Sequence[str]) -> Table:
    form = POINTS if columns[-1] == "accuracy" else LOSS_DIFFERENCE
    table = plain_table("baseline", *(NAMES[key] for key in columns), f"difference in {metric_of(columns[-1])}, 95% CI")
    for row in rows:
        shown = ("" if row.get(key) is None else figure(key, row[key]) for key in columns)
        difference = row.get("difference")
        interval = difference and form.interval_text((difference["low"], difference["high"]))
        table.add_row(escape(row["name"]), *shown, interval, style="bold" if row.get("own") else None)
    return table


def verdict_sentences(rows: list[dict[str, Any]], key: str) -> Iterator[str]:
    """Summarise the comparison with the baselines, by confidence interval where there is one, else by value."""
    (own,) = (row[key] for row in rows if row.get("own"))
    metric, sign = metric_of(key), 1 if key == "accuracy" else -1
    unit, positive = ("percentage points", "better") if key == "accuracy" else ("nats/token", "worse")
    yield (
        f"difference: {metric} of the model minus {metric} of the baseline in {unit}, with its 95% confidence interval (CI); "
        f"positive: the model is {positive}"
    )
    others = [row for row in rows if not row.get("own") and not row.get("no_gain")]
    compared: dict[str, list[str]] = {phrase: [] for phrase in VERDICTS.values()}
    by_value: dict[str, list[str]] = {"worse than": [], "at least as good as": []}
    for row in others:
        if row["verdict"]:
            compared[VERDICTS[row["verdict"]]].append(row["name"])
        else:
            by_value["worse than" if sign * row[key] > sign * own else "at least as good as"].append(row["name"])
    for prefix, groups in (
        (f"compared by {metric}", compared),
        (f"baselines without a confidence interval, compared by {NAMES[key]}", by_value),
    ):
        parts, of = list[str](), f" of {sum(map(len, groups.values()))} baselines"
        for phrase, names in groups.items():
            if names:
                listed = f" ({', '.join(names)})" if len(names) <= FEW else ""
                parts.append(f"{phrase} {len(names)}{of if not parts else ''}{listed}")
        if parts:
            yield f"{prefix}: {', '.join(parts)}"
    if compared[VERDICTS["ties"]]:
        yield RULE


def metric_of(key: str) -> str:
    """Return the metric whose difference is compared: accuracy, or the loss."""
    return "accuracy" if key == "accuracy" else "loss"
