"""Tests of `lilliput reproduce`; tests/studies has tests of reproductions themselves."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path

import pytest

from helpers.shared_data import DATA, needs_data
from helpers.small_reproductions import reproduced, write_reproduction
from helpers.small_runs import lilliput
from lilliput.studies.reproduction_files import shipped_reproductions


def test_shipped_reproductions_are_listed() -> None:
    code, out, err = lilliput("reproduce")
    assert (code, err) == (0, "")
    assert all(name in out for name in shipped_reproductions())
    found = json.loads(lilliput("reproduce", "--json").out)
    assert [one["name"] for one in found] == list(shipped_reproductions())
    assert all(one.keys() == {"name", "title", "report", "items", "runs", "studies"} for one in found)


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    write_reproduction(tmp_path)
    with chdir(tmp_path):
        code, out, err = lilliput("reproduce", "mine.toml", "--dry-run")
        found = json.loads(lilliput("reproduce", "mine.toml", "--dry-run", "--json", "--minutes", "1").out)
    assert (code, err) == (0, "")
    assert "run    base: recipe mytext.txt, 8 steps, 2 cells, seed 1" in out
    assert "         with tokenizer.kind = byte" in out
    assert "folder        runs/reproduce-mine" in out
    assert not (tmp_path / "runs").exists()
    assert found.keys() == {
        "reproduction", "title", "folder", "items", "parts", "training_seconds_estimate", "seconds_estimate"
    }  # fmt: skip
    assert found["training_seconds_estimate"] == 60
    assert [(part["kind"], part["budget"], part["finished"]) for part in found["parts"]] == [
        ("run", {"steps": 4}, False),
        ("study", {"steps": 8}, False),
    ]
    assert found["seconds_estimate"] == pytest.approx(60 + sum(part["seconds_estimate"] for part in found["parts"]))


def test_finished_work_is_reported() -> None:
    with chdir(reproduced()):
        plan = json.loads(lilliput("reproduce", "mine.toml", "--dry-run", "--json").out)
        assert plan["seconds_estimate"] == 0 and all(part["finished"] for part in plan["parts"])
        code, out, _ = lilliput("reproduce", "mine.toml", "--json")
        found = json.loads(out)
        assert Path(found["html"]).is_file() and Path(found["markdown"]).is_file()
    assert code == 0
    assert found.keys() == {
        "reproduction", "report", "folder", "items", "unfinished", "failed", "html", "markdown"
    }  # fmt: skip
    assert (found["unfinished"], found["failed"]) == ([], [])
    item = next(one for one in found["items"] if one["title"] == "Sizes")
    assert item.keys() == {"place", "title", "kind", "state", "text", "values"}
    total = item["values"][0]
    assert total.keys() == {"row", "column", "published", "ours", "difference", "reason"}
    assert total["difference"] == pytest.approx(total["ours"] / total["published"] - 1)


def test_a_failed_run_is_reported_and_the_rest_is_produced(tmp_path: Path) -> None:
    path = write_reproduction(tmp_path)
    text = (
        path.read_text("utf-8").replace('"log.every"', "log.every").replace("log.every = 1", 'data.source = "lost.txt"')
    )
    path.write_text(text, "utf-8")
    with chdir(tmp_path):
        code, out, _ = lilliput("reproduce", "mine.toml", "--json")
        found = json.loads(out)
    assert code == 1
    assert found["unfinished"] == ["base"]
    assert [failure["part"] for failure in found["failed"]] == ["base"]
    states = {one["title"]: one["state"] for one in found["items"]}
    assert (states["Sizes"], states["Curves"], states["Windows"]) == ("not produced", "not produced", "produced")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("mine.toml", "--minutes", "0"), "flag.value"),
        (("mine.toml", "--minutes", "nan"), "flag.value"),
        (("--quick",), "flag.missing"),
        (("--minutes", "3"), "flag.missing"),
        (("speech",), "reproduction.missing"),
    ],
)
def test_errors(tmp_path: Path, words: tuple[str, ...], code: str) -> None:
    write_reproduction(tmp_path)
    with chdir(tmp_path):
        result = lilliput("reproduce", *words)
    assert result.code == 2 and result.error is not None
    assert result.error.code == code


@needs_data
def test_the_speeches_in_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real quick form with small budgets: parameters are equal, the first rows of all tables are produced."""
    monkeypatch.setenv("LILLIPUT_DATA", str(DATA))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the processes: two threads wait for each other on a busy machine
    monkeypatch.chdir(tmp_path)
    code, out, err = lilliput("reproduce", "speeches", "--quick", "--minutes", "0.05", "--json")
    assert code == 0, err
    items = {one["title"]: one for one in json.loads(out)["items"]}
    assert [value["difference"] for value in items["Parameters"]["values"]] == [0.0, 0.0]
    for title in ("Decoder, full attention", "Decoder, window of 8 words"):
        assert items[title]["state"] == "partly"
        assert items[title]["values"][0]["ours"] is not None
    assert all(one["state"] == "produced" for one in items.values() if one["kind"] == "maps")
