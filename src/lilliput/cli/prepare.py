"""`lilliput prepare`: text in, token files and a report out."""

from __future__ import annotations

import argparse

from lilliput.cli.output import chatter, figures, print_json, progress

TAKES_SETTINGS = True
EXAMPLES = """
    lilliput prepare mytext.txt
    lilliput prepare stories.jsonl --data.text-field story --tokenizer.vocab-size 4096
    lilliput prepare demo --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="a recipe (its path or name), a text file, a .jsonl file, or a folder of them")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    from rich.table import Table

    from lilliput.config import load_config
    from lilliput.data.prepare import prepare

    config = load_config(arguments.target, arguments.settings)
    with progress(chatter()) as report:
        prepared = prepare(config, report)
    found = prepared.report()
    if arguments.json:
        print_json(found)
        return 0
    table = Table(
        "split", "documents", "bytes", "tokens", "bytes/token", "unknown", "duplicates", box=None, pad_edge=False
    )
    for split in found["documents"]:
        table.add_row(
            split,
            f"{found['documents'][split]:,}",
            f"{found['bytes'][split]:,}",
            f"{found['tokens'][split]:,}",
            f"{found['bytes_per_token'][split]:.2f}",
            f"{found['unknown_rate'][split]:.2%}",
            f"{found['duplicates']['within'][split]:,}",
        )
    console = figures()
    console.print(table)
    console.print(
        f"vocabulary {found['vocab_size']:,}; {found['duplicates']['across']:,} documents stand in both splits; "
        f"kept in {prepared.folder}"
    )
    return 0
