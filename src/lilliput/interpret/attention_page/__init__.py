"""The attention page: one HTML file that shows all attention weights of a text in a browser, without a network.

Owns: packing the weights, and combining data, style and scripts into one page. The template, the style sheet and the scripts
are in this folder (`page.html`, `page.css`, `page.js` and the other scripts). Does not own: the scores (`head_scores`).

Each head is a `<script>` element of a type that browsers do not execute: base64 of zlib of its visible cells, row by row,
decoded when the head is shown. A weight is stored as round(levels x sqrt(weight)), since most are small. With 65,535 levels
the error is at most 0.002 percentage points; with 255, used where a page would otherwise take tens of megabytes, 0.2 at 25%
and 0.04 at 1%. The page shows only the digits that are exact.
"""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from lilliput.interpret.attention_maps import AttentionMaps, Mask, Weights, label
from lilliput.interpret.head_score_definitions import SCORES
from lilliput.interpret.head_scores import Tally
from lilliput.storage import atomic_files as files

SCRIPTS = ("store", "colours", "heat_map", "lines", "reading", "overview", "table", "page")
# Above this number, one byte per cell instead of two: 12 x 12 heads of 512 tokens take less than 25 MB.
MANY_CELLS = 6_000_000
SHOWN_CUT = 200  # tokens shown of the part of a text that was not read


def write_page(attention: AttentionMaps, path: str | Path, tally: Tally | None = None) -> int:
    """Write the page atomically; return its size in bytes. `tally`: scores over documents instead of this text."""
    data = page_of(attention, tally).encode("utf-8", "replace")
    files.write_whole(Path(path), data)
    return len(data)


def page_of(attention: AttentionMaps, tally: Tally | None = None) -> str:
    masks = [attention.mask(place) for place in range(len(attention.weights))]
    distinct = list({mask.tobytes(): mask for mask in masks}.values())
    numbers = {mask.tobytes(): number for number, mask in enumerate(distinct)}
    cells = sum(int(mask.sum()) * len(weights) for mask, weights in zip(masks, attention.weights, strict=True))
    levels = 255 if cells > MANY_CELLS else 65_535
    about = describe(attention, tally, levels, [numbers[mask.tobytes()] for mask in masks])
    blocks = [embed(f"mask-{number}", np.packbits(mask).tobytes()) for number, mask in enumerate(distinct)]
    for place, (weights, mask) in enumerate(zip(attention.weights, masks, strict=True)):
        blocks += [embed(f"head-{place}-{at}", pack(head, mask, levels)) for at, head in enumerate(weights)]
    return fill(
        read_asset("page.html"),
        {
            "title": html.escape(attention.title),
            "style": read_asset("page.css"),
            "about": as_script(about),
            "blocks": "\n".join(blocks),
            "script": "\n".join(read_asset(f"{name}.js") for name in SCRIPTS),
        },
    )


def describe(attention: AttentionMaps, tally: Tally | None, levels: int, masks: list[int]) -> dict[str, Any]:
    """Return the data of the page except weights and masks."""
    scored = tally or Tally().add(attention)
    text = "".join([*attention.before, *attention.tokens, *attention.after, attention.last or ""])
    return {
        "title": attention.title,
        "labels": attention.labels,
        "marks": {"space": " " in text, "line": "\n" in text},
        "breaks": [at for at, token in enumerate(attention.tokens) if "\n" in token],
        "padding": [] if attention.padding is None else np.flatnonzero(attention.padding).tolist(),
        "before": cut_labels(list(attention.before), from_end=True),
        "after": cut_labels(list(attention.after), from_end=False),
        "prompt": attention.prompt,
        "last": None if attention.last is None else label(attention.last),
        "layers": attention.layer_numbers,
        "heads": [attention.head_numbers(place) for place in range(len(attention.weights))],
        "masks": masks,
        "levels": levels,
        "scores": {name: score._asdict() for name, score in SCORES.items()},
        "summary": [one.as_dict() for one in scored.heads()],
        "even": [one.as_dict() for one in scored.even()],
        "surveyed": None if tally is None else {"texts": tally.texts, "tokens": tally.tokens},
    }


def cut_labels(tokens: list[str], from_end: bool) -> dict[str, Any]:
    """Return the number of tokens that were not read, and the labels of those nearest to the text."""
    near = tokens[-SHOWN_CUT:] if from_end else tokens[:SHOWN_CUT]
    return {"count": len(tokens), "labels": [label(token) for token in near]}


def pack(weights: Weights, mask: Mask, levels: int) -> bytes:
    """Return the visible cells of one head (T, T), row by row; high bytes come before low bytes: this compresses better."""
    whole = np.rint(levels * np.sqrt(np.clip(weights[mask].astype(np.float64), 0.0, 1.0)))
    if levels <= 255:
        return bytes(whole.astype(np.uint8))
    return bytes(whole.astype(">u2").view(np.uint8).reshape(-1, 2).T.copy())


def embed(name: str, data: bytes) -> str:
    text = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
    return f'<script type="application/octet-stream" id="{name}">{text}</script>'


def as_script(value: Mapping[str, Any]) -> str:
    """Return JSON without "<", so that no token can end the script element that contains it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Replace each {{name}} of the template in one pass, so that {{...}} inside a part stays as it is."""
    text, rest = "", template
    while "{{" in rest:
        before, _, rest = rest.partition("{{")
        name, _, rest = rest.partition("}}")
        text += before + parts[name]
    return text + rest


def read_asset(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")
