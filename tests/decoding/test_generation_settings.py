"""Overriding a run's `generate` settings: dropped settings, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from lilliput.decoding.generation_settings import override_settings
from lilliput.errors import UserErrors
from lilliput.settings.choice_tables import Conflict
from lilliput.settings.tree import GenerateSettings


def names(dropped: list[Conflict]) -> list[str]:
    return [one.setting.removeprefix("generate.") for one in dropped]


def conflicts(run: GenerateSettings, given: dict[str, Any]) -> list[tuple[str, str | None]]:
    with pytest.raises(UserErrors) as found:
        override_settings(run, given)
    return [(error.code, error.setting) for error in found.value.errors]


def test_settings_of_the_run_that_conflict_with_given_ones_are_dropped() -> None:
    run = GenerateSettings(top_k=5, min_tokens=20, length_penalty=2.0, beams=4, sample_beams=True)
    settings, dropped = override_settings(run, {"temperature": 0.0, "tokens": 9, "beams": None})
    assert settings == GenerateSettings(temperature=0.0, tokens=9)
    assert names(dropped) == ["top_k", "length_penalty", "sample_beams", "min_tokens"]
    assert conflicts(run, {"temperature": 0.0, "top_k": 5})[0] == ("setting.conflict", "generate.top_k")


def test_beams_of_the_run_are_dropped_where_they_conflict_with_a_given_setting() -> None:
    run = GenerateSettings(beams=4, length_penalty=2.0)
    settings, dropped = override_settings(run, {"top_p": 0.9})
    assert settings == GenerateSettings(top_p=0.9)
    assert names(dropped) == ["beams", "length_penalty"]
    assert "generate.top_p" in dropped[0].what
    given: dict[str, Any]
    for given in ({"top_p": 0.9, "beams": 3}, {"beam_groups": 3}, {"top_p": 0.9, "length_penalty": 0.5}):
        assert conflicts(run, given)


def test_the_caller_may_drop_beams() -> None:
    run = GenerateSettings(beams=4, length_penalty=2.0)
    settings, dropped = override_settings(
        run, {"tokens": 9}, [Conflict("generate.beams", "several samples", "use one sample")]
    )
    assert settings == GenerateSettings(tokens=9)
    assert names(dropped) == ["beams", "length_penalty"]
    assert dropped[0].what == "several samples"


def test_a_given_temperature_is_not_ignored() -> None:
    """Beams that are not sampled have no temperature, and 0 samples nothing."""
    run = GenerateSettings(beams=4)
    settings, dropped = override_settings(run, {"temperature": 1.5})
    assert settings == GenerateSettings(temperature=1.5)
    assert names(dropped) == ["beams"]
    given: dict[str, Any]
    for given in ({"temperature": 0.0}, {"temperature": 1.5, "sample_beams": True}, {"beams": 3}):
        assert override_settings(run, given)[1] == []
    assert override_settings(GenerateSettings(), {"temperature": 0.0, "beams": 3})[1] == []
    assert conflicts(GenerateSettings(), {"temperature": 0.5, "beams": 3}) == [
        ("setting.conflict", "generate.temperature")
    ]
