"""The parts of fuzzing one by one: inputs that become cases, what makes them smaller, what tells findings apart."""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuzz import parsers
from fuzz.attempt import checked
from fuzz.board import ROOM, Board
from fuzz.cases import ALL, CORPUS, SEED, batches
from fuzz.frontier import Frontier, _recorded, _section
from fuzz.graphs import _moderate
from fuzz.known import Known, ask
from fuzz.mutating import changed
from fuzz.plan import way_of
from fuzz.reducing import reduced
from fuzz.seeds import RecordingSource, dictionary, seeds_of, write_dictionary
from fuzz.signature import crash_place
from fuzz.state import Finding, State
from fuzz.targets import DRIVER, GROUPS, OWN, TARGETS, targets_of
from harness.case_file import dumps, loads, seal
from harness.driver import load_in_process
from harness.expectations import Returns, Short
from harness.guards import Arena
from harness.steps import Running
from harness.verdict import Verdict
from harness.waivers import load_waivers
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from nnhal.types import FeatureLevel, OperationType, info
from opset import OPSET
from opset.drawing import Scope
from opset.drawn import draw_call
from opset.graph import model_of
from opset.source import BytesSource, SeededSource
from tests.native_library import build, compiler
from tests.thorough import one_in_three

INPUTS = 15  # of each target and seed
SEEDED = "seed %d: the inputs are random.Random(seed).randbytes(...)"


def inputs(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice((3, 12, 40, 120, 300))) for _ in range(count)]


# --- targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "seed"), one_in_three((n, s) for s in range(3) for n in GROUPS[DRIVER]))
def test_the_reference_is_never_blamed(name: str, seed: int) -> None:
    """It is what all others are held against: whatever it is charged with is a fault of the target or of it."""
    device = load_in_process(DriverSpec.parse("reference"))
    decode = TARGETS[name].decode
    arena = Arena()
    made = 0
    for data in (*inputs(seed, INPUTS), *list(seeds_of(TARGETS[name], ALL))[seed::3][:INPUTS]):
        attempt = decode(data, ALL)
        if attempt is None:
            continue
        made += 1
        case, judgement, _ = checked(attempt, device, arena, ALL.level, in_process=True)
        assert judgement.verdict in (Verdict.PASS, Verdict.NOT_SUPPORTED, Verdict.POOR), (
            f"{SEEDED % seed}; {data.hex()}: {judgement.message} ({case.origin.detail})"
        )
    arena.close()
    assert made or name == "wire"


def test_models_that_ask_for_very_much_are_not_executed() -> None:
    """A billion of samples is a valid wish, and no answer to it within a deadline is no fault."""
    definition = OPSET[OperationType.ROI_ALIGN]
    for seed in range(20):
        call = draw_call(definition, definition.signatures[0], Scope(SeededSource(seed), max(FeatureLevel)))
        model, _ = model_of(call)
        assert _moderate(model)
        samples = model.main.operands[model.main.operations[0].inputs[list(call.inputs).index("sampling_h")]]
        at = samples.location.offset
        raw = (1_090_519_043).to_bytes(4, "little")
        data = model.operand_values[:at] + raw + model.operand_values[at + 4 :]
        assert not _moderate(replace(model, operand_values=data))


def test_requests_give_outputs_of_open_sizes_too_little_room() -> None:
    """Those outputs are due to be marked, with the shapes that the first execution has."""
    rng = random.Random(5)
    found = []
    for _ in range(4000):
        attempt = TARGETS["requests"].decode(rng.randbytes(100), ALL)
        step = None if attempt is None else attempt.case.steps[3]
        if attempt is not None and step is not None and isinstance(step.expect, Short):
            found.append((attempt.case, step, step.expect))
        if len(found) == 5:
            break
    assert len(found) == 5, SEEDED % 5
    for case, step, short in found:
        good = case.steps[2].expect
        assert isinstance(good, Returns)
        assert isinstance(step.how, Running)
        assert short.shapes == tuple(due.shape for due in good.outputs)
        sizes = [int(np.prod(due.shape)) * np.dtype(info(due.type).dtype).itemsize for due in good.outputs]
        room = step.how.layout.output_bytes
        assert short.outputs == tuple(n for n, size in enumerate(sizes) if room[n] < size)
        assert case.needs == ("dynamic_shapes",)


@pytest.mark.parametrize("name", GROUPS[DRIVER])
def test_an_input_always_becomes_the_same_case(name: str) -> None:
    decode = TARGETS[name].decode
    for data in (*inputs(7, 6), *list(seeds_of(TARGETS[name], ALL))[:3]):
        first, second = decode(data, ALL), decode(data, ALL)
        if first is None or second is None:
            assert first is second
            continue
        one, other = seal(first.complete), seal(second.complete)
        assert one.id == other.id
        assert seal(loads(dumps(one), "it")).id == one.id  # what is saved is the same again


def test_valid_graphs_are_held_to_their_values_where_a_driver_is_off() -> None:
    device = load_in_process(DriverSpec.parse("faulty,inner=reference,fault=wrong_value,operation=ADD"))
    decode = TARGETS["models"].decode
    adds = [choice.definition.name for choice in ALL.mix.choices].index("ADD")
    data = list(seeds_of(TARGETS["models"], ALL))[adds]
    attempt = decode(data, ALL)
    assert attempt is not None
    assert [o.type for o in attempt.case.models[0].main.operations] == [0]
    with_values, judgement, _ = checked(attempt, device, Arena(), ALL.level, in_process=True)
    assert judgement.verdict == Verdict.FAIL
    assert with_values is not attempt.case


def test_what_is_known_of_a_driver_is_the_same_when_read_again() -> None:
    device = load_in_process(DriverSpec.parse("reference"))
    _, known = ask(device)
    assert len(known.operations) >= 105
    assert len(known.vehicles) == len(known.seeds) > 1
    assert Known.from_json(known.to_json()) == known
    few = replace(known, operations=("ADD", "RELU"))
    assert {choice.definition.name for choice in few.mix.choices} == {"ADD", "RELU"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"level": 9}', '{"level": 3, "modes": 4}'])
def test_what_is_known_is_refused_when_damaged(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Known.from_json(text)


def test_unknown_targets_are_named() -> None:
    assert [t.name for t in targets_of(())] == list(GROUPS[DRIVER])
    assert [t.name for t in targets_of((OWN, "models"))] == [*GROUPS[OWN], "models"]
    with pytest.raises(UsageError, match="--target=model is unknown; there are driver, own, models"):
        targets_of(("model",))


def test_the_number_of_cases_is_known_beforehand() -> None:
    counts = {batch.id: len(batch.numbers) for batch in batches("quick")}
    assert {f"FUZZ-{name}-sync-{SEED}" for name in GROUPS[DRIVER]} <= set(counts)


# --- readers of the suite's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUPS[OWN])
def test_readers_take_what_is_written_and_refuse_what_is_damaged(name: str) -> None:
    read = TARGETS[name].read
    assert read is not None
    rng = random.Random(name)
    words = dictionary(TARGETS[name])
    files = [path.read_bytes() for path in sorted(CORPUS.glob(f"{name}-*.bin"))]
    seeds = list(seeds_of(TARGETS[name], ALL))
    assert seeds
    for data in (*files, *seeds):
        read(data)
        for _ in range(60):
            made = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(len(made) + 1)
                if rng.randrange(2):
                    made[place : place + rng.randint(0, 6)] = rng.choice(words)
                else:
                    made[place : place + 1] = rng.randbytes(1)
            read(bytes(made))


def test_a_count_that_is_no_number_is_a_damaged_line(tmp_path: Path) -> None:
    """Found by `parse-records`: `selected` of 1e999."""
    from harness.record import read_run

    rows = ['{"record": "plan", "format": 1, "selected": 1e999, "batches": {}}', '{"record": "resume"}']
    (tmp_path / "records.jsonl").write_text("\n".join(rows) + "\n")
    run = read_run(tmp_path)
    assert run.damaged == 1
    assert run.selected == 0


def test_files_of_a_reader_are_where_they_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setenv(parsers.ORDER, str(tmp_path / "order"))
    monkeypatch.setattr(parsers, "load_waivers", lambda path: seen.append(path) or load_waivers(path))
    parsers.read_waivers(b"\xff")
    assert seen[0].is_relative_to(tmp_path)
    assert not list(tmp_path.iterdir())


# --- choices, seeds and words -----------------------------------------------------------------------------------------


def test_recorded_choices_are_read_again() -> None:
    source = RecordingSource(3, (2, 1))
    spans = [(0, 5), (1, 1), (0, 99), (-4, 4), (0, 70_000), (0, 2**32 - 1), (7, 300)]
    made = [source.integer(low, high) for low, high in spans]
    again = BytesSource(source.data)
    assert [again.integer(low, high) for low, high in spans] == made
    assert made[:2] == [2, 1]
    drawn = RecordingSource(4)
    assert drawn.generator().integers(1 << 30) == BytesSource(drawn.data).generator().integers(1 << 30)


def test_seeds_are_graphs_of_every_operation() -> None:
    decode = TARGETS["models"].decode
    found = set()
    for data in seeds_of(TARGETS["models"], ALL):
        attempt = decode(data, ALL)
        assert attempt is not None
        found |= {o.type for o in attempt.case.models[0].main.operations}
    # Some cannot be drawn alone within the bytes of a seed.
    assert len(found) >= 100


def test_words_are_written_as_the_fuzzer_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "words"
    write_dictionary(TARGETS["wire"], path)
    lines = path.read_text(encoding="ascii").splitlines()
    assert '"\\x4e\\x4e\\x57\\x01"' in lines  # NNW and the format's number
    assert all(line.startswith('"\\x') and line.endswith('"') for line in lines)


def test_changes_keep_what_lies_in_front_of_them() -> None:
    data = bytes(range(100))
    made = [changed(data, 200, random.Random(seed), lambda data, most: b"default") for seed in range(400)]
    assert 0.05 < sum(one == b"default" for one in made) / len(made) < 0.2
    kept = [next((i for i, (a, b) in enumerate(zip(one, data, strict=False)) if a != b), 100) for one in made]
    assert statistics.median(kept) > 30  # places are drawn evenly
    assert any(len(one) == 100 for one in made)
    assert any(len(one) > 100 for one in made)
    assert any(len(one) < 100 for one in made)
    assert all(len(changed(b"ab", 20, random.Random(seed), lambda data, most: data)) <= 20 for seed in range(100))
    assert changed(b"", 20, random.Random(0), lambda data, most: data)


def test_inputs_that_met_the_newest_edges_are_changed_most_often(tmp_path: Path) -> None:
    counters = np.zeros(10, np.uint8)
    frontier = Frontier(tmp_path / "edges", [counters])
    for edge in range(4):
        counters[:] = 0
        counters[: edge + 1] = 1
        frontier.note(bytes([edge]))
    picked = Counter(frontier.pick(random.Random(seed)) for seed in range(2000))
    assert picked[b"\3"] > picked[b"\2"] > picked[b"\1"] > 0
    assert picked[None] > 400  # the fuzzer's own choice has its turn
    assert _recorded(tmp_path / "edges-10") == [0, 1, 2, 3]  # the next process goes on from it


def test_inputs_that_meet_what_few_others_meet_are_changed_too_however_long_ago_that_was_new() -> None:
    counters = np.zeros(200, np.uint8)
    frontier = Frontier(None, [counters])
    rng = random.Random(7)
    for number in range(2000):
        counters[:] = 0
        counters[rng.sample(range(1, 150), 60)] = 1  # what is common
        counters[150 + min(number // 40, 49)] = 1  # what is new, and met often from then on
        counters[0] = number in (5, 900)  # met twice in all, for the first time long ago
        frontier.note(number.to_bytes(2, "big"))
    picked = Counter(frontier.pick(random.Random(seed)) for seed in range(4000))
    rare = picked[(5).to_bytes(2, "big")] + picked[(900).to_bytes(2, "big")]
    # A share of 0.7 * 0.5 goes to 24 rare places: 1.46 % to each, one way or the other 27 to 90 of 4,000.
    assert 27 < rare < 90


def test_counters_are_found_in_the_library_that_has_them(tmp_path: Path) -> None:
    clang = compiler("clang")
    if clang is None:
        pytest.skip("needs clang")
    counted = build(tmp_path, "NONE", program=clang, options=("-fsanitize=fuzzer-no-link",))
    found = _section(counted)
    readelf = shutil.which("readelf")
    assert found is not None
    assert found[1] > 1000
    if readelf:
        listed = subprocess.run([readelf, "-SW", str(counted)], capture_output=True, text=True, check=True).stdout
        (row,) = [line.split("]")[1].split() for line in listed.splitlines() if "__sancov_cntrs" in line]
        assert (int(row[2], 16), int(row[4], 16)) == found
    assert _section(build(tmp_path, "VALUE")) is None
    (tmp_path / "noise").write_bytes(b"\x7fELF\x02" + bytes(range(200)))
    assert _section(tmp_path / "noise") is None


# --- smaller inputs ---------------------------------------------------------------------------------------------------


def test_an_input_is_made_as_small_as_its_failure_needs() -> None:
    data = random.Random(1).randbytes(200) + b"\x05needle\x09" + bytes(40)
    small, asked = reduced(data, lambda found: b"needle" in found, 2000)
    assert small == b"needle"
    assert asked < 2000
    assert reduced(data, lambda found: b"needle" in found, 2000) == (small, asked)


def test_bytes_become_smaller_where_they_may() -> None:
    small, _ = reduced(bytes([200, 17, 90]), lambda found: len(found) >= 2 and found[1] >= 5, 500)
    assert small == bytes([0, 5])


def test_no_more_is_asked_than_may_be() -> None:
    asked = []

    def fails(found: bytes) -> bool:
        asked.append(found)
        return True

    reduced(bytes(range(1, 100)), fails, 7)
    assert len(asked) == 7


# --- what tells findings apart ----------------------------------------------------------------------------------------

ADDRESS = """
=================================================================
==77==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602000000114 at pc 0x7f5 bp 0x7ff sp 0x7fe
WRITE of size 1 at 0x602000000114 thread T0
    #0 0x7f5ac3 in __asan_memcpy (/lib/asan_with_fuzzer.so+0x1)
    #1 0x7f5ac4 in heap /src/deep.c:35:70
    #2 0x7f5ac5 in deep_compute /src/deep.c:140:39
    #3 0x7f5ac6 in compute /src/kernels.c:296:9
    #4 0x7f5ac7 in run_operation /src/graph.c:60:5
0x602000000114 is located 0 bytes to the right of 4-byte region
"""
UNDEFINED = (
    "some words\n/src/deep.c:153:34: runtime error: signed integer overflow: 2147483647 + 2 cannot be represented\n"
)
PYTHON = """Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
  File "/home/me/driver.py", line 12 in kernel
  File "/home/me/driver.py", line 40 in execute_synchronously
  File "/home/me/nncts/harness/executing.py", line 210 in _run
"""


def test_a_crash_is_told_by_its_functions_and_not_by_addresses() -> None:
    assert crash_place(ADDRESS) == ("heap-buffer-overflow", "heap", "deep_compute", "compute")
    assert crash_place(UNDEFINED) == ("signed integer overflow: # + # cannot be represented", "deep.c:153")
    assert crash_place(PYTHON) == ("driver.py kernel", "driver.py execute_synchronously")
    assert crash_place("nothing to see") == ()


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_a_finding_is_new_once(tmp_path: Path) -> None:
    state = State.open(tmp_path / "state")
    assert state.add(Finding(("CRASH", "f"), "FUZZ-1", "models", "a line"))
    assert not state.add(Finding(("CRASH", "f"), "FUZZ-2", "models", "a line"))
    again = State.open(tmp_path / "state")
    assert not again.add(Finding(("CRASH", "f"), "FUZZ-3", "wire", "a line"))
    assert again.add(Finding(("CRASH", "g"), "FUZZ-4", "wire", "a line"))
    assert again.findings["CRASH", "f"].count == 3
    assert again.findings["CRASH", "f"].id == "FUZZ-1"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "findings": [{}], "merged": {}}'])
def test_damaged_findings_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "findings.json").write_text(text)
    with pytest.raises(UsageError, match=r"findings.json is damaged .*: delete it, and all findings are new"):
        State.open(tmp_path)


def test_a_state_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--state=.*file/state: Not a directory; give another folder"):
        State.open(tmp_path / "file" / "state")


def test_the_board_is_read_by_others(tmp_path: Path) -> None:
    mine, other = Board(tmp_path / "board"), Board(tmp_path / "board")
    mine.begin(b"abc")
    mine.cases += 1
    reading = other.read()
    assert (reading.inputs, reading.data) == (1, b"abc")
    assert reading.since > 0
    mine.end()
    assert other.read().since == 0.0
    assert other.read().cases == 1
    mine.begin(bytes(ROOM + 5))
    assert len(other.read().data) == ROOM
    mine.close()
    other.close()


# --- how a driver is fuzzed -------------------------------------------------------------------------------------------


def test_drivers_are_fuzzed_where_something_can_be_seen_of_them(tmp_path: Path) -> None:
    assert way_of("reference", isolated=False).in_process
    assert "reference_driver" in way_of("reference", isolated=False).covered
    assert not way_of("reference", isolated=True).in_process
    assert not way_of("litert", isolated=False).guided
    light = way_of("tests/light_driver.py:DRIVER", isolated=False)
    assert light.in_process
    assert str(Path("tests/light_driver.py").resolve()) in light.covered
    closed = tmp_path / "libclosed.so"
    closed.write_bytes(b"\x7fELF")
    assert not way_of(str(closed), isolated=False).in_process
    counted = tmp_path / "libcounted.so"
    counted.write_bytes(b"\x7fELF __sanitizer_cov_8bit_counters_init __asan_init")
    way = way_of(str(counted), isolated=False)
    assert way.guided
    assert way.text.endswith("asan_with_fuzzer.so")
    gcc = tmp_path / "libgcc.so"
    gcc.write_bytes(b"\x7fELF __sanitizer_cov_trace_pc\0")
    with pytest.raises(UsageError, match="compile it by clang with -fsanitize=fuzzer-no-link"):
        way_of(str(gcc), isolated=False)
    with pytest.raises(UsageError, match=r"gone.so' cannot be read: No such file or directory"):
        way_of(str(tmp_path / "gone.so"), isolated=False)
