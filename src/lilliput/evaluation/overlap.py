"""Overlap of generated continuations with the reference text after the same prompt.

Owns: running the task (the first tokens of documents as prompts, a fixed number of generated tokens, references of the
same length), its result, the CSV of samples, and the comparison of two decoding strategies. Does not own: the metrics
(`bleu`, `bleu_conventions`, `diversity`), the choice of documents (`prompt_selection`), or decoding (`decoding`).

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
from lilliput.evaluation.prompt_selection import choose_documents, first_tokens, score_prompts
from lilliput.settings.tree import GenerateSettings
from lilliput.storage.atomic_files import write_whole

UNKNOWN_GENERATED, UNKNOWN_REFERENCE = "■", "□"
COLUMNS = ("prompt", "reference", "hypothesis", "perplexity", "bleu")


@dataclass(frozen=True)
class Continuation:
    """A generated continuation of the first tokens of a document, and the reference.

    `likeliest` are the most likely tokens at the positions of `reference_ids`, each given all true tokens before it.
    """

    document: int  # its number in the token file
    sample: Sample
    ids: list[int]  # of the sample, without the end of text, which references do not have
    reference: str
    reference_ids: list[int]
    likeliest: list[int]
    reference_nats: float

    @property
    def perplexity(self) -> float:
        """The model's own perplexity of the generated tokens, before logit processors, end of text included."""
        return to_perplexity(-self.sample.logprob / self.sample.tokens)


@dataclass(frozen=True)
class Overlap:
    """The result of a task. `unknown` is the tokenizer's text for an unknown word, if it has one."""

    task: OverlapTask
    settings: GenerateSettings
    engine: str
    unknown: str | None
    continuations: list[Continuation]
    seconds: float  # of all generation

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
        return {
            "task": {**asdict(self.task), "prompts": count},
            "asked_prompts": self.task.prompts,  # can exceed the number of usable documents
            # Stories often begin alike, and greedy decoding continues equal prompts identically.
            "different_prompts": len({one.sample.prompt for one in self.continuations}),
            "generate": asdict(self.settings),
            "bleu": bleu_figures(self.hypotheses, self.references),
            "chrf": chrf_figures(self.hypotheses, self.references),
            "conventions": self._conventions(),
            "written": diversity_figures(self.hypotheses),
            "reference": diversity_figures(self.references),
            "tokens": tokens / count,
            "ended": sum(one.sample.finish == "end" for one in self.continuations) / count,
            "perplexity": to_perplexity(nats / tokens),
            "mean_perplexity": math.fsum(one.perplexity for one in self.continuations) / count,
            "reference_perplexity": to_perplexity(reference_nats / (count * self.task.tokens)),
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

    def write_csv(self, path: Path) -> None:
        """Write one line per sample, with texts as scored; `bleu` is sacrebleu's sentence BLEU-4, 0 to 100."""
        text = io.StringIO(newline="")
        table = csv.writer(text)
        table.writerow(COLUMNS)
        bleu = count_bleu(self.hypotheses, self.references, max(ORDERS), alone=True).each()
        rows = zip(self.continuations, self.references, self.hypotheses, bleu.tolist(), strict=True)
        for one, reference, hypothesis, score in rows:
            table.writerow([one.sample.prompt, reference, hypothesis, one.perplexity, score])
        write_whole(path, text.getvalue().encode())


def measure_overlap(
    writer: Writer,
    file: TokenFile,
    settings: GenerateSettings,
    task: OverlapTask,
    without: NDArray[np.bool_] | None = None,
) -> Overlap:
    """Generate continuations of the first tokens of documents and return them with their references.

    The number of tokens is the task's, all other settings are `settings`. `without` (documents,) are excluded, because
    they are also in training. The measured time is that of generation, without the choice and compilation of an engine.
    """
    length, tokenizer = task.prompt_tokens + task.tokens, writer.tokenizer
    chosen = choose_documents(file, task.prompts, length, without).tolist()
    if not chosen:
        if len(choose_documents(file, 1, length)):
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
    texts = [first_tokens(file, document, length) for document in chosen]
    prompts = [ids[: task.prompt_tokens] for ids in texts]
    settings = writer.checked(replace(settings, tokens=task.tokens))
    writer.encode_prompt("")  # raises an error for a classifier before an engine is made
    engine = writer.engine_for(settings)
    start = time.perf_counter()
    samples = writer.samples(prompts, task.seed * task.prompts, settings, task.batch)
    seconds = time.perf_counter() - start
    scored = score_prompts(writer.model, tokenizer.start, texts)
    continuations = [
        Continuation(
            document,
            sample,
            [piece.id for piece in sample.pieces if piece.id != tokenizer.end],
            text_after(tokenizer, prompt, ids[task.prompt_tokens :]),
            ids[task.prompt_tokens :],
            likeliest[task.prompt_tokens :].tolist(),
            float(nats[task.prompt_tokens :].sum()),
        )
        for document, sample, prompt, ids, nats, likeliest in zip(chosen, samples, prompts, texts, *scored, strict=True)
    ]
    unknown = None if tokenizer.unknown is None else tokenizer.piece(tokenizer.unknown)
    return Overlap(task, settings, engine.name, unknown, continuations, seconds)


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
