"""The mixture with n-grams: equal to its definition, by any engine, batch and search; its weight; what it refuses."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from helpers.evaluated_runs import judged_runs
from helpers.ngram_reference import START, VOCAB, ByDefinition, documents, make_file
from helpers.small_runs import copy_of_trained, small_config, train_small, trained
from helpers.tiny_models import tiny_model
from helpers.user_errors import refused
from lilliput.data.ngrams.kneser_ney import NGrams, lay_out
from lilliput.data.ngrams.sparse_tables import SparseTables
from lilliput.decoding.beam_hypotheses import BeamSettings
from lilliput.decoding.engines import Engine
from lilliput.decoding.engines.compiled_engine import NumbaEngine
from lilliput.decoding.engines.torch_engine import TorchEngine
from lilliput.decoding.engines.uncached_engine import UncachedEngine
from lilliput.decoding.mixture_weights import mix
from lilliput.decoding.ngram_mixture import WEIGHTS, NGramMixture
from lilliput.decoding.processors import Strategy, TopK, build_strategy
from lilliput.decoding.repetition_penalties import Penalties
from lilliput.decoding.requests import Request
from lilliput.decoding.row_history import Processor, RowHistory
from lilliput.decoding.stream import stream
from lilliput.decoding.temperatures import Temperature
from lilliput.decoding.token_choice import Draws, choose
from lilliput.decoding.token_scores import score_tokens
from lilliput.decoding.writer import Writer, load
from lilliput.model.transformer import Transformer
from lilliput.settings.tree import GenerateSettings

TRAIN = documents(make_file(0), START)
REFERENCE = ByDefinition(TRAIN, 5, None)
TABLES = SparseTables(NGrams(lay_out(make_file(0), START), VOCAB, 5))
# The start of a document, texts of training and other texts, shorter and longer than the n-grams.
TEXTS: list[list[int]] = [[START], *(list(TRAIN[n][:length]) for n, length in ((1, 2), (1, 5), (5, 30), (4, 9)))]
TEXTS += [[START, 17], [START, 0, 1, 2, 3, 4, 5, 0], [START, 2, START, 3]]


def mixture(weight: float) -> NGramMixture:
    return NGramMixture(TABLES, weight, fitted=False, tokens=1)


def histories(texts: list[list[int]]) -> list[RowHistory]:
    return [RowHistory(list(text), len(text), 50) for text in texts]


def by_definition(logits: NDArray[np.float64], text: list[int], weight: float) -> NDArray[np.float64]:
    """Return the probabilities of the mixture, one token at a time."""
    net = np.exp(logits - logits.max())
    ngrams = np.array([REFERENCE.probability(token, tuple(text[-4:])) for token in range(VOCAB)])
    return (1 - weight) * net / net.sum() + weight * ngrams


def draw_logits(rows: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0.0, 3.0, (rows, VOCAB))


# ---- The processor


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_log_probabilities_equal_the_definition(weight: float) -> None:
    logits = draw_logits(len(TEXTS))
    found = mixture(weight)(histories(TEXTS), torch.from_numpy(logits)).numpy()
    expected = [by_definition(row, text, weight) for row, text in zip(logits, TEXTS, strict=True)]
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1.0, rtol=1e-12)


def test_a_row_does_not_depend_on_the_batch() -> None:
    """Bit for bit, also in a batch that is processed in several blocks."""
    texts = [TEXTS[row % len(TEXTS)] for row in range(2000)]
    logits = draw_logits(len(texts))
    before = logits.copy()
    together = mixture(0.4)(histories(texts), torch.from_numpy(logits)).numpy()
    assert np.array_equal(logits, before), "the argument must not change"
    for row in (0, 1, 7, 900, 911, 1999):
        alone = mixture(0.4)(histories([texts[row]]), torch.from_numpy(logits[row : row + 1])).numpy()
        assert np.array_equal(alone[0], together[row])


def test_the_type_of_the_logits_is_kept_and_small_probabilities_are_finite() -> None:
    logits = np.full((1, VOCAB), -2000.0, np.float32)
    logits[0, 3] = 0.0
    for weight in (0.0, 0.5, 1.0):
        found = mixture(weight)(histories([[START]]), torch.from_numpy(logits))
        assert found.dtype == torch.float32 and bool(torch.isfinite(found).all())


def test_it_is_applied_before_all_other_processors() -> None:
    tokenizer = load_copy().tokenizer
    settings = GenerateSettings(repetition_penalty=1.2, top_k=3)
    processors = build_strategy(settings, tokenizer, mixture(0.5)).processors
    assert processors[0] == mixture(0.5) and isinstance(processors[1], Penalties)
    assert build_strategy(settings, tokenizer).processors == processors[1:]


# ---- Generation


@torch.inference_mode()
def generate_plainly(model: Transformer, request: Request, weight: float, rest: tuple[Processor, ...]) -> list[int]:
    """Generate one row without cache, with the mixture of the definition; the net's view is halved at its context."""
    context = model.settings.context
    text, draws = RowHistory(list(request.prompt), len(request.prompt), request.tokens), Draws(request.seed)
    view = list(request.prompt)
    while text.left:
        view = view if len(view) <= context else view[-(context // 2) :]
        logits = model(torch.tensor([view]))[0, -1].numpy()
        mixed = torch.from_numpy(np.log(by_definition(logits, text.ids, weight)))[None]
        (id_,) = choose([Strategy(rest, request.strategy.sample)], [text], mixed, [draws])
        assert isinstance(id_, int)
        text.ids.append(id_)
        view.append(id_)
    return text.ids[text.prompt :]


@pytest.mark.parametrize("kind", [TorchEngine, UncachedEngine])
@pytest.mark.parametrize("sample", [True, False])
def test_texts_equal_those_of_a_plain_loop(kind: type[TorchEngine], sample: bool) -> None:
    """Rows of different lengths in one batch, beyond the context of 24 tokens, with processors after the mixture."""
    model, weight = tiny_model(3, vocab_size=VOCAB), 0.35
    rest: tuple[Processor, ...] = (Penalties(1.1, 0.0, 0.0, True, 16, None),)
    rest += (Temperature(1.3), TopK(9)) if sample else ()
    strategy = Strategy((mixture(weight), *rest), sample)
    requests = [Request(text, 30, strategy, seed) for seed, text in enumerate(TEXTS)]
    tokens = list(stream(kind(model), requests))
    for row, request in enumerate(requests):
        expected = generate_plainly(model, request, weight, rest)
        assert [token.id for token in tokens if token.row == row] == expected
        assert [token.id for token in stream(kind(model), [request])] == expected


def test_reported_log_probabilities_are_those_of_the_net() -> None:
    model = tiny_model(3, vocab_size=VOCAB)
    (token,) = stream(TorchEngine(model), [Request(TEXTS[3], 1, Strategy((mixture(1.0),)))])
    with torch.inference_mode():
        expected = model(torch.tensor([TEXTS[3][-24 // 2 :]]))[0, -1].log_softmax(dim=-1)
    assert len(TEXTS[3]) > 24 and token.logprob == pytest.approx(expected[token.id].item(), abs=1e-12)


def all_texts(model: Transformer, prompt: list[int], weight: float, tokens: int) -> dict[tuple[int, ...], float]:
    """Return every text of this length and its log-probability under the mixture."""
    found = {(): 0.0}
    for _ in range(tokens):
        longer: dict[tuple[int, ...], float] = {}
        for ids, logprob in found.items():
            text = [*prompt, *ids]
            with torch.inference_mode():
                logits = model(torch.tensor([text]))[0, -1].numpy()
            for token, one in enumerate(np.log(by_definition(logits, text, weight)).tolist()):
                longer[(*ids, token)] = logprob + one
        found = longer
    return found


@pytest.mark.parametrize("seed", range(3))
def test_greedy_and_beams_equal_exhaustive_search(seed: int) -> None:
    model, prompt = tiny_model(seed, vocab_size=VOCAB, layers=1), (TEXTS[0], TEXTS[2], TEXTS[4])[seed]
    texts = all_texts(model, prompt, 0.5, tokens=2)
    strategy, width = Strategy((mixture(0.5),)), VOCAB
    best = sorted(texts, key=lambda ids: -texts[ids])[: width + 1]
    assert all(texts[one] - texts[other] > 1e-9 for one, other in itertools.pairwise(best))
    request = Request(prompt, 2, strategy, beams=BeamSettings(width, 2, 0.0, n_best=width))
    list(stream(TorchEngine(model), [request]))
    assert [text.ids for text in request.hypotheses] == best[:width]
    for text in request.hypotheses:
        assert text.score == pytest.approx(texts[text.ids], abs=1e-12)
    greedy = tuple(token.id for token in stream(TorchEngine(model), [Request(prompt, 2, strategy)]))
    first = max(range(VOCAB), key=lambda id_: np.logaddexp.reduce([texts[id_, other] for other in range(VOCAB)]))
    assert greedy == (first, max(range(VOCAB), key=lambda id_: texts[first, id_]))


def test_the_compiled_engine_generates_the_same_text() -> None:
    model = tiny_model(1, vocab_size=VOCAB, qk_norm=True).float()

    def write(engine: Engine) -> list[tuple[int, int]]:
        requests = [Request(text, 20, Strategy((mixture(0.4),), sample=True), seed) for seed, text in enumerate(TEXTS)]
        return [(token.row, token.id) for token in stream(engine, requests)]

    assert write(NumbaEngine(model)) == write(TorchEngine(model))


# ---- The n-grams of a run


def load_copy(folder: Path | None = None) -> Writer:
    """Load the small run, or a copy of it that may be changed."""
    return load((trained() if folder is None else copy_of_trained(folder)) / "runs" / "mine", device="cpu")


def nats_of(writer: Writer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the nats of the net and of newly counted n-grams on the validation split."""
    prepared, _ = writer.ngrams.open()
    train, held = prepared.split("train"), prepared.split("validation")
    start, context = writer.tokenizer.start, writer.config.model.context
    *_, ngrams = NGrams(lay_out(train, start), writer.tokenizer.vocab_size, 5).nats(lay_out(held, start))
    return score_tokens(writer.model, held, start, context).nats, ngrams


def test_the_fitted_weight_equals_a_grid_search(tmp_path: Path) -> None:
    writer = load_copy(tmp_path)
    net, ngrams = nats_of(writer)
    np.testing.assert_array_equal(writer.ngrams.nats(writer.ngrams.open()[0].split("validation")), ngrams)
    grid = np.linspace(0, 1, 2001)
    losses = [mix(net, ngrams, 1 - one).mean() for one in grid]
    found = writer.ngrams.mixture("auto")
    assert found.fitted and abs(found.weight - grid[int(np.argmin(losses))]) <= 0.0005
    assert mix(net, ngrams, 1 - found.weight).mean() <= min(losses) + 1e-9


def fit(writer: Writer, stride: int | None = None) -> tuple[float, bool]:
    """Return the weight, and whether it was fitted now."""
    messages: list[str] = []
    weight = writer.ngrams.fit(stride, report=lambda message, *_: messages.append(message))
    return weight, any("fitting" in message for message in messages)


def test_the_weight_is_kept_in_the_run(tmp_path: Path) -> None:
    writer = load_copy(tmp_path)
    assert writer.checkpoint is not None and writer.checkpoint.run_folder is not None
    folder = writer.checkpoint.run_folder
    weight, fitted = fit(writer)
    assert fitted and fit(load(folder)) == (weight, False)
    other, fitted = fit(load(folder), stride=4)
    assert fitted and other != weight
    assert fit(load(folder)) == (weight, False) and fit(load(folder), stride=4) == (other, False)
    saved = json.loads((folder / WEIGHTS).read_text())
    for damage in ("", "[]", "{}", json.dumps(saved | {"format": 0}), json.dumps(saved | {"weights": [{"weight": 2}]})):
        (folder / WEIGHTS).write_text(damage)
        assert fit(load(folder)) == (weight, True)
    saved["weights"][0]["key"]["model"] = "other weights"
    (folder / WEIGHTS).write_text(json.dumps(saved))
    assert fit(load(folder)) == (weight, True)


def test_a_checkpoint_outside_a_run_has_no_file(tmp_path: Path) -> None:
    checkpoint = load_copy(tmp_path).checkpoint
    assert checkpoint is not None
    alone = Path(shutil.copytree(checkpoint.folder, tmp_path / "alone"))
    weight, _ = fit(load(alone))
    assert fit(load(alone)) == (weight, True)
    assert not (tmp_path / WEIGHTS).exists() and load(alone).generate("A", seed=1)


def test_settings_select_the_mixture(tmp_path: Path) -> None:
    writer = load_copy(tmp_path)
    settings = replace(writer.config.generate, tokens=20, temperature=0.0)
    assert writer.mixture_for(settings) is None
    prompts = ["", "The old", "Every owl saw the"]
    alone = [sample.text for sample in writer.samples(prompts, settings=settings)]
    assert [sample.text for sample in writer.samples(prompts, settings=replace(settings, mix_ngram=0.0))] == alone
    only = replace(settings, mix_ngram=1.0)
    tables = SparseTables(writer.ngrams.open()[1])
    for prompt, sample in zip(prompts, writer.samples(prompts, settings=only), strict=True):
        ids = writer.encode_prompt(prompt)
        for piece in sample.pieces:
            assert piece.id == int(tables.distributions([ids])[0].argmax())
            ids.append(piece.id)
    ((best,),) = writer.beams(["The old"], settings=replace(only, beams=1))
    assert best.text == writer.samples(["The old"], settings=only)[0].text
    found = writer.mixture_for(replace(settings, mix_ngram="auto"))
    assert found is not None and found.as_dict()["weight_from"] == "validation"
    assert found is writer.mixture_for(replace(settings, mix_ngram="auto"))


# ---- Errors


def refuse(writer: Writer) -> tuple[str, str | None]:
    settings = replace(writer.config.generate, mix_ngram=0.5)
    error = refused(lambda: writer.ngrams.mixture(0.5))
    if writer.config.model.task != "classifier":
        again = refused(lambda: writer.samples(["A"], settings=settings))
        assert (again.code, again.setting) == (error.code, error.setting)
    return error.code, error.setting


def test_a_classifier_is_refused() -> None:
    assert refuse(load(judged_runs() / "runs" / "classifier")) == ("model.task", "generate.mix_ngram")


def test_a_process_of_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refuse(load_copy()) == ("setting.conflict", "generate.mix_ngram")


def test_a_model_without_a_run_is_refused() -> None:
    assert refuse(replace(load_copy(), checkpoint=None)) == ("setting.conflict", "generate.mix_ngram")


def test_a_missing_text_is_an_error(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path))
    (tmp_path / "mytext.txt").unlink()
    error = refused(lambda: load(run.folder).ngrams.open())
    assert error.setting == "generate.mix_ngram" and "mytext.txt" in str(error) and "training data" in error.what


def test_data_that_is_not_prepared_is_prepared_on_request(tmp_path: Path) -> None:
    run, _ = train_small(small_config(tmp_path))
    shutil.rmtree(tmp_path / "prepared")
    error = refused(lambda: load(run.folder).ngrams.open(build=False))
    assert (error.code, error.setting) == ("data.not-prepared", "generate.mix_ngram")
    load(run.folder).ngrams.open()
    assert (tmp_path / "prepared").exists()
