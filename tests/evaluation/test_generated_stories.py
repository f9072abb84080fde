"""The floor equals the storybook's exact score, and only its stories are valid."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import pytest

from helpers.small_runs import SETTINGS, small_config, train_small, trained
from lilliput.data.corpora import open_corpus
from lilliput.data.prepare import prepare
from lilliput.data.storybook import score, stories, validity
from lilliput.decoding.writer import load
from lilliput.evaluation.generated_stories import check_story, measure_stories, story_validity, storybook_floor
from lilliput.evaluation.text_statistics import measure_texts
from lilliput.settings.loading import load_config
from lilliput.settings.tree import GenerateSettings


def test_the_floor_is_the_exact_score_per_byte() -> None:
    config = load_config("storybook", {"data.documents": "30"})
    documents = [document.text for document in open_corpus(config.data).documents("validation")]
    nats = -sum(score(document).logprob or 0.0 for document in documents)
    size = sum(len(document.encode()) for document in documents)
    assert storybook_floor(config) == pytest.approx(nats / math.log(2) / size, rel=1e-12)


def test_other_texts_have_no_floor(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert storybook_floor(load_config(str(tmp_path / "a.txt"))) is None
    assert storybook_floor(load_config("storybook", {"data.validation_source": str(tmp_path / "a.txt")})) is None


def test_story_validity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of one step generates no valid story; the storybook does."""
    monkeypatch.chdir(tmp_path)
    config = load_config(
        "storybook", SETTINGS | {"data.documents": "10", "train.steps": "1", "train.precision": "float32"}
    )
    writer = load(train_small(config)[0].folder)
    found = story_validity(writer, 7, seed=1, batch=3)
    assert (found.count, found.share) == (7, 0.0)
    assert found == story_validity(writer, 7, seed=1, batch=7), "the batch does not matter"
    assert validity(list(islice(stories("validation", 3), 5))).share == 1.0
    result = measure_stories(writer, prepare(config).split("validation"), writer.config.generate, 7, seed=1).as_dict()
    assert (result["valid"], result["breaks"]) == (0.0, {place.scene: place.count for place in found.breaks})
    json.dumps(result, allow_nan=False)


def test_a_story_breaks_where_a_fact_is_wrong() -> None:
    """The hero walks from his home, which the second sentence names."""
    config = load_config("storybook")
    (story,) = islice((one for one in stories("validation", 3) if " lived in " in one), 1)
    home = story.split(" near the ")[1].split()[1]  # the first is its look
    at = story.index(f" {home} to the ") + 1
    whole, begun = check_story(config, story), check_story(config, story[:at])
    assert whole and (whole.valid, whole.unfinished, whole.position) == (True, False, None)
    assert begun and (begun.valid, begun.unfinished, begun.expected) == (False, True, ())
    broken = check_story(config, story[:at] + "zoo" + story[at + len(home) :])
    assert broken and (broken.valid, broken.unfinished, broken.position) == (False, False, at)
    assert (broken.scene, broken.got, broken.expected) == ("departure", "zoo to the", (home,))


def test_texts_of_other_runs_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert check_story(load_config(str(tmp_path / "a.txt")), "Once") is None


def test_generated_texts_are_compared_with_documents_of_the_same_length() -> None:
    """Both start at the beginning, are truncated to the same number of tokens, and measured alike."""
    file = prepare(small_config(trained())).split("train")
    writer = load(trained() / "runs" / "mine", device="cpu")
    settings = GenerateSettings(tokens=90, temperature=1.0, engine="torch")
    found = measure_stories(writer, file, settings, count=3, seed=7, batch=2)
    samples = writer.samples([""] * 3, 7, settings)
    assert found.written == measure_texts([sample.text for sample in samples])
    documents = [file.offsets[number * file.documents // 3] for number in range(3)]
    texts = [writer.tokenizer.decode(file.tokens[first : first + 90].tolist()) for first in documents]
    assert found.reference == measure_texts(texts)
    assert found.reference.texts == 3 and found.reference.unfinished > 0
    assert found.validity is None and found.as_dict()["valid"] is None, "only for the storybook"
