"""`lilliput prepare`: text in, token files and a report out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.cli.output import chatter, figures, print_json, progress

if TYPE_CHECKING:
    from rich.table import Table

TAKES_SETTINGS = True
EXAMPLES = """
    lilliput prepare mytext.txt
    lilliput prepare stories.jsonl --data.text-field story --tokenizer.vocab-size 4096
    lilliput prepare mytext.txt --duplicates near
    lilliput prepare demo --json
"""
MOST_LABELS = 12  # classes that are told in a table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="a recipe (its path or name), a file or folder of texts, or a data set's name")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object on stdout")
    parser.add_argument(
        "--duplicates",
        choices=["near"],
        help="also look for documents that are nearly equal, in a pass of its own (equal ones are always counted)",
    )
    parser.add_argument("--rebuild", action="store_true", help="prepare anew, whatever the cache holds")


def run(arguments: argparse.Namespace) -> int:
    from lilliput.data.prepare import prepare
    from lilliput.settings.loading import load_config

    config = load_config(arguments.target, arguments.settings, origin="command line")
    with progress(chatter()) as report:
        prepared = prepare(config, report, rebuild=arguments.rebuild)
        found = prepared.report(config.model.context)
        if config.vectors.source is not None:
            from lilliput.data.vectors import prepare_vectors

            found["vectors"] = prepare_vectors(config, prepared, report, arguments.rebuild).report
        if arguments.duplicates == "near":
            from lilliput.data.corpora import open_corpus
            from lilliput.data.duplicates import find_near

            near = find_near(open_corpus(config.data), report=report, folder=Path(config.data.cache))
            found["near_duplicates"] = near.as_json()
    if arguments.json:
        print_json(found)
        return 0
    console = figures()
    console.print(split_table(found))
    for sentence in sentences(found):
        console.print(printable(sentence), markup=False)
    return 0


def split_table(found: dict[str, Any]) -> Table:
    """A column for each split: names of figures are long, and test sets may be many."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=True)
    table.add_column("")
    for split in found["documents"]:
        table.add_column(split, justify="right")
    cut, duplicates = found["cut"], found["duplicates"]
    rows: list[tuple[str, dict[str, float | None], str]] = [
        ("documents", found["documents"], ",d"),
        ("bytes", found["bytes"], ",d"),
        ("tokens", found["tokens"], ",d"),
        ("words", found["words"], ",d"),
        ("bytes per token", found["bytes_per_token"], ".2f"),
        ("tokens per word", found["tokens_per_word"], ".2f"),
        ("unknown tokens", found["unknown_rate"], ".2%"),
        (f"documents longer than the context, {cut['context']:,} tokens", cut["documents"], ".1%"),
        ("tokens beyond a document's first context", cut["tokens"], ".1%"),
        ("documents equal to an earlier one", duplicates["within"], ",d"),
        ("documents equal to one of train", duplicates["across"], ",d"),
    ]
    rows += [
        (f"{what} documents, left out", found[what], ",d") for what in ("empty", "dropped") if any(found[what].values())
    ]
    for name, values, form in rows:
        shown = (values.get(split) for split in found["documents"])
        table.add_row(name, *("" if value is None else format(value, form) for value in shown))
    return table


def sentences(found: dict[str, Any]) -> list[str]:
    """What the table has no place for, a line each."""
    longest = ", ".join(f"{one['tokens']:,} ({one['split']} {one['document']:,})" for one in found["longest"])
    lines = [
        found["source"],
        f"{found['tokenizer']} tokenizer, vocabulary {found['vocab_size']:,}{', lossy' if found['lossy'] else ''}",
        f"longest documents, in tokens: {longest}",
    ]
    for split, words in found["unknown_words"].items():
        if words:
            lines.append(f"unknown in {split}: {', '.join(f'{word} {count:,}' for word, count in words)}")
    for split, labels in (found["labels"] or {}).items():
        rest = f" and {len(labels) - MOST_LABELS:,} more" if len(labels) > MOST_LABELS else ""
        listed = ", ".join(f"{name} {count:,}" for name, count in list(labels.items())[:MOST_LABELS])
        lines.append(f"labels of {split}: {listed}{rest}")
    if "vectors" in found:
        lines += format_vectors(found["vectors"])
    if "near_duplicates" in found:
        lines += format_near_duplicates(found["near_duplicates"])
    lines.append(f"kept in {found['folder']}")
    return lines


def format_vectors(vectors: dict[str, Any]) -> list[str]:
    stages = ", ".join(
        f"{stage}: {share['types']:.1%} of the words and {share['tokens']:.1%} of the text"
        for stage, share in sorted(vectors["coverage"].items(), key=lambda stage: stage[1]["types"])
    )
    lines = [
        f"vectors: {vectors['rows']:,} of width {vectors['width']:,} ({vectors['kind']}); covered by stage, {stages}"
    ]
    if uncovered := vectors["most_frequent_uncovered"]:
        lines.append(f"without a vector: {', '.join(f'{word} {count:,}' for word, count in uncovered)}")
    lines += [
        f"  {word}: {', '.join(f'{name} {cosine:.2f}' for name, cosine in near)}"
        for word, near in vectors["neighbours"].items()
    ]
    lines += vectors["notes"]
    return lines


def format_near_duplicates(near: dict[str, Any]) -> list[str]:
    within = ", ".join(f"{count:,} of {split}" for split, count in near["within"].items())
    across = ", ".join(f"{count:,} of {split}" for split, count in near["across"].items())
    memory = "" if near["memory_bytes"] is None else f", {near['memory_bytes'] / 1e6:,.0f} MB of memory"
    lines = [
        f"near duplicates (similarity {near['threshold']:g} or more): {within} have an earlier twin in their split, "
        f"{across} have one in train; data.drop_duplicates near would leave out {near['dropped']:,} training documents",
        f"found in {near['seconds']:,.1f} s, {near['megabytes_per_second']:,.1f} MB/s{memory}",
    ]
    for pair in near["closest"]:
        (one, other), (first, second) = pair["splits"], pair["documents"]
        lines.append(f"  {pair['similarity']:.3f}  {one} {first:,}: {plain(pair['openings'][0])}")
        lines.append(f"         {other} {second:,}: {plain(pair['openings'][1])}")
    return lines


def plain(text: str) -> str:
    """On one line."""
    return " ".join(text.split())


def printable(text: str) -> str:
    """Without what would move a terminal's cursor or change its colours: words of a text are anybody's."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
