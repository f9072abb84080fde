"""A checkpoint ready to generate text: model, tokenizer and settings.

Owns: `load`, and `Writer`, which creates requests and returns text. Does not own: the loops (`stream`, `beam_search`), the
choice of tokens, or stop strings (`stop_strings`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lilliput.data.progress import Report, silent
from lilliput.data.tokenizers import Tokenizer
from lilliput.decoding.beam_hypotheses import BeamSettings
from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.selection import choose_engine
from lilliput.decoding.prefix_cache import PrefixCache
from lilliput.decoding.processors import build_strategy
from lilliput.decoding.stop_strings import IncrementalDecoder, build_stop_check
from lilliput.decoding.stream import stream
from lilliput.decoding.text_requests import Alternative, Piece, Sample, TextRequest, collect
from lilliput.devices import choose_device
from lilliput.errors import UserError
from lilliput.model.transformer import Transformer, build_model, load_weights
from lilliput.settings.loading import config_from_dict
from lilliput.settings.loading import replace as change
from lilliput.settings.rules import SHAPE_A_DRAW
from lilliput.settings.tree import Config, GenerateSettings
from lilliput.storage.checkpoints import CONFIG, Checkpoint
from lilliput.storage.run_folders import resolve_checkpoint

if TYPE_CHECKING:
    from lilliput.decoding.ngram_mixture import NGramMixture, RunNGrams

__all__ = ["Alternative", "Piece", "Prompt", "Sample", "TextRequest", "Writer", "collect", "load"]

LOG = logging.getLogger("lilliput")

# Text, or token ids: the text of a document truncated between tokens may encode to other ids.
Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Writer:
    """A model with its tokenizer and the settings of its run.

    `write`, `samples`, `generate` and `beams` are short forms of `request` and `stream` for prompts that share settings.
    `settings` defaults to the run's `generate` settings and is checked before the first token.

    `batch` is the largest number of rows computed at a time (None: no limit); each beam is a row, and the beams of a prompt
    stay together. A row that ends is replaced by the next request. Prompt i of a list uses the random seed `seed + i`; its
    sample does not depend on the rest of the batch. Equal prompts are read once and have a sample each.

    `engine` is the engine to use; a TorchEngine follows changes of the model's weights. By default the settings select an
    engine, which is kept together with its prefix cache.
    """

    config: Config
    model: Transformer
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None = None
    engine: Engine | None = None
    chosen: dict[tuple[str, str | None], Engine] = field(default_factory=dict, init=False, repr=False, compare=False)

    def request(
        self,
        prompt: Prompt,
        settings: GenerateSettings | None = None,
        seed: int = 0,
        *,
        alternatives: int | None = None,
        n_best: int = 1,
    ) -> TextRequest:
        """Return a request to continue the prompt, for `stream`. Settings and prompt are checked here.

        `alternatives` is the number of likeliest tokens to return with each token, together with the entropy; `n_best` the number
        of hypotheses that a beam search returns.
        """
        (request,) = self.requests([prompt], seed, self.checked(settings), None, alternatives, n_best)
        return request

    def stream(
        self, requests: Iterable[TextRequest | None], batch: int | None = None
    ) -> Iterator[tuple[TextRequest, Piece]]:
        """Run requests and yield their pieces; rows are numbered in the order of the requests.

        Requests may have different settings. They are taken from the iterator when a row is free, so more can be added while
        the batch runs (`RequestQueue`); None means that none is waiting now. A request that is cancelled or raises an
        exception ends with finish "cancelled" or "error"; the others continue. When a beam search has ended, it yields the
        pieces of its best hypothesis; `samples` of the request has all hypotheses.
        """
        check_counts({"batch": batch})
        waiting = iter(requests)
        running: dict[int, TextRequest] = {}
        taken = 0
        upcoming = next(filter(None, waiting), None)

        def take(engine: Engine, first: TextRequest) -> Iterator[TextRequest | None]:
            """Yield requests up to the first one for another engine."""
            nonlocal taken, upcoming
            for request in itertools.chain([first], waiting):
                if request is not None:
                    if request.engine is not engine:
                        upcoming = request
                        return
                    running[taken] = request
                    taken += 1
                yield request

        while upcoming is not None:
            engine, first, before = upcoming.engine, upcoming, taken
            upcoming = None
            for token in stream(engine, take(engine, first), self.tokenizer.end, batch):
                row = before + token.row
                request = running[row] if token.finish is None else running.pop(row)
                yield request, request.read_token(token._replace(row=row))

    def write(
        self,
        prompts: Sequence[Prompt],
        seed: int = 0,
        settings: GenerateSettings | None = None,
        batch: int | None = None,
        alternatives: int | None = None,
    ) -> Iterator[Piece]:
        """Continue each prompt and yield every token when it is chosen; the row is the prompt's index.

        With `settings.beams`, yield the tokens of each best hypothesis when its search has ended. Raise the exception of a row
        that fails.
        """
        requests = self.requests(prompts, seed, self.checked(settings), batch, alternatives)
        return (piece for _, piece in self.run(requests, batch))

    def samples(
        self,
        prompts: Sequence[Prompt],
        seed: int = 0,
        settings: GenerateSettings | None = None,
        batch: int | None = None,
        alternatives: int | None = None,
    ) -> list[Sample]:
        """Return one finished text per prompt, in the order of the prompts."""
        pieces = self.write(prompts, seed, settings, batch, alternatives)
        return collect([self.prompt_text(prompt) for prompt in prompts], pieces)

    def generate(
        self,
        prompt: str = "",
        tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
        settings: GenerateSettings | None = None,
    ) -> str:
        """Return the text after the prompt. `tokens`, `temperature` and `top_k` override `settings`; temperature 0 also
        turns off all sampling filters."""
        short = {"tokens": tokens, "temperature": temperature, "top_k": top_k}
        changes: dict[str, Any] = dict.fromkeys(SHAPE_A_DRAW) if temperature == 0.0 else {}
        changes |= {name: value for name, value in short.items() if value is not None}
        requests = self.requests([prompt], seed, self.checked(settings, changes))
        return "".join(piece.text for _, piece in self.run(requests))

    def beams(
        self,
        prompts: Sequence[Prompt],
        seed: int = 0,
        settings: GenerateSettings | None = None,
        batch: int | None = None,
        n_best: int = 1,
    ) -> Iterator[list[Sample]]:
        """Yield the `n_best` texts of each prompt, best first, when its search has ended; fewer only if no more were found.

        `settings.beams` is the beam width (None: 1, greedy decoding).
        """
        settings = self.checked(settings)
        requests = self.requests(prompts, seed, replace(settings, beams=settings.beams or 1), batch, n_best=n_best)
        return (request.samples for request, piece in self.run(requests, batch) if piece.finish is not None)

    def run(self, requests: Iterable[TextRequest], batch: int | None = None) -> Iterator[tuple[TextRequest, Piece]]:
        """As `stream`, but raise the exception of a row that fails."""
        for request, piece in self.stream(requests, batch):
            if piece.error is not None:
                raise piece.error
            yield request, piece

    def requests(
        self,
        prompts: Sequence[Prompt],
        seed: int,
        settings: GenerateSettings,
        batch: int | None = None,
        alternatives: int | None = None,
        n_best: int = 1,
    ) -> Iterator[TextRequest]:
        """Return requests for prompts that share checked settings. Errors are raised at once; requests are created when taken."""
        if isinstance(prompts, str):
            raise UserError(
                "prompts must be a list of strings (got a str)", fix=f"pass [{prompts[:40]!r}]", code="request.invalid"
            )
        self.encode_prompt("")  # raises for a classifier
        check_counts({"batch": batch, "alternatives": alternatives, "n_best": n_best})
        check_beams(settings, alternatives, n_best)
        # Checked before an engine is compiled.
        strategy = build_strategy(settings, self.tokenizer, self.mixture_for(settings))
        engine = self.engine_for(settings)
        beams = None if settings.beams is None else self.beam_settings(settings, settings.beams, n_best)

        def new_request(prompt: Prompt, seed: int) -> TextRequest:
            ids = self.encode_prompt(prompt)
            decoder = IncrementalDecoder(self.tokenizer, ids, settings.stop)
            return TextRequest(
                ids,
                settings.tokens,
                strategy,
                seed,
                decoder,
                alternatives,
                beams,
                prompt_text=self.prompt_text(prompt),
                settings=settings,
                engine=engine,
                decoder=decoder,
            )

        return (new_request(prompt, seed + number) for number, prompt in enumerate(prompts))

    def beam_settings(self, settings: GenerateSettings, width: int, n_best: int) -> BeamSettings:
        return BeamSettings(
            width=width,
            tokens=settings.tokens,
            alpha=settings.length_penalty,
            early_stop=settings.early_stop,
            groups=settings.beam_groups,
            diversity=settings.diversity,
            sample=settings.sample_beams,
            n_best=n_best,
            stops=build_stop_check(self.tokenizer, settings.stop) if settings.stop else None,
        )

    def engine_for(self, settings: GenerateSettings, notify: Callable[[str], None] | None = None) -> Engine:
        """Return the engine that the settings select. `notify` receives a note on the choice, if there is one, and a message
        when code is compiled, which takes time; by default both are logged."""
        if self.engine is not None:
            return self.engine
        key = (settings.engine, settings.quantise)
        if key not in self.chosen:
            engine, note = choose_engine(self.model, settings, notify or LOG.warning)
            if note:
                (notify or LOG.info)(note)
            self.chosen[key] = PrefixCache(engine)
        return self.chosen[key]

    @cached_property
    def ngrams(self) -> RunNGrams:
        """The n-gram model of the run's training split, which is counted on first use."""
        from lilliput.decoding.ngram_mixture import RunNGrams

        return RunNGrams(self)

    def mixture_for(self, settings: GenerateSettings, report: Report = silent) -> NGramMixture | None:
        """Return the mixture with n-grams that the settings select; None if `mix_ngram` is off."""
        return None if settings.mix_ngram is None else self.ngrams.mixture(settings.mix_ngram, report)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Return the token that starts every document, followed by the ids of the prompt."""
        if self.config.model.task == "classifier":
            raise UserError(
                'generation requires a model of task "language" or "both" (got "classifier")',
                fix='use a run whose model.task is "language" or "both"',
                code="model.task",
                setting="model.task",
            )
        if isinstance(prompt, str):
            return [self.tokenizer.start, *self.tokenizer.encode(prompt)]
        vocabulary = self.model.settings.vocab_size
        assert vocabulary is not None
        for id_ in prompt:
            if not 0 <= id_ < vocabulary:
                what = f"token ids of a prompt must be 0 to {vocabulary - 1} (got {id_})"
                fix = "encode the prompt with the tokenizer of the run"
                raise UserError(what, fix=fix, code="prompt.invalid")
        return [self.tokenizer.start, *prompt]

    def prompt_text(self, prompt: Prompt) -> str:
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)

    def checked(self, settings: GenerateSettings | None, changes: Mapping[str, Any] | None = None) -> GenerateSettings:
        """Return the settings (default: those of the run) with changes; raise an error if they are invalid or in conflict."""
        config = replace(self.config, generate=settings or self.config.generate)
        return change(config, {f"generate.{name}": value for name, value in (changes or {}).items()}).generate


def check_beams(settings: GenerateSettings, alternatives: int | None, n_best: int) -> None:
    """Raise an error if arguments of a request conflict with its beam width."""
    if settings.beams is not None and alternatives is not None:
        raise UserError(
            f"alternatives require sampling without beams (got generate.beams {settings.beams})",
            fix='remove alternatives or set generate.beams to "none"',
            code="request.invalid",
            setting="generate.beams",
        )
    if n_best > (width := settings.beams or 1):
        raise UserError(
            f"n_best must be at most the beam width, {width} (got {n_best})",
            fix=f"set generate.beams to {n_best} or more",
            code="request.invalid",
            setting="generate.beams",
        )


def check_counts(counts: Mapping[str, int | None]) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            what = f"{name} must be an integer of at least 1 (got {count})"
            raise UserError(what, fix=f"set {name} to 1 or more", code="request.invalid")


def load(path: str | Path, device: str = "auto") -> Writer:
    """Load the best checkpoint of a run, or a given checkpoint."""
    checkpoint = resolve_checkpoint(path)
    config = config_from_dict(checkpoint.config(), where=str(checkpoint.folder / CONFIG))
    dtype = torch.float64 if config.train.precision == "float64" else torch.float32
    model = build_model(config.model, config.vectors).to(dtype)
    load_weights(model, checkpoint.load_model())
    model.to(choose_device(device)).eval()
    return Writer(config, model, Tokenizer.from_json(checkpoint.tokenizer_json()), checkpoint)
