"""Overlap of generated continuations with the reference text after the same prompt.

Owns: running the task (tokens of documents as prompts, a fixed number of generated tokens, references of the same length
or to the end of the document), its result, the table of samples, and the comparison of two decoding strategies. Does not
own: the metrics (`bleu`, `bleu_conventions`, `diversity`), the choice of prompts (`prompt_selection`), or decoding
(`decoding`).

Prompts are passed as ids and not tokenised again. Unknown words must not improve a score: a generated one is scored as
■ and one of a reference as □. They match nothing and count as one word each.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lilliput.data.prepare.token_files import TokenFile
from lilliput.decoding.stop_strings import text_after
from lilliput.decoding.writer import Sample, Writer
from lilliput.errors import UserError
from lilliput.evaluation.bleu import ORDERS, bleu_figures, chrf_figures, count_bleu
from lilliput.evaluation.bleu_conventions import Words, convention_bleu
from lilliput.evaluation.diversity import diversity_figures
from lilliput.evaluation.intervals import Paired, paired_bootstrap
from lilliput.evaluation.likelihood import to_perplexity
from lilliput.evaluation.overlap_settings import OverlapTask
from lilliput.evaluation.prompt_selection import choose_places, first_tokens, score_continuations
from lilliput.settings.tree import GenerateSettings
from lilliput.storage.atomic_files import write_whole

UNKNOWN_GENERATED, UNKNOWN_REFERENCE = "■", "□"
COLUMNS = ("prompt", "generated", "reference", "generated_perplexity", "reference_perplexity", "sentence_bleu")


@dataclass(frozen=True)
class Continuation:
    """A generated continuation of a prompt, and the reference.

    `likeliest` are the most likely tokens at the positions of `reference_ids`, each given all true tokens before it.
    """

    document: int  # its number in the token file
    start: int  # index of the prompt's first token in the document
    sample: Sample
    ids: list[int]  # of the sample, without the end of text, which references do not have
    reference: str
    reference_ids: list[int]
    likeliest: list[int]
    reference_nats: float

    @property
    def generated_perplexity(self) -> float:
        """The model's own perplexity of the generated tokens, before logit processors, end of text included."""
        return to_perplexity(-self.sample.logprob / self.sample.tokens)

    @property
    def reference_perplexity(self) -> float:
        """The model's perplexity of the reference after the prompt, without an end of text."""
        return to_perplexity(self.reference_nats / len(self.reference_ids))


@dataclass(frozen=True)
class Overlap:
    """The result of a task. `unknown` is the tokenizer's text for an unknown word, if it has one."""

    task: OverlapTask
    settings: GenerateSettings
    engine: str
    unknown: str | None
    continuations: list[Continuation]
    seconds: float  # of all generation
    mixture: dict[str, Any] | None = None  # with n-grams, if the texts were generated with one

    @cached_property
    def hypotheses(self) -> list[str]:
        """The generated texts, as scored."""
        return [self._replace_unknown(one.sample.text, UNKNOWN_GENERATED) for one in self.continuations]

    @cached_property
    def references(self) -> list[str]:
        """The reference texts, as scored."""
        return [self._replace_unknown(one.reference, UNKNOWN_REFERENCE) for one in self.continuations]

    def _replace_unknown(self, text: str, symbol: str) -> str:
        return text if self.unknown is None else text.replace(self.unknown, symbol)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values. `bleu`, `chrf` and `self_bleu` are from 0 to 100; `conventions` and shares from 0 to 1."""
        count = len(self.continuations)
        tokens = sum(one.sample.tokens for one in self.continuations)
        nats = -math.fsum(one.sample.logprob for one in self.continuations)
        reference_nats = math.fsum(one.reference_nats for one in self.continuations)
        reference_tokens = sum(len(one.reference_ids) for one in self.continuations)
        return {
            "task": {**asdict(self.task), "prompts": count},
            "asked_prompts": self.task.prompts,  # can exceed the number of usable documents
            # Stories often begin alike, and greedy decoding continues equal prompts identically.
            "different_prompts": len({one.sample.prompt for one in self.continuations}),
            "generate": asdict(self.settings),
            "mixture": self.mixture,
            "bleu": bleu_figures(self.hypotheses, self.references),
            "chrf": chrf_figures(self.hypotheses, self.references),
            "conventions": self._conventions(),
            "written": diversity_figures(self.hypotheses),
            "reference": diversity_figures(self.references),
            "tokens": tokens / count,
            "ended": sum(one.sample.finish == "end" for one in self.continuations) / count,
            "perplexity": to_perplexity(nats / tokens),
            "mean_perplexity": math.fsum(one.generated_perplexity for one in self.continuations) / count,
            "reference_perplexity": to_perplexity(reference_nats / reference_tokens),
            "mean_reference_perplexity": math.fsum(one.reference_perplexity for one in self.continuations) / count,
            "seconds_per_sample": self.seconds / count,
            "tokens_per_second": tokens / self.seconds,
            "engine": self.engine,
        }

    def _conventions(self) -> dict[str, dict[str, float | str]]:
        """Return BLEU by the names of `bleu_conventions.CONVENTIONS`; unknown words are not replaced there."""
        rows = self.continuations
        ids, words = [one.reference_ids for one in rows], [one.reference.split() for one in rows]
        generated = [one.sample.text.split() for one in rows]
        texts: dict[str, tuple[Sequence[Words], Sequence[Words]]] = {
            "words": (generated, words),
            "words_unsmoothed": (generated, words),
            "words_with_prompt": (
                [(one.sample.prompt + one.sample.text).split() for one in rows],
                [(one.sample.prompt + one.reference).split() for one in rows],
            ),
            "tokens": ([one.ids for one in rows], ids),
            "forced": ([one.likeliest for one in rows], ids),
        }
        return {name: convention_bleu(name, *pair) for name, pair in texts.items()}

    def samples(self) -> list[dict[str, str | float]]:
        """Return one row per sample, with texts as scored; `sentence_bleu` is sacrebleu's sentence BLEU-4, 0 to 100."""
        bleu = count_bleu(self.hypotheses, self.references, max(ORDERS), alone=True).each().tolist()
        prompts = [one.sample.prompt for one in self.continuations]
        generated = [one.generated_perplexity for one in self.continuations]
        reference = [one.reference_perplexity for one in self.continuations]
        rows = zip(prompts, self.hypotheses, self.references, generated, reference, bleu, strict=True)
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def write_csv(self, path: Path) -> None:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, COLUMNS)
        table.writeheader()
        table.writerows(self.samples())
        write_whole(path, text.getvalue().encode())


def measure_overlap(
    writer: Writer,
    file: TokenFile,
    settings: GenerateSettings,
    task: OverlapTask,
    without: NDArray[np.bool_] | None = None,
) -> Overlap:
    """Generate continuations of tokens of documents and return them with their references.

    The number of tokens is the task's, all other settings are `settings`. `without` (documents,) are excluded, because
    they are also in training. The measured time is that of generation, without the choice and compilation of an engine.
    """
    length, tokenizer = task.prompt_tokens + task.tokens, writer.tokenizer
    chosen = choose_places(file, task.prompt_choice, task.prompts, length, task.seed, without)
    if not chosen:
        if choose_places(file, task.prompt_choice, 1, length, task.seed):
            raise UserError(
                f"every document of at least {length:,} tokens is also in the training split",
                fix="use other documents",
                code="evaluation.too-small",
            )
        parts = f"{task.prompt_tokens:,} for the prompt and {task.tokens:,} for the reference"
        raise UserError(
            f"overlap requires documents of at least {length:,} tokens: {parts} (found none)",
            fix="use fewer tokens, or longer documents",
            code="evaluation.too-small",
        )
    read = None if task.full_reference else length
    texts = [first_tokens(file, place.document, read, place.start) for place in chosen]
    prompts = [ids[: task.prompt_tokens] for ids in texts]
    settings = writer.checked(replace(settings, tokens=task.tokens))
    writer.encode_prompt("")  # raises an error for a classifier before an engine is made
    engine, mixture = writer.engine_for(settings), writer.mixture_for(settings)
    start = time.perf_counter()
    samples = writer.samples(prompts, task.seed * task.prompts, settings, task.batch)
    seconds = time.perf_counter() - start
    scored = score_continuations(writer.model, tokenizer.start, task.prompt_tokens, texts)
    continuations = [
        Continuation(
            *place,
            sample,
            [piece.id for piece in sample.pieces if piece.id != tokenizer.end],
            text_after(tokenizer, prompt, ids[task.prompt_tokens :]),
            ids[task.prompt_tokens :],
            likeliest.tolist(),
            math.fsum(nats),
        )
        for place, sample, prompt, ids, (nats, likeliest) in zip(chosen, samples, prompts, texts, scored, strict=True)
    ]
    unknown = None if tokenizer.unknown is None else tokenizer.piece(tokenizer.unknown)
    mixed = None if mixture is None else mixture.as_dict()
    return Overlap(task, settings, engine.name, unknown, continuations, seconds, mixed)


def compare_overlaps(a: Overlap, b: Overlap, order: int = max(ORDERS)) -> Paired | None:
    """Return corpus BLEU of `a` minus that of `b` over the same resampled prompts (Koehn 2004); None for one prompt."""
    if prompts_of(a) != prompts_of(b):
        raise UserError(
            "the two results have different prompts or references",
            fix="use the same file, prompts and tokens for both",
            code="evaluation.mismatch",
        )
    counted_a, counted_b = (count_bleu(one.hypotheses, one.references, order) for one in (a, b))
    return paired_bootstrap(counted_a.score, counted_b.score, len(a.continuations))


def prompts_of(overlap: Overlap) -> Sequence[tuple[str, str]]:
    """Return prompts with their references, which differ if the number of tokens differs."""
    return [(one.sample.prompt, one.reference) for one in overlap.continuations]
