"""How near a model's own words come to those that people wrote after the same beginning.

Owns: doing the task (the first tokens of documents as prompts, so many tokens written after each, references
cut to as many), its outcome, the table of samples, and the comparison of two ways to write. Does not own: the
measures (`bleu`, `bleu_conventions`, `diversity`), the choice of documents (`prompt_selection`), or how
tokens are chosen (`decoding`).

Prompts are given as ids, not as text that would be cut into tokens again. Unknown words never flatter: one
that the model wrote is scored as ■ and one of a reference as □, which match nothing and count as one word
each.
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
from lilliput.evaluation.prompt_selection import choose_documents, first_tokens, follow
from lilliput.settings.tree import GenerateSettings
from lilliput.storage.atomic_files import write_whole

UNKNOWN_WRITTEN, UNKNOWN_GIVEN = "■", "□"
COLUMNS = ("prompt", "reference", "hypothesis", "perplexity", "bleu")


@dataclass(frozen=True)
class Continuation:
    """What a model wrote after the first tokens of a document, and what stands there.

    `likeliest` are the tokens that it would have chosen in the place of `reference_ids`, each after all true ones before it.
    """

    document: int  # its number in the token file
    sample: Sample
    ids: list[int]  # of the sample, without the end of the text, which no reference has
    reference: str
    reference_ids: list[int]
    likeliest: list[int]
    reference_nats: float

    @property
    def perplexity(self) -> float:
        """The model's own, before processors, of all that it wrote, the end included."""
        return to_perplexity(-self.sample.logprob / self.sample.tokens)


@dataclass(frozen=True)
class Overlap:
    """The outcome of a task. `unknown` is how the tokenizer writes a word that it does not know, if there are such."""

    task: OverlapTask
    settings: GenerateSettings
    engine: str
    unknown: str | None
    continuations: list[Continuation]
    seconds: float  # of all writing

    @cached_property
    def hypotheses(self) -> list[str]:
        """As they are scored."""
        return [self._marked(one.sample.text, UNKNOWN_WRITTEN) for one in self.continuations]

    @cached_property
    def references(self) -> list[str]:
        """As they are scored."""
        return [self._marked(one.reference, UNKNOWN_GIVEN) for one in self.continuations]

    def _marked(self, text: str, mark: str) -> str:
        return text if self.unknown is None else text.replace(self.unknown, mark)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. `bleu`, `chrf` and `self_bleu` are from 0 to 100; `conventions` and shares from 0 to 1."""
        count = len(self.continuations)
        tokens = sum(one.sample.tokens for one in self.continuations)
        nats = -math.fsum(one.sample.logprob for one in self.continuations)
        reference_nats = math.fsum(one.reference_nats for one in self.continuations)
        return {
            "task": {**asdict(self.task), "prompts": count},
            "asked_prompts": self.task.prompts,  # there are fewer where too few documents are long enough and did not leak
            # Stories begin alike: a greedy model writes one text after all equal prompts.
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
        """BLEU as other reports have it, by the names of `conventions.CONVENTIONS`; unknown words are not marked there."""
        rows = self.continuations
        ids, words = [one.reference_ids for one in rows], [one.reference.split() for one in rows]
        written = [one.sample.text.split() for one in rows]
        texts: dict[str, tuple[Sequence[Words], Sequence[Words]]] = {
            "words": (written, words),
            "words_unsmoothed": (written, words),
            "words_with_prompt": (
                [(one.sample.prompt + one.sample.text).split() for one in rows],
                [(one.sample.prompt + one.reference).split() for one in rows],
            ),
            "tokens": ([one.ids for one in rows], ids),
            "forced": ([one.likeliest for one in rows], ids),
        }
        return {name: convention_bleu(name, *pair) for name, pair in texts.items()}

    def write_csv(self, path: Path) -> None:
        """A line for each sample, texts as they are scored; `bleu` is sacrebleu's sentence BLEU-4, 0 to 100."""
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
    """Write after the beginnings of documents, `settings` but for the number of tokens, which is the task's.

    `without` are documents that give no prompt: those that also stand in training. The clock runs while texts are written, not
    while an engine is chosen or compiled.
    """
    length, tokenizer = task.prompt_tokens + task.tokens, writer.tokenizer
    chosen = choose_documents(file, task.prompts, length, without).tolist()
    if not chosen:
        if len(choose_documents(file, 1, length)):
            raise UserError(
                f"all documents of at least {length:,} tokens are also in the training split",
                fix="evaluate on other documents",
                code="evaluation.too-small",
            )
        parts = f"{task.prompt_tokens:,} for a prompt, {task.tokens:,} for its reference"
        raise UserError(
            f"no document has {length:,} tokens: {parts}",
            fix="use fewer tokens, or longer documents",
            code="evaluation.too-small",
        )
    texts = [first_tokens(file, document, length) for document in chosen]
    prompts = [ids[: task.prompt_tokens] for ids in texts]
    settings = writer.checked(replace(settings, tokens=task.tokens))
    writer.encode_prompt("")  # a classifier is refused before an engine is made
    engine = writer.engine_for(settings)
    begun = time.perf_counter()
    samples = writer.samples(prompts, task.seed * task.prompts, settings, task.batch)
    seconds = time.perf_counter() - begun
    followed = follow(writer.model, tokenizer.start, texts)
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
        for document, sample, prompt, ids, nats, likeliest in zip(
            chosen, samples, prompts, texts, *followed, strict=True
        )
    ]
    unknown = None if tokenizer.unknown is None else tokenizer.piece(tokenizer.unknown)
    return Overlap(task, settings, engine.name, unknown, continuations, seconds)


def compare_overlaps(a: Overlap, b: Overlap, order: int = max(ORDERS)) -> Paired | None:
    """Corpus BLEU of `a` less that of `b`, both over the same drawn prompts (Koehn 2004); None for one prompt."""
    if prompts_of(a) != prompts_of(b):
        raise UserError(
            "the two continuations have different prompts",
            fix="use the same file, prompts and tokens for both",
            code="evaluation.mismatch",
        )
    counted_a, counted_b = (count_bleu(one.hypotheses, one.references, order) for one in (a, b))
    return paired_bootstrap(counted_a.score, counted_b.score, len(a.continuations))


def prompts_of(overlap: Overlap) -> Sequence[tuple[str, str]]:
    """With their references, which are other ones where another number of tokens was asked for."""
    return [(one.sample.prompt, one.reference) for one in overlap.continuations]
