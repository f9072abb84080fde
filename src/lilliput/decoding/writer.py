"""A checkpoint made ready to write: model, tokenizer and settings, by path and nothing else.

Owns: `load`, and `Writer`, text in and text out over `stream`. Does not own: the loop or the choice of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lilliput.checkpoints import Checkpoint
from lilliput.config import config_from_dict
from lilliput.data.tokenizers import Decoder, Tokenizer
from lilliput.decoding.processors import build_chooser, build_processors
from lilliput.decoding.stream import Finish, stream
from lilliput.devices import choose_device
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, build_model, load_weights
from lilliput.runs import resolve_checkpoint
from lilliput.settings import Config


@dataclass(frozen=True)
class Piece:
    """Text that has become certain in one row; `finish` comes with the last one."""

    row: int
    text: str
    logprob: float
    finish: Finish | None


@dataclass(frozen=True)
class Sample:
    """A finished text. `logprob` is the sum over its tokens, the end-of-text token included, before processors."""

    prompt: str
    text: str
    tokens: int
    logprob: float
    finish: Finish


@dataclass(frozen=True)
class Writer:
    """A model with its tokenizer and the settings that both were made by."""

    config: Config
    model: Transformer
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None = None

    def encode_prompt(self, prompt: str) -> list[int]:
        """Begins as every document did in training; so an empty prompt is the start of a new one."""
        if self.config.model.task == "classifier":
            raise UserError("this model is a classifier: it cannot write", hint="a run whose model.task is language")
        return [self.tokenizer.start, *self.tokenizer.encode(prompt)]

    def write(
        self,
        prompts: Sequence[str],
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
    ) -> Iterator[Piece]:
        """Write after each prompt, all at once. Row i draws from seed + i, whatever else is in the batch."""
        settings = self.config.generate
        temperature = settings.temperature if temperature is None else temperature
        encoded = [self.encode_prompt(prompt) for prompt in prompts]
        decoders = [Decoder(self.tokenizer) for _ in prompts]
        unseen: dict[int, list[int]] = {row: [] for row in range(len(prompts))}  # ids of rows that show no text yet
        for written in stream(
            self.model,
            encoded,
            build_chooser(temperature, [seed + row for row in range(len(prompts))]),
            build_processors(temperature, top_k if top_k is not None else settings.top_k),
            tokens or settings.tokens,
            self.tokenizer.end,
        ):
            decoder = decoders[written.row]
            text = "" if written.finish == "end" else decoder.push(written.id)
            text += decoder.flush() if written.finish else ""
            if written.row in unseen:
                unseen[written.row].append(written.id)
                if text:
                    text = self.joint(encoded[written.row], unseen.pop(written.row)) + text
            yield Piece(written.row, text, written.logprob, written.finish)

    def joint(self, before: Sequence[int], after: Sequence[int]) -> str:
        """What stands between a prompt and what follows: a space, where tokens are words that do not bring their own."""
        decode = self.tokenizer.decode
        prompt, text, both = decode(before), decode(after), decode([*before, *after])
        between = both.removeprefix(prompt).removesuffix(text)
        return between if both == prompt + between + text else ""

    def generate(
        self,
        prompt: str = "",
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
    ) -> str:
        """The text that follows the prompt."""
        return self.samples([prompt], tokens, temperature, top_k, seed)[0].text

    def samples(
        self,
        prompts: Sequence[str],
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
    ) -> list[Sample]:
        return collect(prompts, self.write(prompts, tokens, temperature, top_k, seed))


def collect(prompts: Sequence[str], pieces: Iterator[Piece]) -> list[Sample]:
    """Drain a stream into one sample a row."""
    rows: list[list[Piece]] = [[] for _ in prompts]
    for piece in pieces:
        rows[piece.row].append(piece)
    samples = []
    for prompt, row in zip(prompts, rows, strict=True):
        finish = row[-1].finish
        assert finish is not None
        samples.append(Sample(prompt, "".join(p.text for p in row), len(row), sum(p.logprob for p in row), finish))
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
