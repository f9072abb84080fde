"""The only loop that writes. A generator: `generate` drains it, the command line prints it, a server sends it.

Owns: prefill of unequal prompts, one step for all rows, rows that end and leave, and the rule for texts longer than the
context. Does not own: what a token is in text (`data.tokenizers`), nor how it is chosen (`processors`).

The rule for long texts: a row whose view has reached the context goes on from the last half of it, read anew. So the
cost of the slide is paid once in context / 2 tokens, a row's text depends on that row alone, and no position is ever
beyond the context. A prompt longer than the context is read in the same way: its last half-context is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lilliput.decoding.processors import Chooser, Processor
from lilliput.model.attention import Capture
from lilliput.model.cache import Cache
from lilliput.model.transformer import Transformer

Finish = Literal["end", "length"]


@dataclass(frozen=True)
class Written:
    """One token of one row.

    `logprob` is the model's own, before processors; `finish` is told with the row's last token.
    """

    row: int
    id: int
    logprob: float
    finish: Finish | None


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Without dropout, and back to what it was."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


@torch.inference_mode()
def prefill(model: Transformer, views: Sequence[Sequence[int]], capture: Capture | None = None) -> tuple[Tensor, Cache]:
    """Logits (B, V) after the last token of each row, and the cache. Shorter rows are padded on the left."""
    longest = max(len(view) for view in views)
    cache = model.new_cache(len(views))
    ids = torch.tensor([[0] * (longest - len(view)) + list(view) for view in views], device=model.device)  # (B, T)
    pos = None
    if any(len(view) < longest for view in views):
        starts = torch.tensor([longest - len(view) for view in views], device=model.device)
        pos = (torch.arange(longest, device=model.device) - starts[:, None]).clamp(min=-1)  # (B, T)
    now = model.begin(ids, pos, None, cache, capture)
    last = model.trunk(ids, now)[:, -1:]  # the head is for the last position only: V x T products are saved
    logits: Tensor = model.head(last, now)[:, -1]
    return logits, cache


@torch.inference_mode()
def step(
    model: Transformer, ids: Sequence[int], lengths: Sequence[int], cache: Cache, capture: Capture | None = None
) -> Tensor:
    """Logits (B, V) after one more token a row; `lengths` are the rows' tokens before it."""
    column, at = torch.tensor([ids, lengths], device=model.device).unsqueeze(-1)  # (B, 1) each
    in_order = all(length == cache.length for length in lengths)  # no row has padding: no mask is needed
    logits: Tensor = model(column, pos=None if in_order else at, cache=cache, capture=capture)[:, -1]
    return logits


def stream(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    chooser: Chooser,
    processors: Sequence[Processor] = (),
    tokens: int = 256,
    end: int | None = None,
    capture: Capture | None = None,
) -> Iterator[Written]:
    """Write up to `tokens` tokens after each prompt (at least one id each), or until `end`, all rows in step."""
    assert all(prompts), "an empty prompt begins with the end-of-text token"
    context, keep = model.settings.context, max(1, model.settings.context // 2)
    texts = [list(prompt) for prompt in prompts]
    views = [text if len(text) <= context else text[-keep:] for text in map(list, prompts)]
    rows = list(range(len(prompts)))  # those still writing
    with evaluating(model):
        logits, cache = prefill(model, views, capture)
    for written in range(1, tokens + 1):
        logprobs = logits.cpu().double().log_softmax(dim=-1)  # on the CPU: not every device has float64
        shaped = logits
        for process in processors:
            shaped = process([texts[row] for row in rows], shaped)
        chosen = chooser.choose(shaped, rows)
        going: list[int] = []  # places in the batch of the rows that go on
        for place, (row, id_) in enumerate(zip(rows, chosen, strict=True)):
            finish: Finish | None = "end" if id_ == end else "length" if written == tokens else None
            texts[row].append(id_)
            views[row] = views[row] + [id_]
            if finish is None:
                going.append(place)
            yield Written(row, id_, float(logprobs[place, id_]), finish)
        if not going:
            return
        if len(going) < len(rows):
            rows = [rows[place] for place in going]
            cache.reorder(torch.tensor(going, device=model.device))
        with evaluating(model):
            if any(len(views[row]) > context for row in rows):
                for row in rows:
                    views[row] = views[row] if len(views[row]) <= context else views[row][-keep:]
                logits, cache = prefill(model, [views[row] for row in rows], capture)
            else:
                last, lengths = [views[row][-1] for row in rows], [len(views[row]) - 1 for row in rows]
                logits = step(model, last, lengths, cache, capture)
