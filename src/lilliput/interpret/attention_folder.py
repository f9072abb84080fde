"""The output folder of `lilliput attention`.

Owns: the names of its files, the arrays, and deleting the files of an earlier text. Does not own: the contents of the page,
the pictures and the table (`attention_page`, `heat_maps`, `head_scores`).

    attention.html            the page
    attention.npz             layer_<n> (H, T, T), visible_<n> (T, T); tokens, ids, padding (T,); heads (H,)
    heads.csv                 the scores of each head; heads-documents.csv over documents, if the folder has the page of a text
    functions.csv             the functions of each head
    layer-<n>.png             all heads of a layer; layer-<n>-head-<m>.png one of them (or .svg)
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lilliput.data.progress import Report, silent
from lilliput.interpret.attention_maps import AttentionMaps
from lilliput.interpret.attention_page import write_page
from lilliput.interpret.head_functions import HeadFunctions, csv_of_functions
from lilliput.interpret.head_scores import Tally, csv_of, sort_heads
from lilliput.storage import atomic_files as files

Pictures = Literal["layers", "heads", "none"]
OWN = re.compile(r"attention\.(html|npz)|(heads(-documents)?|functions)\.csv|layer-\d+(-head-\d+)?\.(png|svg)")
DPI = 150


def open_folder(folder: Path, another_text: bool) -> None:
    """Create the folder if needed; with `another_text` delete the files of an earlier text, but no other files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir() if another_text else ():
            if OWN.fullmatch(path.name) and path.is_file():
                path.unlink()
    except OSError as error:
        raise files.cannot_write(error, folder) from error


def write_folder(
    attention: AttentionMaps,
    folder: Path,
    tally: Tally | None = None,
    pictures: Pictures = "layers",
    svg: bool = False,
    report: Report = silent,
) -> dict[str, int]:
    """Write the page, the arrays and the pictures of one text; return the bytes of each file by its name."""
    sizes = {"attention.html": write_page(attention, folder / "attention.html", tally)}
    sizes["attention.npz"] = write(folder / "attention.npz", lambda out: save_arrays(out, arrays(attention)))
    planned: list[tuple[int, int | None]] = []
    for place, layer in enumerate(attention.layer_numbers if pictures != "none" else []):
        heads = attention.head_numbers(place) if pictures == "heads" else []
        planned += [(layer, None), *((layer, head) for head in heads)]
    for done, (layer, head) in enumerate(planned):
        report("drawing", done, len(planned))
        name = f"layer-{layer}" + ("" if head is None else f"-head-{head}") + (".svg" if svg else ".png")
        sizes[name] = write_picture(attention, layer, head, folder / name)
    if planned:
        report("drawing", len(planned), len(planned))
        from lilliput.interpret.heat_maps import missing_characters

        if missing := missing_characters(attention.labels):
            report(f"the font of the pictures lacks {missing}, drawn as boxes; attention.html shows them", 0, 0)
    return sizes


def write_scores(tally: Tally, folder: Path, by: str = "layer", of_text: bool = True) -> dict[str, int]:
    """Write the table; return its size by its name. A table of documents does not replace that of an earlier page."""
    text = csv_of(sort_heads(tally.heads(), by), tally.even())
    name = "heads.csv" if of_text or not (folder / "attention.html").exists() else "heads-documents.csv"
    return {name: write(folder / name, lambda out: out.write(text.encode()))}


def write_functions(found: Sequence[HeadFunctions], folder: Path) -> int:
    text = csv_of_functions(found)
    return write(folder / "functions.csv", lambda out: out.write(text.encode()))


def write_picture(attention: AttentionMaps, layer: int, head: int | None, path: Path) -> int:
    from matplotlib import rc_context

    from lilliput.interpret.heat_maps import draw_heads, draw_layer

    figure = draw_layer(attention, layer) if head is None else draw_heads(attention, layer, [head])
    kind = path.suffix.removeprefix(".")
    # No date and no random ids in the file: the same text gives the same bytes.
    with rc_context({"svg.hashsalt": path.name}):
        metadata = {"Date": None} if kind == "svg" else None
        return write(path, lambda out: figure.savefig(out, format=kind, dpi=DPI, metadata=metadata))


def arrays(attention: AttentionMaps) -> dict[str, NDArray[Any]]:
    named: dict[str, NDArray[Any]] = {"tokens": np.array(list(attention.tokens))}
    for place, layer in enumerate(attention.layer_numbers):
        named |= {f"layer_{layer}": attention.weights[place], f"visible_{layer}": attention.mask(place)}
    optional = {"ids": attention.ids, "padding": attention.padding, "heads": attention.heads}
    return named | {name: np.asarray(value) for name, value in optional.items() if value is not None}


def save_arrays(out: io.BytesIO, named: dict[str, NDArray[Any]]) -> None:
    np.savez_compressed(out, **named)  # type: ignore[arg-type]  # no array has the name of its one option


def write(path: Path, fill: Callable[[io.BytesIO], object]) -> int:
    """Write a file atomically; return its size in bytes."""
    out = io.BytesIO()
    fill(out)
    files.write_whole(path, out.getvalue())
    return len(out.getvalue())
