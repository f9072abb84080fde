"""`lilliput prepare`: tokenise a corpus and print its statistics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.cli.output import print_json, progress, stderr_console, stdout_console

if TYPE_CHECKING:
    from rich.table import Table

TAKES_SETTINGS = True
EXAMPLES = """
    lilliput prepare mytext.txt
    lilliput prepare stories.jsonl --data.text-field story --tokenizer.vocab-size 4096
    lilliput prepare mytext.txt --duplicates near
    lilliput prepare demo --json
"""
MOST_LABELS = 12  # labels listed per split


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="recipe (path or name), text file, folder, or name of a dataset")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--duplicates",
        choices=["near"],
        help="also find near duplicates (exact duplicates are always counted)",
    )
    parser.add_argument("--rebuild", action="store_true", help="ignore the cache")


def run(arguments: argparse.Namespace) -> int:
    from lilliput.data.prepare import prepare
    from lilliput.settings.loading import load_config

    config = load_config(arguments.target, arguments.settings, origin="command line")
    with progress(stderr_console()) as report:
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
    console = stdout_console()
    console.print(split_table(found))
    for sentence in sentences(found):
        console.print(printable(sentence), markup=False)
    return 0


def split_table(found: dict[str, Any]) -> Table:
    """Return a table with one column per split."""
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
        (f"documents longer than the context ({cut['context']:,} tokens)", cut["documents"], ".1%"),
        ("tokens after the first context of a document", cut["tokens"], ".1%"),
        ("repeated documents within the split", duplicates["within"], ",d"),
        ("documents that are also in the training split", duplicates["across"], ",d"),
    ]
    rows += [(f"{kind} documents", found[kind], ",d") for kind in ("empty", "dropped") if any(found[kind].values())]
    for name, values, form in rows:
        shown = (values.get(split) for split in found["documents"])
        table.add_row(name, *("" if value is None else format(value, form) for value in shown))
    return table


def sentences(found: dict[str, Any]) -> list[str]:
    """Return the lines below the table."""
    longest = ", ".join(f"{one['tokens']:,} ({one['split']}, document {one['document']:,})" for one in found["longest"])
    lines = [
        found["source"],
        f"{found['tokenizer']} tokenizer, vocabulary {found['vocab_size']:,}{', lossy' if found['lossy'] else ''}",
        f"longest documents (tokens): {longest}",
    ]
    for split, words in found["unknown_words"].items():
        if words:
            lines.append(
                f"most frequent unknown words in {split}: {', '.join(f'{word} {count:,}' for word, count in words)}"
            )
    for split, labels in (found["labels"] or {}).items():
        rest = f" and {len(labels) - MOST_LABELS:,} more" if len(labels) > MOST_LABELS else ""
        listed = ", ".join(f"{name} {count:,}" for name, count in list(labels.items())[:MOST_LABELS])
        lines.append(f"labels of {split}: {listed}{rest}")
    if "vectors" in found:
        lines += format_vectors(found["vectors"])
    if "near_duplicates" in found:
        lines += format_near_duplicates(found["near_duplicates"])
    lines.append(f"prepared data: {found['folder']}")
    return lines


def format_vectors(vectors: dict[str, Any]) -> list[str]:
    stages = "; ".join(
        f"{stage} {share['types']:.1%} of the vocabulary, {share['tokens']:.1%} of the text"
        for stage, share in sorted(vectors["coverage"].items(), key=lambda stage: stage[1]["types"])
    )
    lines = [f"vectors: {vectors['rows']:,} of width {vectors['width']:,} ({vectors['kind']}); coverage: {stages}"]
    if uncovered := vectors["most_frequent_uncovered"]:
        lines.append(
            f"most frequent words without a vector: {', '.join(f'{word} {count:,}' for word, count in uncovered)}"
        )
    lines += [
        f"  {word}: {', '.join(f'{name} {cosine:.2f}' for name, cosine in near)}"
        for word, near in vectors["neighbours"].items()
    ]
    lines += vectors["notes"]
    return lines


def format_near_duplicates(near: dict[str, Any]) -> list[str]:
    within = ", ".join(f"{count:,} within {split}" for split, count in near["within"].items())
    across = ", ".join(f"{count:,} of {split} in train" for split, count in near["across"].items())
    memory = "" if near["memory_bytes"] is None else f", {near['memory_bytes'] / 1e6:,.0f} MB of memory"
    lines = [
        f"near duplicates (similarity {near['threshold']:g} or more): {within}; {across}",
        f"--data.drop_duplicates near would remove {near['dropped']:,} training documents",
        f"search time {near['seconds']:,.1f} s, {near['megabytes_per_second']:,.1f} MB/s{memory}",
    ]
    for pair in near["closest"]:
        (one, other), (first, second) = pair["splits"], pair["documents"]
        lines.append(f"  {pair['similarity']:.3f}  {one} {first:,}: {one_line(pair['openings'][0])}")
        lines.append(f"         {other} {second:,}: {one_line(pair['openings'][1])}")
    return lines


def one_line(text: str) -> str:
    return " ".join(text.split())


def printable(text: str) -> str:
    """Replace control characters: a corpus may contain terminal escape sequences."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
