"""Tests of `lilliput study`; tests/studies has tests of the studies themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.small_runs import lilliput
from helpers.small_studies import write_study
from lilliput.studies.grid import load_study
from lilliput.studies.measure_settings import MEASURE_TEXTS
from lilliput.studies.study_files import shipped_studies
from lilliput.studies.study_results import METRICS, append_line, open_result
from lilliput.studies.subprocesses import Interrupted

QUICK = '[quick]\nseeds = [4]\naxes.window = ["full"]'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path, seeds=[1, 2], extra=QUICK)
    return tmp_path


def test_shipped_studies_are_listed() -> None:
    code, out, err = lilliput("study")
    assert (code, err) == (0, "")
    assert all(name in out for name in shipped_studies())
    listed = json.loads(lilliput("study", "--json").out)
    assert [one["name"] for one in listed] == list(shipped_studies())
    assert all(one["question"] for one in listed)


def test_a_dry_run_prints_the_plan_and_writes_nothing(here: Path) -> None:
    code, out, err = lilliput("study", "small.toml", "--dry-run")
    assert (code, err) == (0, "")
    for line in (
        "Small",
        "Does it hurt?",
        "  window  full: unchanged recipe (reference)",
        "  window  4 tokens: model.window 4",
        "runs          4, 8 steps each",
        "seeds         1, 2",
        "measurements  4, one per cell (combination of values) and seed",
        f"measured      training: {MEASURE_TEXTS['training']}",
        "folder        runs/small",
    ):
        assert line in out.splitlines()
    assert not (here / "runs").exists()


def test_a_dry_run_reports_missing_data(here: Path) -> None:
    write_study(here, settings={"data.source": "lost.txt"})
    code, out, _ = lilliput("study", "small.toml", "--dry-run")
    assert code == 0
    assert "missing data: " in out and "lost.txt" in out
    result = json.loads(lilliput("study", "small.toml", "--dry-run", "--json").out)
    assert len(result["lacking"]) == 1, "once for all runs"


def test_no_report_without_measurements(here: Path) -> None:
    write_study(here, settings={"data.source": "lost.txt"})
    code, out, _ = lilliput("study", "small.toml")
    assert code == 1
    assert "lost.txt" in out
    assert "report" not in out and not (here / "runs/small/report.html").exists()


def test_a_dry_run_as_json(here: Path) -> None:
    result = json.loads(lilliput("study", "small.toml", "--quick", "--folder", "there", "--dry-run", "--json").out)
    assert (result["folder"], result["runs"], result["measurements"]) == ("there/small-quick", ["seed4"], 1)
    assert result["cells"][0]["labels"] == {"window": "full"}
    assert 10 < result["seconds_estimate"] < 60
    more = json.loads(lilliput("study", "small.toml", "--seeds", "1,2,3,4", "--dry-run", "--json").out)
    assert len(more["runs"]) == 8


def test_a_repeated_seed(here: Path) -> None:
    result = lilliput("study", "small.toml", "--seeds", "3,1,3")
    assert result.code == 2
    assert [(error.code, error.fix) for error in result.errors] == [("flag.value", "use --seeds 3,1")]


@pytest.mark.parametrize("unit", ["flops", "tokens", "minutes"])
def test_the_time_of_other_budgets(here: Path, unit: str) -> None:
    write_study(here, budget={unit: 2})
    result = json.loads(lilliput("study", "small.toml", "--dry-run", "--json").out)
    expected = 240 if unit == "minutes" else 0
    assert expected < result["seconds_estimate"] < expected + 60


def test_the_parent_process_does_not_import_torch(here: Path) -> None:
    """The memory of the parent would count as that of the children."""
    program = (
        "import sys; from lilliput.cli import main; import lilliput.studies.runner as r\n"
        "def stop(*a):\n"
        "    loaded = [m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules]\n"
        "    raise r.UserError(str(loaded), fix='use it', code='x')\n"
        "r.plan = stop; main(['study', 'small.toml'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[0] == "error: []"


@pytest.mark.parametrize(("number", "code"), [(2, 130), (15, 143)])
def test_stopped(here: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    def stop(*_: object) -> None:
        raise Interrupted(number)

    monkeypatch.setattr("lilliput.studies.runner.plan", stop)
    result = lilliput("study", "small.toml", "--seeds", "3,4", "--folder", "my runs", "--overwrite")
    assert result.code == code
    assert result.err.endswith("resume with\n  lilliput study small.toml --seeds 3,4 --folder 'my runs'\n")


# The summary of techniques

TECHNIQUE = """[technique]
name = "A window of 4"
with_it = { window = "4 tokens" }
without = { window = "full" }
use = "for long contexts"
quality = "validation.loss"
"""


def test_summary_of_the_studies_in_a_folder(here: Path) -> None:
    write_study(here, seeds=[1, 2], extra=TECHNIQUE + QUICK)
    study = load_study("small.toml")
    with open_result(study, here / "runs" / "small", command="") as result:
        for cell, seed, loss in (("full", 1, 2.0), ("full", 2, 2.5), ("4 tokens", 1, 2.1), ("4 tokens", 2, 2.6)):
            line = {"cell": {"window": cell}, "seed": seed, "run": "r", "measures": ["training"]}
            append_line(result.folder / METRICS, line | {"figures": {"validation.loss": loss}, "texts": {}})
    outcome = lilliput("study", "--summary", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found == {"studies": ["small"], "report": "runs/techniques.html", "markdown": "runs/techniques.md"}
    text = Path(found["markdown"]).read_text("utf-8")
    (own,) = [line for line in text.splitlines() if line.startswith("| A window of 4 |")]
    assert "+4.4%, worse" in own and "for long contexts" in own
    assert "| KV cache | not run | not run | not run |" in text
    assert lilliput("study", "--summary").out.startswith("report  runs/techniques.html")


def test_summary_without_results_or_with_other_flags(here: Path) -> None:
    for flags, code in (
        ([], "study.incomplete"),
        (["--quick"], "study.incomplete"),
        (["small.toml"], "flag.conflict"),
        (["--seeds", "1"], "flag.conflict"),
        (["--dry-run"], "flag.conflict"),
    ):
        outcome = lilliput("study", "--summary", *flags)
        assert outcome.code == 2 and outcome.error is not None and outcome.error.code == code
    assert not (here / "runs").exists()
