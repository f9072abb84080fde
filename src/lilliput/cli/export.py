"""`lilliput export`: write a run in the format of another program, and compare the result with the run."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.cli.error_flags import flags_in_errors
from lilliput.cli.output import print_json, progress, stderr_console, stdout_console
from lilliput.errors import UserError

if TYPE_CHECKING:
    from lilliput.exporting.export import Exported

TAKES_SETTINGS = False
EXAMPLES = """
    lilliput export demo --to huggingface                 folder for transformers, in runs/demo/huggingface
    lilliput export demo --to gguf --precision q8_0       file for llama.cpp and Ollama, in runs/demo/gguf
    lilliput export demo --to huggingface --out mymodel --licence mit --overwrite
    lilliput export demo --to gguf --json
"""
TARGETS, PRECISIONS = ("huggingface", "gguf"), ("f32", "f16", "q8_0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run (folder, or name in runs/) or checkpoint folder")
    parser.add_argument("--to", required=True, choices=TARGETS, help="format: huggingface (a folder) or gguf (a file)")
    parser.add_argument("--out", metavar="DIR", help="folder to write [huggingface or gguf in the folder of the run]")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument("--precision", choices=PRECISIONS, help="type of the weights in a GGUF file [f32]")
    parser.add_argument("--licence", metavar="NAME", help="licence for the model card, such as mit [none]")
    parser.add_argument(
        "--evaluation",
        metavar="FILE",
        help="file with the output of lilliput evaluate RUN --json; its values are added to the model card",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from lilliput.storage.run_folders import resolve_checkpoint

    if arguments.precision is not None and arguments.to != "gguf":
        what, fix = "--precision requires --to gguf (got --to huggingface)", "remove --precision or use --to gguf"
        raise UserError(what, fix=fix, code="flag.conflict")
    resolve_checkpoint(arguments.run)  # a wrong name is reported without importing torch
    evaluation = None if arguments.evaluation is None else read_evaluation(Path(arguments.evaluation))
    from lilliput.exporting.export import ExportRequest, export_run

    request = ExportRequest(
        to=arguments.to,
        out=None if arguments.out is None else Path(arguments.out),
        overwrite=arguments.overwrite,
        precision=arguments.precision or "f32",
        licence=arguments.licence,
        evaluation=evaluation,
    )
    with flags_in_errors(), progress(stderr_console()) as report:
        done = export_run(arguments.run, request, report)
    if arguments.json:
        print_json(done.as_dict())
    else:
        print_result(done)
    return 0


def read_evaluation(path: Path) -> dict[str, Any]:
    from lilliput.storage.atomic_files import parse_object

    try:
        return parse_object(path.read_bytes())
    except OSError as error:
        what = f"cannot read the evaluation: {error.strerror}"
        raise UserError(what, str(path), fix="check the path", code="file.unreadable", setting="evaluation") from error
    except ValueError as error:
        what, fix = f"the evaluation is not a JSON object: {error}", "give the output of lilliput evaluate RUN --json"
        raise UserError(what, str(path), fix=fix, code="file.syntax", setting="evaluation") from error


def print_result(done: Exported) -> None:
    console, found = stdout_console(), done.comparison

    def line(name: str, text: str) -> None:
        console.print(f"{name:22}{text}", markup=False, soft_wrap=True)

    line("format", f"{done.format}, from {done.checkpoint}")
    line("compared with the run", f"{found['texts']} texts ({found['source']}), read by {found['consumer']}")
    if done.to == "huggingface":
        line("ids", "equal")
        line("logits", f"largest difference {found['largest_difference']:.1e}")
        ties = f" ({found['ties']} texts end at a tie)" if found["ties"] else ""
        line("greedy tokens", f"{found['greedy_tokens']} equal{ties}")
    else:
        line("tensors", f"{found['tensors']}, metadata and ids equal; llama.cpp itself was not run")
        line("logits", f"changed by at most {found['rounding_difference']:.1e} by the format")
    for note in done.notes:
        line("note", note)
    line("export", f"{shlex.quote(str(done.folder))}  ({sum(done.files.values()):,} bytes)")
