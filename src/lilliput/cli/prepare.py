"""`lilliput prepare`: tokenise a corpus and print its statistics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from lilliput.cli.error_flags import check_place, gather
from lilliput.cli.output import print_json, print_status, progress, stderr_console, stdout_console
from lilliput.errors import UserError, UserErrors

if TYPE_CHECKING:
    from rich.table import Table

    from lilliput.settings.tree import Config

TAKES_SETTINGS = True
EXAMPLES = """
    lilliput prepare mytext.txt
    lilliput prepare stories.jsonl --data.text-field story --tokenizer.vocab-size 4096
    lilliput prepare mytext.txt --duplicates near
    lilliput prepare mytext.txt --show 1000 --ids 100
    lilliput prepare demo --json
    lilliput prepare storybook --conllu stories.conllu     annotated stories of the validation split
"""
MOST_LABELS = 12  # labels listed per split
SHOWN_CHARACTERS, SHOWN_IDS = 1000, 100  # of --show and --ids without a number
IDS_PER_LINE = 10
WIDE = 500  # columns of the table in a pipe or file, so that no name wraps
# Rows of the table by key of `document_tokens`, with their format.
LENGTHS = {
    "mean": ("tokens per document (without end token): mean", ",.1f"),
    "p5": ("  5th percentile", ",.0f"),
    "p25": ("  25th percentile", ",.0f"),
    "p50": ("  median", ",.0f"),
    "p75": ("  75th percentile", ",.0f"),
    "p95": ("  95th percentile", ",.0f"),
    "max": ("  longest", ",d"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="recipe (path or name), text file, folder, or name of a dataset")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--duplicates",
        choices=["near"],
        help="also find near duplicates (exact duplicates are always counted)",
    )
    parser.add_argument("--rebuild", action="store_true", help="ignore the cache")
    parser.add_argument(
        "--show",
        nargs="?",
        metavar="N",
        const=str(SHOWN_CHARACTERS),
        help=f"also print the first N characters of the training text [{SHOWN_CHARACTERS} if N is omitted]",
    )
    parser.add_argument(
        "--ids",
        nargs="?",
        metavar="N",
        const=str(SHOWN_IDS),
        help=f"also print the first N token ids of the training split [{SHOWN_IDS} if N is omitted]",
    )
    parser.add_argument(
        "--conllu", metavar="FILE", help="write the validation stories of the storybook, annotated, to FILE (CoNLL-U)"
    )


def run(arguments: argparse.Namespace) -> int:
    from lilliput.data.corpora import open_corpus
    from lilliput.data.prepare import prepare
    from lilliput.data.prepare.excerpts import first_ids, first_text
    from lilliput.settings.loading import load_config

    errors: list[UserError] = []
    characters = gather(errors, lambda: check_count("--show", arguments.show, SHOWN_CHARACTERS))
    ids = gather(errors, lambda: check_count("--ids", arguments.ids, SHOWN_IDS))
    config = gather(errors, lambda: load_config(arguments.target, arguments.settings, origin="command line"))
    if arguments.conllu is not None and config is not None:
        gather(errors, lambda: check_conllu(arguments.conllu, config))
    if errors or config is None:
        raise UserErrors(errors)
    with progress(stderr_console()) as report:
        prepared = prepare(config, report, rebuild=arguments.rebuild)
        found = prepared.report(config.model.context)
        if config.vectors.source is not None:
            from lilliput.data.vectors import prepare_vectors

            found["vectors"] = prepare_vectors(config, prepared, report, arguments.rebuild).report
        if arguments.duplicates == "near":
            from lilliput.data.duplicates import find_near

            near = find_near(open_corpus(config.data), report=report, folder=Path(config.data.cache))
            found["near_duplicates"] = near.as_json()
    if characters is not None:
        found["text"] = first_text(open_corpus(config.data), prepared, characters)
    if ids is not None:
        found["ids"] = first_ids(prepared, ids)
    if arguments.conllu is not None:
        found["conllu"] = write_conllu(Path(arguments.conllu), config)
    if arguments.json:
        print_json(found)
        return 0
    console = stdout_console()
    if not console.is_terminal:
        console.width = WIDE
    console.print(split_table(found))
    for sentence in sentences(found):
        console.print(printable(sentence), markup=False, emoji=False)
    for line in excerpt_lines(found):
        console.out(line, highlight=False)
    if arguments.conllu is not None:
        print_status(f"wrote {found['conllu']['documents']:,} annotated stories to {arguments.conllu}")
    return 0


def check_conllu(path: str, config: Config) -> None:
    if config.data.source != "storybook" or config.data.validation_source is not None:
        what = f"--conllu requires the source storybook, which has annotations (got {config.data.source})"
        raise UserError(what, fix="use lilliput prepare storybook or remove --conllu", code="flag.conflict")
    check_place("conllu", path)


def write_conllu(path: Path, config: Config) -> dict[str, Any]:
    from lilliput.data.corpora import open_corpus
    from lilliput.data.corpora.conllu import format_conllu
    from lilliput.data.storybook.annotations import annotate
    from lilliput.storage.atomic_files import write_whole

    stories = [document.text for document in open_corpus(config.data).documents("validation")]
    write_whole(path, "".join(format_conllu(map(annotate, stories), "story")).encode())
    return {"file": str(path), "documents": len(stories)}


def check_count(flag: str, text: str | None, example: int) -> int | None:
    """Return the number that a flag has, or None if the flag is absent."""
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        what, fix = f"{flag} must be an integer of at least 1 (got {text!r})", f"use {flag} {example}, for example"
        raise UserError(what, None, fix=fix, code="flag.value")
    return int(text)


def split_table(found: dict[str, Any]) -> Table:
    """Return a table with one column per split."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=True)
    table.add_column("")
    for split in found["documents"]:
        table.add_column(split, justify="right")
    cut, duplicates = found["cut"], found["duplicates"]
    lengths = found["document_tokens"]
    rows: list[tuple[str, dict[str, float | None], str]] = [
        ("documents", found["documents"], ",d"),
        ("bytes", found["bytes"], ",d"),
        ("tokens", found["tokens"], ",d"),
        ("words", found["words"], ",d"),
        ("bytes per token", found["bytes_per_token"], ".2f"),
        ("tokens per word", found["tokens_per_word"], ".2f"),
        *(
            (name, {split: values[key] for split, values in lengths.items()}, form)
            for key, (name, form) in LENGTHS.items()
            if key == "mean" or max(found["documents"].values()) > 1
        ),
        (f"documents longer than the context ({cut['context']:,} tokens)", cut["documents"], ".1%"),
        (f"tokens beyond the first {cut['context']:,} of their document", cut["tokens"], ".1%"),
        ("repeated documents within the split", duplicates["within"], ",d"),
        ("documents that are also in the training split", duplicates["across"], ",d"),
    ]
    if any(share is not None for share in found["coverage"].values()):
        rows.insert(6, ("tokens in the vocabulary", found["coverage"], ".2%"))
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
    if replaced := sum(found["line_ends"].values()):
        lines.append(f"{replaced:,} line ends CRLF or CR became LF (data.line_ends keep leaves them unchanged)")
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


def excerpt_lines(found: dict[str, Any]) -> list[str]:
    """Return the lines of --show and --ids."""
    lines: list[str] = []
    if "text" in found:
        lines = ["", f"first {len(found['text']):,} characters of the training text:", ""]
        lines += [printable(line.removesuffix("\r").expandtabs()) for line in found["text"].split("\n")]
    if "ids" in found:
        ids, width = found["ids"], len(str(max(found["ids"])))
        lines += ["", f"first {len(ids):,} token ids of the training split:", ""]
        for start in range(0, len(ids), IDS_PER_LINE):
            lines.append(" ".join(f"{one:{width}}" for one in ids[start : start + IDS_PER_LINE]))
    return lines


def one_line(text: str) -> str:
    return " ".join(text.split())


def printable(text: str) -> str:
    """Replace control characters: a corpus may contain terminal escape sequences."""
    return "".join(one if one.isprintable() or category(one) == "Zs" else "\ufffd" for one in text)
