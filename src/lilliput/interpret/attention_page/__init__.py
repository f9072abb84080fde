"""The attention page: one HTML file that shows all attention weights of a text in a browser, without a network.

Owns: how the weights are packed, and putting data, style and scripts into one page. The template, the style sheet and
the scripts are beside this file (`page.html`, `page.css`, `page.js` and the parts that it uses). Does not own: the
scores (`head_scores`).

Each head is a `<script>` element of a type that browsers do not execute: base64 of zlib of its visible cells, row by
row, decoded when the head is shown. A weight is stored as round(levels x sqrt(weight)), since most are small: with
65,535 levels it is right to 0.002 percentage points; with 255, used where a text is so long that a page would take
tens of megabytes, to 0.2 at 25% and 0.04 at 1%. The page shows no more digits than that.
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
MANY_CELLS = (
    6_000_000  # from here on a byte a cell, and not two: a page stays below 25 MB for 12 x 12 heads of 512 tokens
)
SHOWN_CUT = 200  # tokens of a text's unseen part that are spelled out


def write_page(attention: AttentionMaps, path: str | Path, tally: Tally | None = None) -> int:
    """Write the page, whole or not at all; gives its size in bytes. `tally`: scores over other texts than this one."""
    data = page_of(attention, tally).encode("utf-8", "replace")
    files.write_whole(Path(path), data)
    return len(data)


def page_of(attention: AttentionMaps, tally: Tally | None = None) -> str:
    masks = [attention.mask(place) for place in range(len(attention.weights))]
    unlike = list({mask.tobytes(): mask for mask in masks}.values())
    numbers = {mask.tobytes(): number for number, mask in enumerate(unlike)}
    cells = sum(int(mask.sum()) * len(weights) for mask, weights in zip(masks, attention.weights, strict=True))
    levels = 255 if cells > MANY_CELLS else 65_535
    about = describe(attention, tally, levels, [numbers[mask.tobytes()] for mask in masks])
    blocks = [embed(f"mask-{number}", np.packbits(mask).tobytes()) for number, mask in enumerate(unlike)]
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
    """All that the page knows but the weights."""
    scored = tally or Tally().add(attention)
    spelled = "".join([*attention.before, *attention.tokens, *attention.after, attention.last or ""])
    return {
        "title": attention.title,
        "labels": attention.labels,
        "marks": {"space": " " in spelled, "line": "\n" in spelled},
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
    """What was not seen: how many tokens, and those nearest to the cut."""
    near = tokens[-SHOWN_CUT:] if from_end else tokens[:SHOWN_CUT]
    return {"count": len(tokens), "labels": [label(token) for token in near]}


def pack(weights: Weights, mask: Mask, levels: int) -> bytes:
    """The visible cells of one head (T, T), row by row; of two-byte numbers first all high bytes, which shrink better so."""
    whole = np.rint(levels * np.sqrt(np.clip(weights[mask].astype(np.float64), 0.0, 1.0)))
    if levels <= 255:
        return bytes(whole.astype(np.uint8))
    return bytes(whole.astype(">u2").view(np.uint8).reshape(-1, 2).T.copy())


def embed(name: str, data: bytes) -> str:
    text = base64.b64encode(zlib.compress(data, 6)).decode("ascii")
    return f'<script type="application/octet-stream" id="{name}">{text}</script>'


def as_script(value: Mapping[str, Any]) -> str:
    """JSON that cannot end the element which holds it, whatever a token spells."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def fill(template: str, parts: Mapping[str, str]) -> str:
    """The template with {{name}} replaced, each name once and in one go: what a part holds is never looked at again."""
    text, rest = "", template
    while "{{" in rest:
        before, _, rest = rest.partition("{{")
        name, _, rest = rest.partition("}}")
        text += before + parts[name]
    return text + rest


def read_asset(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")
