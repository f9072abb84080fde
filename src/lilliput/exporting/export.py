"""Export a run: choose the format, write the files, compare them with the run, and put the folder in place.

Owns: the order of these steps, the destination, and what is returned. A failure leaves nothing behind. Does not own: the files
(`huggingface`, `gguf_file`, `model_card`), or the comparisons (`comparison`, `gguf_comparison`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from lilliput import __version__
from lilliput.data.progress import Report, silent
from lilliput.decoding.writer import Writer, load
from lilliput.errors import UserError
from lilliput.exporting.comparison_texts import find_texts
from lilliput.exporting.gguf_tokenizer import check_tokenizer
from lilliput.exporting.portability import choose_architecture, choose_class
from lilliput.exporting.requirements import Requirements
from lilliput.storage import atomic_files as files

Target = Literal["huggingface", "gguf"]
PACKAGES = {"huggingface": ("transformers",), "gguf": ("gguf",)}
MARK = "lilliput-export.json"  # only a folder with this file is overwritten


@dataclass(frozen=True)
class Exported:
    """What was written: the format (class or architecture), the result of the comparison, and the files with their bytes.

    `notes`: how the export differs from the run in form or, for gelu in GGUF, in value.
    """

    to: Target
    folder: Path
    format: str
    checkpoint: str
    comparison: dict[str, Any]
    files: dict[str, int]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder), "notes": list(self.notes)}


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What to export and how. `evaluation` is the JSON object of `lilliput evaluate`, for the model card."""

    to: Target
    out: Path | None = None
    overwrite: bool = False
    precision: Literal["f32", "f16", "q8_0"] = "f32"
    licence: str | None = None
    evaluation: Mapping[str, Any] | None = None


def export_run(run: str | Path, request: ExportRequest, report: Report = silent) -> Exported:
    """Export the best checkpoint of a run, or a given checkpoint. Nothing is written if the export is refused or differs."""
    check_packages(request.to)
    writer = load(run, device="cpu")
    writer.model.float()  # a run in float64 is exported and compared in float32
    place = destination(writer, request)
    check_destination(place, request.overwrite)
    if request.to == "huggingface":
        choose_class(writer.model)
    else:
        choose_architecture(writer.model)
        check_tokenizer(writer.tokenizer)
    fill = write_huggingface if request.to == "huggingface" else write_gguf
    return put_in_place(place, lambda folder: fill(folder, place, writer, request, report))


def check_packages(to: Target) -> None:
    for name in PACKAGES[to]:
        if find_spec(name) is None:
            what, fix = f"export to {to} requires {name}, which is not installed", 'run pip install "lilliput[export]"'
            raise UserError(what, fix=fix, code="package.missing")


def destination(writer: Writer, request: ExportRequest) -> Path:
    """Return the folder to write: the given one, or a folder of the run named by the target."""
    if request.out is not None:
        return request.out
    assert writer.checkpoint is not None
    run = writer.checkpoint.run_folder
    return Path(f"{writer.checkpoint.folder.name}-{request.to}") if run is None else run / request.to


def check_destination(place: Path, overwrite: bool) -> None:
    """Raise if the folder exists, unless it is an earlier export that may be overwritten."""
    if place.is_file():
        what, fix = "the output must be a folder (got a file)", "choose another folder"
        raise UserError(what, str(place), fix=fix, code="export.exists", setting="out")
    if not place.exists() or not any(place.iterdir()):
        return
    if not (place / MARK).is_file():
        what = "the output folder exists and is not an export of Lilliput"
        raise UserError(what, str(place), fix="choose another folder", code="export.exists", setting="out")
    if not overwrite:
        fix = "add --overwrite to replace it, or choose another folder"
        raise UserError("the output folder exists", str(place), fix=fix, code="export.exists", setting="out")


def put_in_place(place: Path, fill: Callable[[Path], Exported]) -> Exported:
    """Fill a temporary folder and rename it; remove it, and the folders made for it, if that fails."""
    place = place.resolve() if place.is_symlink() else place
    new = files.temporary_path(place.absolute())
    created = [folder for folder in new.parents if not folder.exists()]
    try:
        new.mkdir(parents=True)
        done = fill(new)
        files.write_flushed(new / MARK, files.json_bytes(done.as_dict() | {"lilliput": __version__}))
        files.sync_folder(new)
        files.put_folder(new, place.absolute())
    except OSError as error:
        raise files.cannot_write(error, place) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
        files.clean_leftovers(place.absolute().parent, place.name)
        with suppress(OSError):  # a folder with content stays
            for folder in created:
                folder.rmdir()
    return done


def name_of(writer: Writer) -> str:
    return writer.config.name or "run"


def position_limit(writer: Writer) -> str:
    """Return what a consumer does beyond the context."""
    context = writer.model.settings.context
    beyond = {
        "rotary": "Longer texts run without an error, but the model was not trained on them and becomes worse.",
        None: "Longer texts run without an error, but the model was not trained on them and becomes worse.",
    }.get(writer.model.settings.positions, "Longer texts are an error, because no position after it has a vector.")
    return (
        f"The context is {context:,} tokens, the start token included. {beyond} Lilliput itself moves its context along the "
        "text; other programs do not. max_length and the tokenizer's maximum length are set to it."
    )


def shape_notes(writer: Writer, required: Requirements) -> list[str]:
    """Return notes on weights that the format stores in another form."""
    settings, notes = writer.model.settings, list[str]()
    if required.kv_heads == "repeated" and settings.kv_heads != settings.heads:
        notes.append(
            f"Key-value heads are repeated ({settings.kv_heads} became {settings.heads}): the format has one per query head."
        )
    return notes


def card_limits(writer: Writer) -> list[str]:
    limits = [position_limit(writer), "It is a small model of its training text: it has no knowledge of facts."]
    if writer.tokenizer.lossy:
        limits.append(
            "The tokenizer does not keep every text unchanged (lossy): decoded text may differ from the input."
        )
    limits.append("Names of special tokens in a text, such as <|endoftext|>, are text and not special tokens.")
    return limits


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def write_huggingface(folder: Path, place: Path, writer: Writer, request: ExportRequest, report: Report) -> Exported:
    from lilliput.exporting.comparison import TOLERANCE, compare_huggingface
    from lilliput.exporting.huggingface import write_folder
    from lilliput.exporting.model_card import CardFacts, write_card

    stock, model = choose_class(writer.model), writer.model
    write_folder(folder, model, writer.tokenizer, stock, writer.config.generate)
    report("comparing the export with the run in another process", 0, 0)
    texts, source = find_texts(writer, report)
    result = compare_huggingface(model, writer.tokenizer, folder, texts, source)
    checked = (
        f"Loaded by {result.consumer} in another process and compared from raw text: the ids of {result.texts} texts "
        f"({source}) are equal; the largest difference of two logits is {result.largest_difference:.1e} (at most "
        f"{TOLERANCE:g} is allowed, in float32); {result.greedy_tokens} greedy tokens are equal."
    )
    usage = "\n".join(
        [
            "```python",
            "from transformers import pipeline",
            "",
            'write = pipeline("text-generation", "path/of/this/folder")',
            'print(write("Once upon a time")[0]["generated_text"])',
            "```",
        ]
    )
    notes = shape_notes(writer, stock)
    facts = CardFacts(
        title=name_of(writer),
        format=f"a Hugging Face folder of class {stock.architecture}",
        usage=usage,
        checked=checked,
        limits=[*notes, *card_limits(writer)],
        licence=request.licence,
        evaluation=request.evaluation,
    )
    files.write_flushed(folder / "README.md", write_card(writer, facts).encode("utf-8"))
    return finished(folder, place, writer, "huggingface", stock.architecture, asdict(result), notes)


def write_gguf(folder: Path, place: Path, writer: Writer, request: ExportRequest, report: Report) -> Exported:
    from lilliput.exporting import gguf_file
    from lilliput.exporting.gguf_comparison import compare_file
    from lilliput.exporting.model_card import CardFacts, write_card

    architecture, model = choose_architecture(writer.model), writer.model
    settings, name = writer.config.generate, name_of(writer)
    file = folder / f"{name}-{request.precision}.gguf"
    metadata = gguf_file.write_file(file, name, model, writer.tokenizer, architecture, request.precision)
    text = gguf_file.modelfile(file.name, model.settings.context, settings)
    files.write_flushed(folder / gguf_file.MODELFILE, text.encode("utf-8"))
    report("reading the file back in another process", 0, 0)
    texts, source = find_texts(writer, report)
    with torch.inference_mode():
        result = compare_file(model, writer.tokenizer, architecture, request.precision, file, metadata, texts, source)
    notes = shape_notes(writer, architecture)
    if architecture.tanh_gelu:
        notes.append(
            "llama.cpp computes gelu in its tanh form for this architecture; the model was trained with the exact form."
        )
    if result.float16_instead:
        notes.append(f"{result.float16_instead} matrices are float16: rows of q8_0 must be a multiple of 32.")
    checked = (
        f"Read back by {result.consumer} in another process: metadata and {result.tensors} tensors are those of the run, and "
        f"the ids of {result.texts} texts ({source}), computed from the tokens and merges in the file, are equal. Rounded "
        f"weights{' and the tanh form of gelu' if architecture.tanh_gelu else ''} change a logit by at most "
        f"{result.rounding_difference:.1e}. llama.cpp itself was not run."
    )
    usage = "\n".join(
        [
            "```console",
            f'$ llama-completion -m {file.name} -p "Once upon a time" -no-cnv',
            f"$ ollama create {name}",
            "```",
        ]
    )
    facts = CardFacts(
        title=name,
        format=f"a GGUF file of architecture {architecture.name} ({request.precision})",
        usage=usage,
        checked=checked,
        limits=[*notes, *card_limits(writer)],
        licence=request.licence,
        evaluation=request.evaluation,
        library="gguf",
    )
    files.write_flushed(folder / "README.md", write_card(writer, facts).encode("utf-8"))
    return finished(folder, place, writer, "gguf", architecture.name, asdict(result), notes)


def finished(
    folder: Path,
    place: Path,
    writer: Writer,
    to: Target,
    kind: str,
    comparison: dict[str, Any],
    notes: list[str],
) -> Exported:
    assert writer.checkpoint is not None
    return Exported(to, place, kind, writer.checkpoint.name, comparison, sizes(folder), tuple(notes))
