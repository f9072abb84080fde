"""A checkpoint made ready to write: model, tokenizer and settings, by path and nothing else.

Owns: `load`, and `Writer`, text in and text out over `stream` and `beam_search`. Does not own: the loops, the
choice of tokens, or the rules of stop strings (`stop_strings`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.beam_search import Beams, Hypothesis, search
from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.selection import choose_engine
from lilliput.decoding.prefix_cache import Remembering
from lilliput.decoding.processors import Strategy, build_strategy
from lilliput.decoding.stop_strings import IncrementalDecoder, build_stops
from lilliput.decoding.stream import Finish, Request, Written, stream
from lilliput.devices import choose_device
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, build_model, load_weights
from lilliput.settings.loading import config_from_dict
from lilliput.settings.loading import replace as change
from lilliput.settings.rules import SHAPE_A_DRAW
from lilliput.settings.tree import Config, GenerateSettings
from lilliput.storage.checkpoints import CONFIG, Checkpoint
from lilliput.storage.run_folders import resolve_checkpoint

LOG = logging.getLogger("lilliput")

# What a text goes on from: text, or the ids of one. Where tokens were cut off a document, their text need not give them back.
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Alternative:
    """A token that might have been written, as a human reads it, and the model's own log-probability of it."""

    id: int
    token: str
    logprob: float


@dataclass(frozen=True)
class Piece:
    """One token, and the text that it made certain (often none: half a character, or what may become a stop string).

    `finish` comes with a row's last piece. `entropy` (nats) and `alternatives` (the likeliest first) are there on request.
    """

    row: int
    text: str
    id: int
    token: str
    logprob: float
    finish: Finish | None
    entropy: float | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Sample:
    """A finished text, without the stop string that ended it.

    `tokens` counts all that were written, the end-of-text token and those of a stop string included, and `logprob` is the sum
    over them, before processors. `score` is what beams are compared by. `pieces` are its tokens one by one.
    """

    prompt: str
    text: str
    tokens: int
    logprob: float
    finish: Finish
    score: float | None = None
    pieces: tuple[Piece, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Writer:
    """A model with its tokenizer and the settings that both were made by.

    All methods take `how`, by default the run's own `generate` settings, and refuse at once what in it is wrong. At most `batch`
    rows are written at a time (None: all); each beam is one, and a prompt's beams stay together. A row that ends leaves its
    place to the next prompt. Row i draws from seed + i, whatever else is in the batch; a prompt that is given n times is read
    once and has n samples.

    `engine` computes, if given: with a TorchEngine the writer follows a model whose weights still change. Otherwise one is
    chosen by the settings, once, and kept with what it has read, so that a beginning that comes again costs nothing.
    """

    config: Config
    model: Transformer
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None = None
    engine: Engine | None = None
    chosen: dict[tuple[str, str | None], Engine] = field(default_factory=dict, init=False, repr=False, compare=False)

    def write(
        self,
        prompts: Sequence[Prompt],
        seed: int = 0,
        how: GenerateSettings | None = None,
        batch: int | None = None,
        alternatives: int | None = None,
    ) -> Iterator[Piece]:
        """Write after each prompt, and tell every token as it comes; rows are numbered as the prompts.

        With `how.beams`, the tokens of each prompt's best text, when its search is done. `alternatives` asks for the entropy
        at each token and so many of the likeliest tokens there.
        """
        how = self.checked(how)
        check_asked(prompts, {"batch": batch, "alternatives": alternatives})
        if how.beams is not None and alternatives is not None:
            raise UserError("a beam search tells no alternatives", fix="alternatives, or beams")
        engine, strategy = self.ready(how)
        if how.beams is None:
            return self.write_along(engine, prompts, seed, how, strategy, batch, alternatives)
        found = self.find(engine, prompts, seed, how, strategy, 1, batch)
        return (piece for row, (ids, texts) in enumerate(found) for piece in self.retell(row, ids, texts[0], how.stop))

    def samples(
        self,
        prompts: Sequence[Prompt],
        seed: int = 0,
        how: GenerateSettings | None = None,
        batch: int | None = None,
        alternatives: int | None = None,
    ) -> list[Sample]:
        """The finished texts, one for each prompt, in the order of the prompts."""
        pieces = self.write(prompts, seed, how, batch, alternatives)
        return collect([self.tell_prompt(prompt) for prompt in prompts], pieces)

    def generate(
        self,
        prompt: str = "",
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        how: GenerateSettings | None = None,
    ) -> str:
        """The text that follows the prompt. The short arguments stand above `how`; a temperature of 0 takes away all in it
        that would shape a draw."""
        above = {"tokens": tokens, "temperature": temperature, "top_k": top_k}
        changes: dict[str, Any] = dict.fromkeys(SHAPE_A_DRAW) if temperature == 0.0 else {}
        changes |= {name: value for name, value in above.items() if value is not None}
        return self.samples([prompt], seed, self.checked(how, changes))[0].text

    def beams(
        self,
        prompts: Sequence[Prompt],
        seed: int = 0,
        how: GenerateSettings | None = None,
        batch: int | None = None,
        n_best: int = 1,
    ) -> Iterator[list[Sample]]:
        """Of each prompt, when its search is done: the `n_best` texts, the best first; fewer only where no more were found.

        `how.beams` is the width (None: 1, which is greedy).
        """
        how = self.checked(how)
        check_asked(prompts, {"batch": batch, "n_best": n_best})
        width = how.beams or 1
        if n_best > width:
            what = f"the {n_best} best texts are more than generate.beams {width} finds"
            raise UserError(what, fix=f"generate.beams {n_best}")
        how = replace(how, beams=width)
        engine, strategy = self.ready(how)
        found = self.find(engine, prompts, seed, how, strategy, n_best, batch)
        return (
            [replace(collect([prompt], self.retell(0, ids, text, how.stop))[0], score=text.score) for text in texts]
            for prompt, (ids, texts) in zip(map(self.tell_prompt, prompts), found, strict=True)
        )

    def ready(self, how: GenerateSettings) -> tuple[Engine, Strategy]:
        """What writes by these settings, or why nothing does: told before the first token is asked for."""
        self.encode_prompt("")  # a classifier is refused here
        strategy = build_strategy(how, self.tokenizer)  # before an engine that may have to be compiled
        return self.engine_for(how), strategy

    def engine_for(self, how: GenerateSettings, tell: Callable[[str], None] | None = None) -> Engine:
        """The engine that these settings ask for. `tell` hears what there is to say about the choice, once, and at once if
        code has to be compiled, which takes a while. Where there is none, the log does."""
        if self.engine is not None:
            return self.engine
        key = (how.engine, how.quantise)
        if key not in self.chosen:
            engine, note = choose_engine(self.model, how, tell or LOG.warning)
            if note:
                (tell or LOG.info)(note)
            self.chosen[key] = Remembering(engine)
        return self.chosen[key]

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Begins as every document did in training; so an empty prompt is the start of a new one."""
        if self.config.model.task == "classifier":
            raise UserError("this model is a classifier: it cannot write", fix="a run whose model.task is language")
        return [self.tokenizer.start, *(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)]

    def tell_prompt(self, prompt: Prompt) -> str:
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)

    def checked(self, how: GenerateSettings | None, changes: Mapping[str, Any] | None = None) -> GenerateSettings:
        """The settings, the run's own if none are given, with changes; right each by itself and all together."""
        config = replace(self.config, generate=how or self.config.generate)
        return change(config, {f"generate.{name}": value for name, value in (changes or {}).items()}).generate

    def write_along(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        seed: int,
        how: GenerateSettings,
        strategy: Strategy,
        batch: int | None,
        alternatives: int | None,
    ) -> Iterator[Piece]:
        """Token by token, all rows in step."""
        tellers: list[IncrementalDecoder] = []

        def ask() -> Iterator[Request]:
            for row, prompt in enumerate(prompts):
                ids = self.encode_prompt(prompt)
                tellers.append(IncrementalDecoder(self.tokenizer, ids, how.stop))
                yield Request(ids, how.tokens, strategy, seed + row, tellers[row], alternatives)

        for written in stream(engine, ask(), self.tokenizer.end, batch):
            yield self.tell(tellers[written.row], written)

    def find(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        seed: int,
        how: GenerateSettings,
        strategy: Strategy,
        n_best: int,
        batch: int | None,
    ) -> Iterator[tuple[list[int], list[Hypothesis]]]:
        """The ids of each prompt and the best texts after it."""
        assert how.beams is not None
        settings = Beams(
            width=how.beams,
            tokens=how.tokens,
            alpha=how.length_penalty,
            early_stop=how.early_stop,
            groups=how.beam_groups,
            diversity=how.diversity,
            sample=how.sample_beams,
            n_best=n_best,
        )
        stops = build_stops(self.tokenizer, how.stop) if how.stop else None
        together = max(1, len(prompts) if batch is None else batch // how.beams)
        for start in range(0, len(prompts), together):
            ids = [self.encode_prompt(prompt) for prompt in prompts[start : start + together]]
            found = search(engine, ids, settings, strategy, self.tokenizer.end, seed + start, stops)
            yield from zip(ids, found, strict=True)

    def retell(self, row: int, prompt: Sequence[int], text: Hypothesis, stops: Sequence[str]) -> Iterator[Piece]:
        """What a beam search found, token by token."""
        teller = IncrementalDecoder(self.tokenizer, prompt, stops)
        last = len(text.ids) - 1
        for at, (id_, logprob) in enumerate(zip(text.ids, text.logprobs, strict=True)):
            if id_ != self.tokenizer.end:
                teller.push(id_)
            yield self.tell(teller, Written(row, id_, logprob, text.finish if at == last else None))

    def tell(self, teller: IncrementalDecoder, written: Written) -> Piece:
        token = self.tokenizer.token
        return Piece(
            written.row,
            teller.flush() if written.finish else teller.take(),
            written.id,
            token(written.id),
            written.logprob,
            written.finish,
            written.entropy,
            tuple(Alternative(id_, token(id_), logprob) for id_, logprob in written.alternatives),
        )


def check_asked(prompts: Sequence[Prompt], counts: Mapping[str, int | None]) -> None:
    """What is not in the settings; a count of None is not given."""
    if isinstance(prompts, str):
        raise UserError("a text in place of a list of prompts: each letter would be one", fix=f"[{prompts[:40]!r}]")
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UserError(f"{name} is {count}: it should be greater than or equal to 1")


def collect(prompts: Sequence[str], pieces: Iterable[Piece]) -> list[Sample]:
    """Drain a stream of pieces into one sample a row."""
    rows: list[list[Piece]] = [[] for _ in prompts]
    for piece in pieces:
        rows[piece.row].append(piece)
    samples = []
    for prompt, row in zip(prompts, rows, strict=True):
        text, logprob, finish = "".join(p.text for p in row), sum(p.logprob for p in row), row[-1].finish
        assert finish is not None
        samples.append(Sample(prompt, text, len(row), logprob, finish, pieces=tuple(row)))
    return samples


def load(path: str | Path, device: str = "auto") -> Writer:
    """What a run (its best checkpoint) or a checkpoint holds, ready to use."""
    checkpoint = resolve_checkpoint(path)
    config = config_from_dict(checkpoint.config(), where=str(checkpoint.folder / CONFIG))
    dtype = torch.float64 if config.train.precision == "float64" else torch.float32
    model = build_model(config.model, config.vectors).to(dtype)
    load_weights(model, checkpoint.load_model())
    model.to(choose_device(device)).eval()
    return Writer(config, model, Tokenizer.from_json(checkpoint.tokenizer_json()), checkpoint)
