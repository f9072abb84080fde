"""What was read once is not read again: an engine that remembers the texts it was given last.

Owns: finding the longest beginning that a new text shares with a remembered one or with its neighbours, and
how much is remembered. Does not own: reading (the engine inside) or the rows' storage.

A text is continued from what it shares, and only the rest is read, at least its last token: its logits are wanted.
Reading in
two parts takes a pass more, which costs what fifty tokens cost in a pass that is made anyway (the torch engine, dim
288, 6
layers); so a beginning shorter than `worth` tokens is simply read again. Windowed layers forget, and cannot go back
to a
beginning that they have read past: there the beginning is read alone, and remembered by itself for the texts to come.

Whoever changes the weights builds another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from lilliput.decoding.engines import Engine, EngineRows

Ids = tuple[int, ...]


class Remembering:
    """An engine with a memory of at most so many texts, whose keys and values take at most `room` bytes."""

    def __init__(self, engine: Engine, texts: int = 8, room: int = 256 * 2**20, worth: int = 48) -> None:
        assert texts > 0 and worth > 0
        self.engine, self.texts, self.room, self.worth = engine, texts, room, worth
        self.name, self.context = engine.name, engine.context
        self.held: OrderedDict[Ids, EngineRows] = OrderedDict()  # one row each; the least recently used first

    @property
    def nbytes(self) -> int:
        """Memory that is remembered, beside what is being written."""
        return sum(rows.nbytes for rows in self.held.values())

    def prefill(self, views: Sequence[Sequence[int]]) -> tuple[Tensor, EngineRows]:
        texts = [tuple(view) for view in views]
        groups = self.recall(texts)
        recalled = {place for group in groups for place in group.places}
        alone = [place for place in range(len(texts)) if place not in recalled]
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
        for place in range(max(0, len(texts) - self.texts), len(texts)):
            self.remember(texts[place], rows, place)
        return torch.cat(logits)[back], rows

    def recall(self, texts: Sequence[Ids]) -> list[Shared]:
        """EngineRows for all texts that share enough with a remembered one, or with each other."""
        groups: dict[tuple[Ids, int], Shared] = {}
        refused: set[tuple[Ids, int]] = set()
        alone: dict[int, int] = {}  # place of a text: what it shares with a remembered one that cannot be gone back to
        for place, text in enumerate(texts):
            shared = [(min(common(held, text), len(text) - 1), held) for held in self.held]
            enough = sorted((found for found in shared if found[0] >= self.worth), key=lambda found: -found[0])
            for length, held in enough:
                if (held, length) not in groups and (held, length) not in refused:
                    rows = self.held[held].pick([0])
                    try:
                        rows.truncate(length)
                    except ValueError:
                        refused.add((held, length))
                        continue
                    self.held.move_to_end(held)
                    groups[held, length] = Shared(rows, length, [])
                if (held, length) in groups:
                    groups[held, length].places.append(place)
                    break
            else:
                alone[place] = enough[0][0] if enough else 0
        return [*groups.values(), *self.read_beginnings(texts, alone)]

    def read_beginnings(self, texts: Sequence[Ids], alone: dict[int, int]) -> list[Shared]:
        """Read once what several of these texts begin with, or what one shares with a text that cannot be gone back to."""
        found: list[tuple[Ids, list[int]]] = []
        for place in sorted(alone, key=texts.__getitem__):  # what begins alike stands side by side
            text = texts[place]
            shared = min(common(found[-1][0], text), len(text) - 1) if found else 0
            if shared >= self.worth:
                found[-1] = text[:shared], [*found[-1][1], place]
            else:
                found.append((text[: len(text) - 1], [place]))
        found = [
            (beginning if len(places) > 1 else beginning[: alone[places[0]]], places) for beginning, places in found
        ]
        found = [(beginning, places) for beginning, places in found if len(beginning) >= self.worth]
        if not found:
            return []
        _, rows = self.engine.prefill([beginning for beginning, _ in found])
        for place, (beginning, _) in enumerate(found):
            self.remember(beginning, rows, place)
        return [Shared(rows.pick([place]), len(text), places) for place, (text, places) in enumerate(found)]

    def remember(self, text: Ids, rows: EngineRows, place: int) -> None:
        if text not in self.held:
            self.held[text] = rows.pick([place])
        self.held.move_to_end(text)
        while len(self.held) > self.texts or (self.held and self.nbytes > self.room):
            self.held.popitem(last=False)


class Shared:
    """One row that holds the first `length` tokens of the texts at these places."""

    def __init__(self, rows: EngineRows, length: int, places: list[int]) -> None:
        self.rows, self.length, self.places = rows, length, places


def join(rows: EngineRows | None, others: EngineRows) -> EngineRows:
    if rows is None:
        return others
    rows.join(others)
    return rows


def common(one: Ids, other: Ids) -> int:
    """How many tokens they begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
