"""Functions of heads: scores and baselines equal plain loops, and constructed heads get their names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from helpers.attention_pages import small_writer
from helpers.user_errors import refused
from lilliput.data.corpora.conllu import AnnotatedDocument, parse_conllu
from lilliput.evaluation.intervals import ratio_interval
from lilliput.interpret.attention_capture import HeadChoice, capture_ids
from lilliput.interpret.attention_maps import AttentionMaps
from lilliput.interpret.head_functions import NAMES, DistanceMeans, FunctionSums, measure_functions
from lilliput.interpret.head_names import Head
from lilliput.interpret.head_score_definitions import FUNCTIONS
from lilliput.interpret.word_alignment import AlignedText, align

# ID, form, UPOS, FEATS, head, relation, MISC
FOX = """\
1 The DET PronType=Art 3 det _
2 old ADJ _ 3 amod _
3 fox NOUN _ 4 nsubj _
4 saw VERB _ 0 root _
5 a DET PronType=Art 6 det _
6 bee NOUN _ 4 obj _
7 in ADP _ 9 case _
8 some DET PronType=Ind 9 det _
9 hay NOUN _ 4 obl SpaceAfter=No
10 . PUNCT _ 4 punct _"""
IT = """\
1 He PRON _ 2 nsubj Antecedent=1:3
2 ate VERB _ 0 root _
3 hay NOUN _ 2 obj Antecedent=1:9|SpaceAfter=No
4 . PUNCT _ 2 punct _"""


def conllu(*sentences: str) -> AnnotatedDocument:
    lines = ["# newdoc"]
    for sentence in sentences:
        for line in sentence.splitlines():
            id_, form, upos, features, head, relation, misc = line.split()
            lines.append("\t".join([id_, form, "_", upos, "_", features, head, relation, "_", misc]))
        lines.append("")
    (found,) = parse_conllu("\n".join(lines))
    return found


STORY = conllu(FOX, IT)
TEXT = "The old fox saw a bee in some hay. He ate hay."
# Byte tokens: character n is token n + 1, after the start token.


def test_examples_of_a_text() -> None:
    assert STORY.text == TEXT
    (text,) = align(small_writer(context=64), STORY, 5)
    assert text.document == 5 and len(text.ids) == len(TEXT) + 1
    late = TEXT.rindex("hay")

    def found(name: str) -> list[tuple[int, range]]:
        return text.examples[name]

    assert found("subject-verb") == [(TEXT.index("saw") + 3, span("fox")), (TEXT.index("ate") + 3, span("He"))]
    assert found("article-noun") == [(TEXT.index("fox") + 3, span("The")), (TEXT.index("bee") + 3, span("a", 15))]
    assert found("adjective-noun") == [(TEXT.index("fox") + 3, span("old"))]
    assert found("preposition-object") == [(TEXT.index("hay") + 3, span("in"))]
    assert found("verb-object") == [(TEXT.index("bee") + 3, span("saw")), (late + 3, span("ate"))]
    assert found("pronoun-antecedent") == [(TEXT.index("He") + 2, span("fox"))]
    assert found("recall") == [(late, span("hay"))], "the query is the space before the word"


def span(word: str, start: int = 0) -> range:
    at = TEXT.index(word, start)
    return range(at + 1, at + 1 + len(word))


def test_a_document_is_cut_between_sentences() -> None:
    writer = small_writer()  # a context of 32
    first, second = align(writer, STORY, 0)
    assert len(first.ids) == 32 and writer.tokenizer.decode(second.ids) == "He ate hay."
    assert not second.examples["pronoun-antecedent"] and len(second.examples["verb-object"]) == 1
    assert not first.examples["preposition-object"], "its noun is after the context"


# Scores -----------------------------------------------------------------------------------------------------------------


def plain_scores(text: AlignedText, attention: AttentionMaps, weights: np.ndarray, cosine: np.ndarray) -> np.ndarray:
    """Return (2, F): sums and counts of one head, by loops over the definitions."""
    mask, tokens = attention.mask(0), len(text.ids)
    sums, counts = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
    for q in range(tokens):
        seen = [k for k in range(tokens) if mask[q, k]]
        kinds: dict[str, list[int]] = {
            "previous": [k for k in seen if k == q - 1],
            "first": [k for k in seen if k == 0 and q != 0],
            "punctuation": [k for k in seen if attention.tokens[k] in ".,!"],
            "same": [k for k in seen if k != q and text.ids[k] == text.ids[q]],
            "induction": [k for k in seen if k != q and k > 0 and k - 1 != q and text.ids[k - 1] == text.ids[q]],
        }
        for name, keys in kinds.items():
            if keys and len(seen) >= 2:
                sums[name] += weights[q, keys].sum()
                counts[name] += 1
        others = [k for k in seen if k != 0 and text.ids[k] != text.ids[q]]
        if len(others) >= 3 and np.ptp(cosine[q, others]) > 0:
            own = weights[q, others]
            sums["similarity"] += np.corrcoef(own, cosine[q, others])[0, 1] if np.ptp(own) > 1e-15 else 0.0
            counts["similarity"] += 1
    for name, examples in text.examples.items():
        for q, keys in examples:
            if mask[q, list(keys)].all():
                sums[name] += weights[q, list(keys)].sum()
                counts[name] += 1
    return np.array([[sums[name] for name in NAMES], [counts[name] for name in NAMES]])


@pytest.mark.parametrize("changes", [{}, {"window": 12}, {"task": "classifier", "classes": 2}], ids=str)
def test_scores_equal_plain_loops(changes: dict[str, Any]) -> None:
    writer = small_writer(context=64, initialisation="xavier", layers=1, **changes)
    documents = [STORY, conllu(IT.replace("Antecedent=1:3", "_").replace("Antecedent=1:9|", "")), conllu(FOX)]
    found = measure_functions(writer, documents, seed=2)
    assert [one.head for one in found] == [Head(0, 0), Head(0, 1)]
    texts = [text for number, document in enumerate(documents) for text in align(writer, document, number)]
    maps = [capture_ids(writer, text.ids, HeadChoice()) for text in texts]
    table = writer.model.embedding.table.weight.detach().numpy()
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    for one in found:
        on: dict[int, list[float]] = {}
        for attention in maps:
            for q, k in np.argwhere(attention.mask(0)):
                on.setdefault(int(q - k), []).append(attention.weights[0][one.head.head, q, k])
        parts = []
        for text, attention in zip(texts, maps, strict=True):
            mask, cosine = attention.mask(0), (unit @ unit.T)[np.ix_(text.ids, text.ids)]
            even = mask / mask.sum(axis=1, keepdims=True)
            position = np.zeros(mask.shape)
            for q, k in np.argwhere(mask):
                position[q, k] = np.mean(on[int(q - k)])
            position /= position.sum(axis=1, keepdims=True)
            own = attention.weights[0][one.head.head]
            parts.append([plain_scores(text, attention, weights, cosine) for weights in (own, even, position)])
        sums = np.array(parts)  # (documents, 3, 2, F)
        for number, name in enumerate(NAMES):
            score, counts = one.scores[name], sums[:, 0, 1, number]
            if not counts.sum():
                assert score is None
                continue
            assert score is not None and score.count == counts.sum()
            expected = sums[:, :, 0, number].sum(axis=0) / counts.sum()
            assert math.isclose(score.score, expected[0], rel_tol=1e-9, abs_tol=1e-12), name
            assert math.isclose(score.even, expected[1], rel_tol=1e-9, abs_tol=1e-12), name
            assert score.position is None or math.isclose(score.position, expected[2], rel_tol=1e-9, abs_tol=1e-12)
            assert (score.position is None) == FUNCTIONS[name].positional
            baseline = 1 if score.position is None or expected[1] >= expected[2] else 2
            excess = sums[:, 0, 0, number] - sums[:, baseline, 0, number]
            assert score.excess == pytest.approx(ratio_interval(excess, counts, seed=2), rel=1e-6, abs=1e-12)


def constructed(kind: str, seed: int) -> tuple[AlignedText, AttentionMaps]:
    """Return a text of 30 tokens with 5 subjects and verbs at random places, and one head of this kind."""
    generator, tokens = np.random.default_rng(seed), 30
    mask = np.tril(np.ones((tokens, tokens), np.bool_))
    weights = np.exp(0.1 * generator.normal(size=(tokens, tokens))) * mask
    places = [(5 * n + 4, 5 * n + int(generator.integers(4))) for n in range(5)]
    if kind == "subject-verb":
        for verb, subject in places:
            weights[verb, subject] += 20.0
    elif kind == "previous":
        weights[np.arange(1, tokens), np.arange(tokens - 1)] += 20.0
    weights /= weights.sum(axis=1, keepdims=True)
    ids = [int(one) for one in generator.permutation(tokens)]
    names = [
        name for name in NAMES if name not in ("previous", "first", "punctuation", "same", "induction", "similarity")
    ]
    examples = {name: list[tuple[int, range]]() for name in names}
    examples["subject-verb"] = [(verb, range(subject, subject + 1)) for verb, subject in places]
    maps = AttentionMaps([f"t{one}" for one in ids], [weights[None]], [mask], ids=ids)
    return AlignedText(seed, ids, examples), maps


@pytest.mark.parametrize("kind", ["subject-verb", "previous", "none"])
def test_constructed_heads_get_their_names(kind: str) -> None:
    texts = [constructed(kind, seed) for seed in range(20)]
    distances = DistanceMeans()
    for _, attention in texts:
        distances.add(attention)
    sums = FunctionSums(len(texts), distances)
    for text, attention in texts:
        sums.add(text, attention, np.random.default_rng(1000 + text.document).normal(size=(30, 30)))
    (found,) = sums.result(seed=0)
    assert found.pattern == kind
    score = found.scores["subject-verb"]
    assert score is not None and score.excess is not None
    assert (score.excess.low > 0) == (kind == "subject-verb")
    assert found.as_dict()["pattern"] == kind


def test_one_document_has_no_interval_and_no_pattern() -> None:
    for one in measure_functions(small_writer(context=64), [STORY]):
        assert one.pattern == "none"
        assert all(score is None or score.excess is None for score in one.scores.values())


def test_documents_are_drawn_with_the_seed_and_heads_are_selected() -> None:
    writer, documents = small_writer(context=64), [STORY, conllu(FOX), conllu(FOX), STORY]
    found = measure_functions(writer, documents, 2, seed=1, layers=[1], heads=[0])
    chosen = np.sort(np.random.default_rng(1).permutation(4)[:2])
    assert found == measure_functions(writer, [documents[n] for n in chosen], seed=1, layers=[1], heads=[0])
    assert [one.head for one in found] == [Head(1, 0)]


def test_no_text() -> None:
    empty = small_writer(task="classifier", classes=2)
    assert refused(lambda: measure_functions(empty, [conllu("1 a X _ 0 root _")])).code == "attention.text"
