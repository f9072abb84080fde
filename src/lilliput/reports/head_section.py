"""Attention heads in the report of a run: heat maps, scores, named patterns and the cost of removal.

Owns: the section, and its measurements in `heads.json` of the run's folder. Does not own: capture, scores, functions and ablation
(`interpret`), or the other sections (`run_report`).

Patterns are measured on annotated stories of the storybook, if they are requested or the storybook is the run's text; costs
if the run's prepared data is available.
Both are computed once per checkpoint; later reports read the file. The work is bounded: a large model has fewer documents, or
no measurement. The bound is in operations, not in seconds, so that the same run gives the same report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lilliput.data.corpora import STORYBOOK
from lilliput.errors import UserError
from lilliput.model.counting import count
from lilliput.reports.document import Block, Gallery, Paragraph, Table
from lilliput.reports.formatting import counted, fixed, listed
from lilliput.reports.plot_style import finish, styled
from lilliput.reports.sample_section import read_result, save_result
from lilliput.storage.run_folders import RunFolder

if TYPE_CHECKING:
    from lilliput.decoding.writer import Sample, Writer
    from lilliput.evaluation.evaluate import Evaluation
    from lilliput.interpret.head_names import Head

RESULT, FORMAT = "heads.json", 1
TOKENS = 20  # of the text whose attention is drawn, so that labels stay readable
HEADS, LISTED = 4, 32  # numbers of heads that are drawn, and listed in the table
FEWEST, MOST = 5, 40  # documents of a measurement
# About ten seconds each on one core: FLOPs (as counted for training) of all ablations; attention weights of all documents.
ABLATION_FLOPS, CAPTURED_WEIGHTS = 5e11, 5e7


def find_heads(run: RunFolder, functions: bool = False) -> dict[str, Any] | None:
    """Return the measurements for the run's best checkpoint, from the file or computed; None if there are none.

    `functions`: measure patterns also if the run's text is not the storybook.
    """
    found = read_result(run, RESULT, FORMAT)
    return measure_heads(run, functions) if found is None or (functions and not found["functions"]) else found


def save_heads(run: RunFolder, found: dict[str, Any] | None) -> None:
    save_result(run, RESULT, FORMAT, found)


def measure_heads(run: RunFolder, functions: bool = False) -> dict[str, Any] | None:
    from lilliput.decoding.writer import load
    from lilliput.evaluation.evaluate import open_evaluation, settings_of

    try:
        checkpoint, config = settings_of(run.folder)
        if config.model.task == "classifier":
            return None
        writer = load(checkpoint.folder)
    except UserError:  # no checkpoint
        return None
    try:
        costs = measure_costs(open_evaluation(checkpoint.folder, build=False))
    except UserError:  # no prepared data
        costs = None
    patterns = measure_patterns(writer) if functions or config.data.source == STORYBOOK else None
    if costs is None and patterns is None:
        return None
    return {"format": FORMAT, "checkpoint": checkpoint.name, "functions": patterns, "costs": costs}


def measure_costs(evaluation: Evaluation) -> dict[str, Any] | None:
    from lilliput.interpret import ablate_documents

    config, file = evaluation.writer.config, evaluation.file
    passes = config.model.layers * config.model.heads + 1
    flops = count(config.model, config.vectors).flops_per_token * passes * file.predictions / file.documents
    documents = min(MOST, int(ABLATION_FLOPS / max(1.0, flops)))
    return ablate_documents(evaluation.writer, file, documents=documents).as_dict() if documents >= FEWEST else None


def measure_patterns(writer: Writer) -> dict[str, Any] | None:
    from lilliput.data.storybook.annotations import annotated_stories
    from lilliput.interpret import measure_functions

    shape = writer.config.model
    documents = min(MOST, int(CAPTURED_WEIGHTS / (shape.layers * shape.heads * shape.context**2)))
    if documents < FEWEST:
        return None
    found = measure_functions(writer, annotated_stories(documents), documents)
    return {"documents": documents, "heads": [one.as_dict() for one in found]}


# The section ----------------------------------------------------------------------------------------------------------


def head_blocks(writer: Writer, sample: Sample, measured: dict[str, Any] | None = None) -> list[Block]:
    """Return the scores of every head with uniform attention as a reference, and the layer with the lowest entropy."""
    from lilliput.interpret import capture_text, draw_heads
    from lilliput.interpret.head_names import Head
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
    columns = measured_columns(measured)
    rows = [
        [
            name,
            *(by_head.get(Head(one.layer, -1 if one.head is None else one.head), "") for by_head in columns.values()),
            *("–" if value is None else fixed(value, 2) for value in one.scores.values()),
        ]
        for name, one in named
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
        f"{fewer}The scores from entropy to induction are measured on the first {len(attention.tokens)} tokens of sample 1. "
        "Entropy is in bits, distance in tokens, the others are mean weights; docs/attention.md defines them. Rows named "
        "“uniform” have the scores of equal weights on all visible tokens. A dash means that no token could be scored. The "
        "scores describe where a head attends; they do not prove its function."
    )
    titles = ["head", *columns, *(score.title for score in SCORES.values())]
    return [Gallery([picture]), Table(titles, rows, caption="Scores of heads", note=note), *measured_blocks(measured)]


def name_layers(layers: Sequence[int] | None) -> str:
    if layers is None:
        return "all layers"
    return f"{'layer' if len(layers) == 1 else 'layers'} {listed([str(layer) for layer in layers])}"


def measured_columns(measured: dict[str, Any] | None) -> dict[str, dict[Head, str]]:
    """Return the columns of the table that were measured on documents, by title: the text of each head."""
    from lilliput.interpret.head_names import Head

    columns: dict[str, dict[Head, str]] = {}
    if measured and measured["functions"]:
        found = measured["functions"]["heads"]
        columns["pattern"] = {Head(one["layer"], one["head"]): pattern_text(one) for one in found}
    if measured and measured["costs"]:
        costs = columns.setdefault("cost of removal", {})
        for one in measured["costs"]["costs"]:
            layer, head = one["heads"][0].split(".")
            low, high = one["interval"] or (None, None)
            interval = "" if low is None else f" ({low:+.3f} to {high:+.3f})"
            costs[Head(int(layer), int(head))] = f"{one['difference']:+.3f}{interval}"
    return columns


def measured_blocks(measured: dict[str, Any] | None) -> list[Block]:
    """Return the table of functions, and notes on what was measured."""
    from lilliput.interpret.head_score_definitions import FUNCTIONS

    blocks: list[Block] = []
    if measured and measured["functions"]:
        stories = counted(measured["functions"]["documents"], "annotated story", "annotated stories")
        about = (
            f"Pattern: the function with the highest significant score over {stories} of the storybook, followed by this score. "
            "Both are from the table “Functions of heads” below. The other scores of the table above are measured on sample 1 "
            "only, so they can differ."
        )
        blocks.append(Paragraph(about))
    if measured and measured["costs"]:
        costs = measured["costs"]
        documents = counted(costs["documents"], "document")
        about = (
            "Cost of removal: the loss when the output of the head is replaced by zero, minus the loss of the unchanged model. "
            f"Both losses are computed over {documents} of the validation split, in nats per token. There the loss of the "
            f"unchanged model is {costs['loss']:.4f}; the loss of the whole split can differ."
        )
        if any(one["interval"] for one in costs["costs"]):
            about += " Parentheses contain the 95% confidence interval of the cost."
        blocks.append(Paragraph(about))
    if measured and measured["functions"]:
        found = measured["functions"]
        rows = [
            [
                f"layer {one['layer']}, head {one['head']}",
                one["pattern"],
                *(score_text(one["scores"][name]) for name in FUNCTIONS),
            ]
            for one in found["heads"][:LISTED]
        ]
        stories = counted(found["documents"], "annotated story", "annotated stories")
        note = (
            f"Scores over {stories} of the storybook; docs/interpret.md defines the functions. An asterisk marks a score that is "
            "significantly higher than the scores of two comparison heads: one with equal weights on all visible tokens, and one "
            "that attends to each distance as much as this head does on average. The scores for previous token and first token "
            "are compared with the head of equal weights only. The pattern is the function with the highest marked score."
        )
        titles = ["head", "pattern", *(function.title for function in FUNCTIONS.values())]
        blocks.append(Table(titles, rows, caption="Functions of heads", note=note))
    return blocks


def pattern_text(head: Mapping[str, Any]) -> str:
    """Return the pattern of a head with its score."""
    score = head["scores"].get(head["pattern"])
    return str(head["pattern"]) if score is None else f"{head['pattern']}, {fixed(score['score'], 2)}"


def score_text(score: Mapping[str, Any] | None) -> str:
    """Return the score of a function, with an asterisk if it is significant; a dash if there was no example."""
    return "–" if score is None else fixed(score["score"], 2) + "*" * score["significant"]
