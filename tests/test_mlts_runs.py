"""`python -m mlts` and `pytest mlts` as their users meet them; models for which nothing has to be fetched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.record import read_run
from mlts.__main__ import BAD, GOOD, WRONG, main
from mlts.folder import measurements
from mlts.plan import Tier, tier_of
from mlts.subjects import chosen, listed, subject_of
from nnhal.errors import UsageError
from nnhal.validate import violations
from tests.thorough import one_in_three

ROOT = Path(__file__).resolve().parent.parent
QUANT = "mobilenet_v1_0.25_128_quant"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made files are shared by the tests here and by nobody else."""
    monkeypatch.setenv("NNCTS_CACHE", str(tmp_path_factory.getbasetemp() / "mlts-cache"))


def test_a_model_is_measured_judged_and_on_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--driver=litert", f"--only={QUANT}", "--preset=smoke", f"--runs={tmp_path}"]
    assert main(line) == GOOD
    out = capsys.readouterr().out
    (folder,) = tmp_path.iterdir()
    records = read_run(folder).records
    assert set(records) == {f"MLTS-{QUANT}-default-{aspect}-0" for aspect in ("results", "latency", "stability")}
    assert records[f"MLTS-{QUANT}-default-results-0"].verdict == "PASS"
    (row,) = measurements(folder)
    assert row["driver"]["on_driver"] == row["driver"]["operations"] > 25
    assert row["scores"]["driver"]["top 1 agrees"][0] > 0.5  # other kernels, drawn weights
    assert row["reality"] == "seeded, no trained weights"
    assert row["expected"] is None
    assert min(len(row["driver"]["latency"]), len(row["driver"]["pairs"])) >= 12
    assert f"page: {folder}" in out
    page = next(folder.glob("*.html")).read_text(encoding="utf-8")
    assert QUANT in page
    # What is there is not measured again.
    records_before = (folder / "records.jsonl").read_text(encoding="utf-8").count('"case"')
    assert main([f"--resume={folder}", f"--runs={tmp_path}"]) == GOOD
    assert (folder / "records.jsonl").read_text(encoding="utf-8").count('"case"') == records_before
    assert main(["capabilities", str(folder)]) == GOOD
    assert "OperandType.TENSOR_QUANT8_ASYMM" in capsys.readouterr().out


def test_wrong_results_fail_and_say_how_they_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = f"{ROOT}/tests/worse_reference.py,kernel=CONV_2D"
    line = [f"--driver={driver}", "--baseline=reference", f"--only={QUANT}", "--preset=smoke", f"--runs={tmp_path}"]
    assert main(line) == BAD
    out = capsys.readouterr().out
    assert f"FAIL MLTS-{QUANT}-default-results-0: errors against the reference are" in out
    assert "again: python -m mlts --driver=" in out


def test_a_driver_that_dies_keeps_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--driver=faulty,fault=abort", f"--only={QUANT}", "--preset=smoke", f"--runs={tmp_path}"]
    assert main(line) == BAD
    (folder,) = tmp_path.iterdir()
    assert {record.verdict for record in read_run(folder).records.values()} == {"CRASH"}
    assert "SIGABRT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only=nothing"], "matches no model; python -m mlts --list names them"),
        (["--preset=nonsense"], "there are smoke, short, mlts"),
        (["--driver=nonsense"], "nonsense"),
        (["--tier=low:cpus=99"], "there is no processor 99"),
        (["--tier=low:colour=red"], "parts are threads=N, cpus=0-1"),
        (["--tier=a", "--tier=a:threads=2"], "two tiers are called a"),
        (["--threads=0"], "--threads=0 is no number of threads"),
        (["--deadline=-1"], "give seconds above 0"),
        (["--models=nowhere"], "nowhere"),
        (["--resume=nowhere"], "nowhere"),
        (["--nonsense"], "see python -m mlts --help"),
        (["capabilities"], "RUN"),
        (["capabilities", "nowhere"], "nowhere holds no measurements.jsonl"),
    ],
)
def test_wrong_input_gets_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [] if arguments[0] == "capabilities" else [f"--runs={tmp_path}"]
    assert main([*arguments, *more]) == WRONG
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_every_slot_of_the_public_list_has_its_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == GOOD
    lines = capsys.readouterr().out.splitlines()
    slots = {line.split()[1] for line in lines}
    assert {"mobilenet_v1", "mobilenet_v2", "tts", "asr"} <= slots
    # Of the public list: sizes of each family, float and quantised.
    for family, sizes in (("v1", ("1.0_224", "0.75_192", "0.5_160", "0.25_128")),
                          ("v2", ("1.0_224", "0.75_192", "0.5_160", "0.35_128"))):  # fmt: skip
        for size in sizes:
            for kind in ("float", "quant"):
                assert any(line.startswith(f"mobilenet_{family}_{size}_{kind} ") for line in lines)


@pytest.mark.parametrize("name", one_in_three(named.name for named in listed() if named.quick))
def test_quick_models_need_no_network_and_are_valid(name: str, tmp_path: Path) -> None:
    (named,) = chosen(listed(), [name])
    subject = subject_of(named, tmp_path, 2)
    assert violations(subject.model) == []
    assert len(subject.samples) >= 2


def test_tiers_are_read_as_they_are_written() -> None:
    assert tier_of("low:threads=2:cpus=0:memory=512M") == Tier("low", 2, (0,), 512 << 20)
    assert str(tier_of("low:memory=1G")) == "low (1 thread, 1024 MiB of address space)"
    with pytest.raises(UsageError, match="has no name"):
        tier_of(":threads=2")


@pytest.mark.thorough
def test_the_benchmark_is_part_of_pytest(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pytest", "mlts", "--driver=litert", "-q", f"--runs={tmp_path}", "-k", QUANT]
    ran = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stdout
    (folder,) = tmp_path.iterdir()
    found = [json.loads(line) for line in (folder / "measurements.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["model"] for row in found] == [QUANT]
