"""A prefix cache: an engine that reuses the keys and values of prefixes it has read before.

Owns: finding the longest prefix that a new text shares with a cached text or with others of its batch, and the size of the
cache. Does not own: reading (the wrapped engine) or the storage of rows.

Only the tokens after the shared prefix are read; at least the last token, because its logits are needed. This takes one
more pass, which costs as much as fifty tokens of another pass (torch engine, dim 288, 6 layers), so a prefix shorter
than `min_length` tokens is not reused. Windowed layers drop old keys and cannot be truncated to a prefix: there the
prefix is read separately and cached for later texts.

The cache is invalid after a change of the weights: create a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from lilliput.decoding.engines import Engine, EngineRows

Ids = tuple[int, ...]


class PrefixCache:
    """An engine with a cache of at most `max_texts` texts, whose keys and values take at most `max_bytes` bytes."""

    def __init__(self, engine: Engine, max_texts: int = 8, max_bytes: int = 256 * 2**20, min_length: int = 48) -> None:
        assert max_texts > 0 and min_length > 0
        self.engine, self.max_texts, self.max_bytes, self.min_length = engine, max_texts, max_bytes, min_length
        self.name, self.context = engine.name, engine.context
        self.cached: OrderedDict[Ids, EngineRows] = OrderedDict()  # one row each, least recently used first

    @property
    def nbytes(self) -> int:
        """Bytes of the cached texts, without the rows in progress."""
        return sum(rows.nbytes for rows in self.cached.values())

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, EngineRows]:
        texts = [tuple(view) for view in views]
        groups = self.find_prefixes(texts)
        cached = {place for group in groups for place in group.places}
        alone = [place for place in range(len(texts)) if place not in cached]
        order: list[int] = []  # row i of `rows` is text order[i]
        rows: EngineRows | None = None
        logits: list[Tensor] = []
        for group in groups:
            group.rows.reorder([0] * len(group.places))
            order += group.places
            rows = join(rows, group.rows)
        if rows is not None:
            rests = [texts[place][group.length :] for group in groups for place in group.places]
            logits.append(rows.step(rests))
        if alone or rows is None:
            begun, new = self.engine.prefill([texts[place] for place in alone])
            logits.append(begun)
            order += alone
            rows = join(rows, new)
        back = sorted(range(len(order)), key=order.__getitem__)
        rows.reorder(back)
        for place in range(max(0, len(texts) - self.max_texts), len(texts)):
            self.add(texts[place], rows, place)
        return torch.cat(logits)[back], rows

    def find_prefixes(self, texts: Sequence[Ids]) -> list[SharedPrefix]:
        """Return the rows for all texts that share a long enough prefix with a cached text or with each other."""
        groups: dict[tuple[Ids, int], SharedPrefix] = {}
        refused: set[tuple[Ids, int]] = set()
        # Place of a text -> length of the prefix that it shares with a cached text which cannot be truncated to it.
        alone: dict[int, int] = {}
        for place, text in enumerate(texts):
            shared = [(min(shared_length(held, text), len(text) - 1), held) for held in self.cached]
            enough = sorted((found for found in shared if found[0] >= self.min_length), key=lambda found: -found[0])
            for length, held in enough:
                if (held, length) not in groups and (held, length) not in refused:
                    rows = self.cached[held].pick([0])
                    try:
                        rows.truncate(length)
                    except ValueError:
                        refused.add((held, length))
                        continue
                    self.cached.move_to_end(held)
                    groups[held, length] = SharedPrefix(rows, length, [])
                if (held, length) in groups:
                    groups[held, length].places.append(place)
                    break
            else:
                alone[place] = enough[0][0] if enough else 0
        return [*groups.values(), *self.read_shared_prefixes(texts, alone)]

    def read_shared_prefixes(self, texts: Sequence[Ids], alone: dict[int, int]) -> list[SharedPrefix]:
        """Read once each prefix that several of these texts share, or that one shares with a cached text (`alone`)."""
        found: list[tuple[Ids, list[int]]] = []
        for place in sorted(alone, key=texts.__getitem__):  # sorted: texts with a shared prefix are adjacent
            text = texts[place]
            shared = min(shared_length(found[-1][0], text), len(text) - 1) if found else 0
            if shared >= self.min_length:
                found[-1] = text[:shared], [*found[-1][1], place]
            else:
                found.append((text[: len(text) - 1], [place]))
        found = [(prefix if len(places) > 1 else prefix[: alone[places[0]]], places) for prefix, places in found]
        found = [(prefix, places) for prefix, places in found if len(prefix) >= self.min_length]
        if not found:
            return []
        _, rows = self.engine.prefill([prefix for prefix, _ in found])
        for place, (prefix, _) in enumerate(found):
            self.add(prefix, rows, place)
        return [SharedPrefix(rows.pick([place]), len(text), places) for place, (text, places) in enumerate(found)]

    def add(self, text: Ids, rows: EngineRows, place: int) -> None:
        if text not in self.cached:
            self.cached[text] = rows.pick([place])
        self.cached.move_to_end(text)
        while len(self.cached) > self.max_texts or (self.cached and self.nbytes > self.max_bytes):
            self.cached.popitem(last=False)


class SharedPrefix:
    """One row that holds the first `length` tokens of the texts at these places."""

    def __init__(self, rows: EngineRows, length: int, places: list[int]) -> None:
        self.rows, self.length, self.places = rows, length, places


def join(rows: EngineRows | None, others: EngineRows) -> EngineRows:
    if rows is None:
        return others
    rows.join(others)
    return rows


def shared_length(one: Ids, other: Ids) -> int:
    """Return the length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
