"""`lilliput predict`: predict the label of a text, or of each text of a file.

Owns: the flags and the output. Does not own: reading the file and predicting (`evaluation.label_prediction`).
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import Any

from lilliput.cli.error_flags import flags_in_errors
from lilliput.cli.output import print_json, print_note, stdout_console
from lilliput.errors import UserError

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput predict speech-classifier "My fellow Americans"
    lilliput predict speech-classifier --file mytext.txt                  one row of CSV per line of the file
    lilliput predict speech-classifier --file mytext.txt --out labels.csv
    lilliput predict speech-classifier "My fellow Americans" --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run (folder, or name in runs/) or checkpoint folder")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="text to classify")
    parser.add_argument(
        "--file", metavar="FILE", help="texts to classify, read like the run's data: one per line, row or document"
    )
    parser.add_argument("--out", metavar="FILE", help="write the CSV to FILE instead of stdout")
    parser.add_argument(
        "--device", default="auto", choices=("auto", "cpu", "cuda", "mps"), help="device to compute on [auto]"
    )
    parser.add_argument("--json", action="store_true", help="print the predictions as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    with flags_in_errors():
        check(arguments)
        from lilliput.evaluation.label_prediction import find_classifier, predict, read_documents

        classifier = find_classifier(arguments.run)
        labels: list[str | None] = [None]
        texts = [arguments.text]
        if arguments.file is not None:
            documents = read_documents(arguments.file, classifier.config.data, classifier.labels)
            texts, labels = [document.text for document in documents], [document.label for document in documents]
        found = predict(classifier, texts, arguments.device)
    has_labels = any(label is not None for label in labels)
    if has_labels:
        for prediction, label in zip(found["predictions"], labels, strict=True):
            prediction["actual"] = label
    for note in notes(found, has_labels):
        print_note(note)
    if arguments.json:
        print_json(found)
    elif arguments.file is None and arguments.out is None:
        print_one(found)
    else:
        write(arguments.out, as_csv(found))
    return 0


def check(arguments: argparse.Namespace) -> None:
    if (arguments.text is None) == (arguments.file is None):
        got = "neither" if arguments.text is None else "both"
        what, fix = f"predict requires a text or --file (got {got})", 'use "a text" or --file FILE'
        raise UserError(what, None, fix=fix, code="flag.missing" if got == "neither" else "flag.conflict")
    if arguments.text is not None and not arguments.text.strip():
        raise UserError("the text is empty", None, fix="give a text with at least one word", code="data.empty")
    if arguments.json and arguments.out is not None:
        what = "--json and --out cannot be combined"
        raise UserError(what, None, fix="remove --json or --out", code="flag.conflict")
    from lilliput.cli.error_flags import check_place

    check_place("out", arguments.out)


def notes(found: dict[str, Any], has_labels: bool) -> list[str]:
    """Return the sentences that are printed to stderr."""
    predictions, context = found["predictions"], found["context"]
    lines = []
    if cut := sum(one["truncated"] for one in predictions):
        which = "the text is" if len(predictions) == 1 else f"{cut:,} of {len(predictions):,} texts are"
        lines.append(
            f"{which} longer than the context of {context:,} tokens; only the beginning is read, as in evaluation"
        )
    if has_labels:
        lines.append("the texts have labels, which the model does not read (column actual); see lilliput evaluate --on")
    return lines


def print_one(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    (prediction,) = found["predictions"]
    table = Table("label", "probability", box=None, pad_edge=False)
    ranked = sorted(prediction["probabilities"].items(), key=lambda pair: -pair[1])
    for label, probability in ranked:
        chosen = label == prediction["label"]
        table.add_row(f"[bold]{escape(label)}[/]" if chosen else escape(label), f"{probability:.4f}")
    stdout_console().print(table)


def as_csv(found: dict[str, Any]) -> str:
    """Return a row per text (RFC 4180): its number from 1, the label, the probabilities, and the text."""
    labels, text = found["labels"], io.StringIO(newline="")
    table = csv.writer(text)
    has_labels = any("actual" in one for one in found["predictions"])
    probabilities = [f"probability_{label}" for label in labels]
    table.writerow(
        ["number", "label", *(["actual"] if has_labels else []), *probabilities, "tokens", "truncated", "text"]
    )
    for number, one in enumerate(found["predictions"], start=1):
        actual = [one["actual"]] if has_labels else []
        values = one["probabilities"].values()
        table.writerow([number, one["label"], *actual, *values, one["tokens"], int(one["truncated"]), one["text"]])
    return text.getvalue()


def write(path: str | None, text: str) -> None:
    if path is None:
        print(text.replace("\r\n", "\n"), end="")
        return
    from lilliput.storage.atomic_files import write_whole

    write_whole(Path(path), text.encode())
