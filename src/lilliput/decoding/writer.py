"""A checkpoint made ready to write: model, tokenizer and settings, by path and nothing else.

Owns: `load`, and `Writer`, text in and text out over `stream` and `beam`. Does not own: the loops, the choice of tokens, or
the rules of stop strings (`stops`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lilliput.checkpoints import Checkpoint
from lilliput.config import config_from_dict
from lilliput.config import replace as change
from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.beam import Beams, Hypothesis, search
from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.choice import choose_engine
from lilliput.decoding.prefixes import Remembering
from lilliput.decoding.processors import build_strategy
from lilliput.decoding.stops import Teller, build_stops
from lilliput.decoding.stream import Finish, Request, Written, stream
from lilliput.devices import choose_device
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, build_model, load_weights
from lilliput.runs import resolve_checkpoint
from lilliput.settings import Config, GenerateSettings

DRAWN_BY = [f"generate.{name}" for name in ("final_temperature", "top_k", "top_p", "min_p", "typical")]


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

    All methods take `how`, by default the run's own `generate` settings; `tokens`, `temperature` and `top_k` stand above it.
    At most `batch` rows are written at a time (None: all), and a row that ends leaves its place to the next prompt. Row i
    draws from seed + i, whatever else is in the batch; a prompt that is given n times is read once and has n samples.

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
        prompts: Sequence[str],
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        how: GenerateSettings | None = None,
        batch: int | None = None,
        alternatives: int | None = None,
    ) -> Iterator[Piece]:
        """Write after each prompt, and tell every token as it comes; rows are numbered as the prompts.

        With `how.beams`, the tokens of each prompt's best text, when its search is done. `alternatives` asks for the entropy
        at each token and so many of the likeliest tokens there.
        """
        how = self.settle(how, tokens, temperature, top_k)
        if how.beams is None:
            return self.write_along(prompts, seed, how, batch, alternatives)
        if alternatives is not None:
            raise UserError("a beam search tells no alternatives", hint="alternatives, or beams")
        found = self.find(prompts, seed, how, 1, batch)
        return (piece for row, (ids, texts) in enumerate(found) for piece in self.retell(row, ids, texts[0], how.stop))

    def samples(
        self,
        prompts: Sequence[str],
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        how: GenerateSettings | None = None,
        batch: int | None = None,
        alternatives: int | None = None,
    ) -> list[Sample]:
        """The finished texts, one for each prompt, in the order of the prompts."""
        pieces = self.write(prompts, tokens, temperature, top_k, seed, how, batch, alternatives)
        return collect(prompts, pieces)

    def generate(
        self,
        prompt: str = "",
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        how: GenerateSettings | None = None,
    ) -> str:
        """The text that follows the prompt."""
        return self.samples([prompt], tokens, temperature, top_k, seed, how)[0].text

    def beams(
        self,
        prompts: Sequence[str],
        how: GenerateSettings | None = None,
        seed: int = 0,
        n_best: int = 1,
        batch: int | None = None,
    ) -> list[list[Sample]]:
        """The `n_best` texts of a beam search for each prompt, the best first; `batch` prompts at a time.

        `how.beams` is the width (None: 1, which is greedy).
        """
        how = self.settle(how)
        return [
            [replace(collect([prompt], self.retell(0, ids, text, how.stop))[0], score=text.score) for text in texts]
            for prompt, (ids, texts) in zip(prompts, self.find(prompts, seed, how, n_best, batch), strict=True)
        ]

    def engine_for(
        self, how: GenerateSettings, rows: int, tell: Callable[[str], None] | None = None
    ) -> tuple[Engine, str | None]:
        """The engine that writes so many rows at a time, and the first time what there is to tell about its choice.

        `tell` hears at once if code has to be compiled, which takes a while.
        """
        if self.engine is not None:
            return self.engine, None
        key, note = (how.engine, how.quantise), None
        if key not in self.chosen:
            engine, note = choose_engine(self.model, how, rows, tell)
            self.chosen[key] = Remembering(engine)
        return self.chosen[key], note

    def encode_prompt(self, prompt: str) -> list[int]:
        """Begins as every document did in training; so an empty prompt is the start of a new one."""
        if self.config.model.task == "classifier":
            raise UserError("this model is a classifier: it cannot write", hint="a run whose model.task is language")
        return [self.tokenizer.start, *self.tokenizer.encode(prompt)]

    def settle(
        self,
        how: GenerateSettings | None,
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
    ) -> GenerateSettings:
        """The settings with what stands above them, checked. A temperature of 0 takes away all that would shape a draw."""
        above = {"tokens": tokens, "temperature": temperature, "top_k": top_k}
        changes: dict[str, Any] = dict.fromkeys(DRAWN_BY) if temperature == 0.0 else {}
        changes |= {f"generate.{name}": value for name, value in above.items() if value is not None}
        return change(replace(self.config, generate=how or self.config.generate), changes).generate

    def write_along(
        self, prompts: Sequence[str], seed: int, how: GenerateSettings, batch: int | None, alternatives: int | None
    ) -> Iterator[Piece]:
        """Token by token, all rows in step."""
        strategy, tellers = build_strategy(how, self.tokenizer), list[Teller]()

        def ask() -> Iterator[Request]:
            for row, prompt in enumerate(prompts):
                ids = self.encode_prompt(prompt)
                tellers.append(Teller(self.tokenizer, ids, how.stop))
                yield Request(ids, how.tokens, strategy, seed + row, tellers[row], alternatives)

        engine, _ = self.engine_for(how, min(len(prompts), batch or len(prompts)))
        for written in stream(engine, ask(), self.tokenizer.end, batch):
            yield self.tell(tellers[written.row], written)

    def find(
        self, prompts: Sequence[str], seed: int, how: GenerateSettings, n_best: int, batch: int | None
    ) -> Iterator[tuple[list[int], list[Hypothesis]]]:
        """The ids of each prompt and the best texts after it, `batch` prompts at a time."""
        width = how.beams or 1
        settings = Beams(
            width=width,
            tokens=how.tokens,
            alpha=how.length_penalty,
            early_stop=how.early_stop,
            groups=how.beam_groups,
            diversity=how.diversity,
            sample=how.sample_beams,
            n_best=n_best,
        )
        strategy, end = build_strategy(replace(how, beams=width), self.tokenizer), self.tokenizer.end
        stops = build_stops(self.tokenizer, how.stop) if how.stop else None
        for start in range(0, len(prompts), batch or len(prompts) or 1):
            ids = [self.encode_prompt(prompt) for prompt in prompts[start:][:batch]]
            engine, _ = self.engine_for(how, len(ids) * width)
            yield from zip(ids, search(engine, ids, settings, strategy, end, seed + start, stops), strict=True)

    def retell(self, row: int, prompt: Sequence[int], text: Hypothesis, stops: Sequence[str]) -> Iterator[Piece]:
        """What a beam search found, token by token."""
        teller = Teller(self.tokenizer, prompt, stops)
        last = len(text.ids) - 1
        for at, (id_, logprob) in enumerate(zip(text.ids, text.logprobs, strict=True)):
            if id_ != self.tokenizer.end:
                teller.push(id_)
            yield self.tell(teller, Written(row, id_, logprob, text.finish if at == last else None))

    def tell(self, teller: Teller, written: Written) -> Piece:
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
    config = config_from_dict(checkpoint.config(), where=str(checkpoint.folder))
    dtype = torch.float64 if config.train.precision == "float64" else torch.float32
    model = build_model(config.model, config.vectors).to(dtype)
    load_weights(model, checkpoint.load_model())
    model.to(choose_device(device)).eval()
    return Writer(config, model, Tokenizer.from_json(checkpoint.tokenizer_json()), checkpoint)
