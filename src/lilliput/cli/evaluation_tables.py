"""How the figures of an evaluation are shown to people: a short table, and only what there is to tell.

Owns: the tables and sentences. Does not own: the figures, or their JSON (`evaluation.evaluate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lilliput.cli.generation_flags import as_typed
from lilliput.cli.output import figures
from lilliput.evaluation.metric_format import format_perplexity
from lilliput.settings.tree import GenerateSettings

ONLY = {
    "position": "of a language model",
    "frequency": "of a language model whose training data is at hand",
    "label": "of a language model, where documents have labels",
    "set": "of a language model, on several sets",
}  # where figures by part are told
MOST_CLASSES = 12  # of a confusion that is shown as a table
NAMES = {
    "loss": "loss (nats/token)",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "bits_per_byte_spelled": "bits per byte, unknown words spelled",
    "word_perplexity": "perplexity of a word",
    "word_perplexity_spelled": "perplexity of a word, unknown ones spelled",
    "accuracy": "accuracy",
    "label_loss": "loss (nats/label)",
    "macro_f1": "F1, mean of classes",
}
FORMS: dict[str, Callable[[float], str]] = {
    "perplexity": format_perplexity,
    "word_perplexity": format_perplexity,
    "word_perplexity_spelled": format_perplexity,
    "accuracy": "{:.1%}".format,
    "macro_f1": "{:.1%}".format,
}
# Of texts written and of documents: each is read beside the other, and none is good or bad by itself.
PROSE: dict[str, tuple[str, Callable[[float], str]]] = {
    "words": ("words a text", "{:.1f}".format),
    "sentence_words": ("words a sentence", "{:.1f}".format),
    "unfinished": ("texts without an end", "{:.1%}".format),
    "names": ("names a text", "{:.1f}".format),
    "names_kept": ("names that come again", "{:.1%}".format),
    "repeated_sentences": ("sentences that come again", "{:.1%}".format),
}

FEW = 3  # names that are read in a sentence
# Of the model beside baselines, by their intervals; of those without one, by whether their figure is the better one.
VERDICTS = {"loses": "loses to {}", "ties": "ties with {}", "ahead": "is ahead of {}"}
UNTOLD = {
    True: "has no interval beside {}, whose figure is better",
    False: "has no interval beside {}, whose figure is no better",
}


def show(found: dict[str, Any], by: Sequence[str]) -> None:
    console = figures()
    run = found["run"] or "the checkpoint"
    console.print(f"[bold]{escape(run)}[/] at {found['checkpoint']} on {escape(found['on'])}: {format_size(found)}")
    console.print(main_table(found))
    for sentence in sentences(found):
        console.print(sentence, markup=False)
    for name in by:
        if not found.get("by", {}).get(name):
            console.print(f"there are no figures by {name}: they are told {ONLY[name]}", markup=False)
    for table in tables(found, by):
        console.print()
        console.print(table)


def format_size(found: dict[str, Any]) -> str:
    parts = [f"{found['documents']:,} document{'' if found['documents'] == 1 else 's'}", f"{found['bytes']:,} bytes"]
    return ", ".join(parts + ([f"{found['tokens']:,} tokens"] if "tokens" in found else []))


def figure(name: str, value: float) -> str:
    return FORMS.get(name, "{:.4f}".format)(value)


def main_table(found: dict[str, Any]) -> Table:
    """The figures, their intervals, and, where there are such, those without documents that leaked."""
    unknown, without = found.get("unknown_rate", 0.0) > 0, (found.get("leaked") or {}).get("without")
    table = plain_table("", "", "95% interval", *(["without leaked"] if without else []))
    for name, title in NAMES.items():
        if name not in found or (name.endswith("_spelled") and not unknown):
            continue
        interval = (found["interval"] or {}).get(name)
        rest = [figure(name, without[name]) if name in without else ""] if without else []
        table.add_row(title, figure(name, found[name]), between(interval, partial(figure, name)), *rest)
    return table


def plain_table(*columns: str) -> Table:
    """Names to the left, figures to the right."""
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def beneath(table: Table, *sentences: str) -> Group:
    """Sentences that may be long, broken at the width of the console although a table need not fit it."""
    return Group(table, *(Text(sentence, no_wrap=False, overflow="fold") for sentence in sentences))


def sentences(found: dict[str, Any]) -> Iterator[str]:
    if "context" in found:
        stride, context = found["stride"], found["context"]
        windows = "aligned windows, as in training" if stride == context else f"a window every {stride:,} tokens"
        over = f"; intervals over {found['interval_over']}" if found["interval"] else ""
        yield f"each token once, {windows}; a window is {context:,} tokens{over}"
    if found.get("unknown_rate"):
        unknown = f"{found['unknown_rate']:.2%} of the tokens but for ends of documents are unknown words"
        yield f"{unknown}: compare other tokenizers where these are spelled"
    if found.get("lost"):
        yield f"the tokens do not hold {' and '.join(filter(None, [', '.join(found['lost'][:-1]), found['lost'][-1]]))}"
    if found.get("floor"):
        over = found["bits_per_byte"] / found["floor"] - 1
        yield f"the floor is {found['floor']:.4f} bits per byte, a perfect model's; this is {over:.1%} above"
    if found.get("gap"):
        gap = found["gap"]
        way = f"{gap['closed']:.1%} of the way there from" if gap["closed"] > 0 else "that is worse than"
        yield f"{way} {gap['start']:.4f}, which knows only how often each token comes"
    if found.get("overlapping"):
        told = found["overlapping"]
        yield (
            f"over a window at every offset: loss {told['loss']:.4f}, perplexity {format_perplexity(told['perplexity'])}, "
            "which is exp(mean of batch losses)"
        )
    leaked = found.get("leaked")
    if leaked and leaked["documents"]:
        yield f"{leaked['documents']:,} of {found['documents']:,} documents stand in the training split, word for word"
    elif leaked is None:
        yield "whether documents stand in the training split is not known: its data is not at hand"
    if "calibration" in found:
        rest = leaked and leaked["without"]
        also = f" ({rest['calibration']['error']:.1%} without leaked)" if rest else ""
        error = f"{found['calibration']['error']:.1%}{also}"
        yield f"calibration error {error}: the gap between how sure it is and how often right"


def tables(found: dict[str, Any], by: Sequence[str]) -> Iterator[RenderableType]:
    parts = found.get("by", {})
    for name in ("set", "label"):
        if parts.get(name) and (name in by or name == "set"):
            yield group_table(name, parts[name], (found["overlapping"] or {}).get("sets", []) if name == "set" else [])
    if "position" in by and parts.get("position"):
        yield part_table("tokens before it", parts["position"])
    if "frequency" in by and parts.get("frequency"):
        yield part_table("times in training", parts["frequency"])
    if "classes" in found:
        yield class_table(found["classes"])
        if len(found["labels"]) <= MOST_CLASSES:
            yield confusion_table(found["labels"], found["confusion"])
    if "bleu" in found:
        yield beneath(overlap_table(found), *overlap_sentences(found))
    if "stories" in found:
        yield story_table(found["stories"], found["floor"] is not None)
    for columns in baseline_columns(found):
        rows = baseline_rows(found, columns)
        yield beneath(baseline_table(rows, columns), format_verdicts(rows, columns[-1]))


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
    table = plain_table(title, "tokens", "share, with ends", "loss", "perplexity")
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
    table = plain_table("is, and is said to be", *(escape(name) for name in names))
    for name, row in zip(names, confusion, strict=True):
        table.add_row(escape(name), *(f"{count:,}" for count in row))
    return table


def overlap_table(found: dict[str, Any]) -> Table:
    bleu, told = found["bleu"], found["overlap"]
    task, written, reference = told["task"], told["written"], told["reference"]
    table = plain_table(f"{task['prompts']} texts of {task['tokens']} tokens", "written", "95% interval", "documents")
    for order in ("1", "2", "3", "4"):
        table.add_row(f"BLEU-{order}", f"{bleu[order]:.2f}", between(bleu["interval"][order], "{:.2f}".format))
    table.add_row("chrF", f"{told['chrf']['score']:.2f}", between(told["chrf"]["interval"], "{:.2f}".format))
    shares = {"different words (distinct-1)": ("distinct", "1"), "runs of four words again": ("repetition", "4")}
    for title, (name, order) in shares.items():
        pair = ("" if one[name][order] is None else f"{one[name][order]:.1%}" for one in (written, reference))
        table.add_row(title, next(pair), "", next(pair))
    perplexities = format_perplexity(told["perplexity"]), format_perplexity(told["reference_perplexity"])
    table.add_row("perplexity to the model", perplexities[0], "", perplexities[1])
    table.add_row("tokens a second", f"{told['tokens_per_second']:,.0f}")
    return table


def overlap_sentences(found: dict[str, Any]) -> Iterator[str]:
    """What must be known to set the figures beside others."""
    told = found["overlap"]
    task = told["task"]
    asked = "" if task["prompts"] == told["asked_prompts"] else f" ({told['asked_prompts']} asked for)"
    different = f"{told['different_prompts']} different"
    yield f"prompts: {task['prompts']}{asked}, {different}, the first {task['prompt_tokens']} tokens of documents"
    yield f"written: {format_generation(told['generate'], task['seed'])}"
    yield f"BLEU-n: sacrebleu, of the corpus, orders 1 to n, {found['bleu']['signature']}"
    yield f"chrF: {told['chrf']['signature']}"
    yield f"BLEU as other reports compute it, 0 to 1, is in the JSON: {', '.join(told['conventions'])}"


def format_generation(settings: dict[str, Any], seed: int) -> str:
    """Format how tokens were chosen (sampling, greedy or beams) and every other setting that is not the default."""
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


def story_table(told: dict[str, Any], of_the_book: bool) -> Table:
    """`of_the_book`: the documents are its stories, all of them right."""
    written, reference = told["written"], told["reference"]
    table = plain_table(f"{written['texts']} whole texts", "written", "documents")
    for name, (title, form) in PROSE.items():
        pair = ("-" if one[name] is None else form(one[name]) for one in (written, reference))
        table.add_row(title, *pair)
    if told["valid"] is not None:
        table.add_row("stories of the book", f"{told['valid']:.1%}", "100.0%" if of_the_book else "-")
    return table


def baseline_columns(found: dict[str, Any]) -> Iterator[Sequence[str]]:
    """The figures of each table of baselines: of tokens, and of labels. The last of them is what it is sorted by."""
    bits = "bits_per_byte_spelled" if found.get("unknown_rate") else "bits_per_byte"
    for columns in (("perplexity", bits), ("accuracy",)):
        if any(row.get(columns[-1]) is not None for row in found.get("baselines", [])):
            yield columns


def baseline_rows(found: dict[str, Any], columns: Sequence[str]) -> list[dict[str, Any]]:
    """The model among them, the best first."""
    own = {**{key: found[key] for key in columns}, "name": "this model", "own": True}
    rows = [row for row in (*found["baselines"], own) if row.get(columns[-1]) is not None]
    return sorted(rows, key=lambda row: row[columns[-1]], reverse=columns[-1] == "accuracy")


def baseline_table(rows: list[dict[str, Any]], columns: Sequence[str]) -> Table:
    title, form = ("less its, in points", points) if columns[-1] == "accuracy" else ("loss less its", "{:+.3f}".format)
    table = plain_table("beside it", *(NAMES[key] for key in columns), f"model's {title}, 95%")
    for row in rows:
        shown = ("" if row.get(key) is None else figure(key, row[key]) for key in columns)
        difference = row.get("difference")
        told = difference and between((difference["low"], difference["high"]), form)
        table.add_row(escape(row["name"]), *shown, told, style="bold" if row.get("own") else None)
    return table


def format_verdicts(rows: list[dict[str, Any]], key: str) -> str:
    """No more than intervals say; of a row without one, that it has none, and whether its figure is the better one. More than a
    few are counted: the table has their names."""
    (own,) = (row[key] for row in rows if row.get("own"))
    of, sign = ("accuracy", 1) if key == "accuracy" else ("loss", -1)
    parts: dict[str, list[str]] = {form: [] for form in (*VERDICTS.values(), *UNTOLD.values())}
    for row in rows:
        if not row.get("own"):
            better = sign * row[key] > sign * own
            parts[VERDICTS[row["verdict"]] if row["verdict"] else UNTOLD[better]].append(row["name"])

    def format_names(names: list[str]) -> str:
        return " / ".join(names) if len(names) <= FEW else f"{len(names)} of them"

    return f"by {of} it " + "; ".join(form.format(format_names(names)) for form, names in parts.items() if names)


def points(share: float) -> str:
    """The difference of two shares, which is no share of anything: in percentage points."""
    return f"{100 * share:+.1f}"


def between(interval: Sequence[float] | None, form: Callable[[float], str]) -> str:
    return "" if interval is None else " to ".join(form(end) for end in interval)
