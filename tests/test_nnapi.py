"""Native drivers: the sample library of tests/native/, sound and with faults, and libraries that are none."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from drivers._nnapi_library import TABLE
from harness.isolation import IsolatedDriver
from harness.record import Record, Run, read_run
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from nnhal.types import ExecutionMode
from tests.add_model import add_model, add_request
from tests.native_library import MISSING, SOURCES, build, build_text, compiler
from tests.plugin_runs import FAILED, OK, USAGE, adds_up, once, pytest_run
from tests.thorough import one_in_three

pytestmark = pytest.mark.skipif(compiler() is None, reason=MISSING)
SIX = ("ADD", "MUL", "CONV_2D", "RELU", "RESHAPE", "SOFTMAX")
Library = Callable[[str], str]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The path of the library with a fault; `NONE` is the sound one, `SUPPORT` the sound one as a support library."""

    def made(name: str) -> str:
        support, fault = name == "SUPPORT", "NONE" if name == "SUPPORT" else name
        _, path = once(tmp_path_factory, f"native_{name}", lambda folder: str(build(folder, fault, support=support)))
        return str(path)

    return made


def only_failures(run: Run) -> list[Record]:
    return [record for record in run.records.values() if record.bad]


# ---- the sound library


def test_the_sound_library_has_no_failure(library: Library, tmp_path: Path) -> None:
    cases = [f"--case={name}-*-drawn-[0-4]" for name in SIX] + [f"--case={name}-*-each-modes-*" for name in SIX]
    ran = pytest_run(tmp_path, f"--driver={library('NONE')}", *cases)
    assert ran.status == OK, ran.out[-3000:]
    adds_up(ran.run)
    counts = ran.run.counts()
    assert counts["PASS"] > 200
    assert sum(counts.values()) == counts["PASS"] + counts["NOT_SUPPORTED"] + counts["NOT_APPLICABLE"]
    assert {record.mode for record in ran.run.records.values() if record.verdict == "PASS"} == {"sync", "each"}


@pytest.mark.thorough
def test_at_an_old_level_executions_are_asynchronous(library: Library, tmp_path: Path) -> None:
    cases = [f"--case={name}-*-each-modes-[01]" for name in SIX] + ["--case=EXECUTION-*-async-*"]
    ran = pytest_run(tmp_path, f"--driver={library('NONE')},device=nncts-native-old", *cases)
    assert ran.status == OK, ran.out[-3000:]
    passed = Counter(record.mode for record in ran.run.records.values() if record.verdict == "PASS")
    assert passed["async"] > 3


@pytest.mark.thorough
def test_it_refuses_what_breaks_a_rule(library: Library, tmp_path: Path) -> None:
    """Only of operations that it does not know it knows no rules."""
    cases = [f"--case={name}-*-{kind}-*" for name in SIX[::2] for kind in ("mutated", "request", "broken")]
    ran = pytest_run(tmp_path, f"--driver={library('NONE')}", *cases)
    known = re.compile(rf".*:([GR]\d+|({'|'.join(SIX)})\.\w+)|({'|'.join(SIX)})\.\w+")
    assert [record.id for record in only_failures(ran.run) if known.fullmatch(record.rule or "")] == []
    assert ran.run.counts()["PASS"] > 200


@pytest.mark.thorough
def test_memory_caches_time_and_buffers(library: Library, tmp_path: Path) -> None:
    parts = ("MEMORY", "QOS", "LIFETIMES", "DEVICE", "CACHING", "EXECUTION", "DYNAMIC_SHAPES")
    cases = [f"--case={part}-*-behaviour-[02]" for part in parts]
    ran = pytest_run(tmp_path, f"--driver={library('NONE')},caching=on", *cases)
    assert [f"{record.id}: {record.message}" for record in only_failures(ran.run)] == []
    assert ran.run.counts()["PASS"] > 200


@pytest.mark.thorough
def test_random_graphs_of_its_operations(library: Library, tmp_path: Path) -> None:
    mix = f"small:{'+'.join(SIX)}"
    done = subprocess.run(
        [sys.executable, "-m", "random_graph", f"--driver={library('NONE')}", f"--mix={mix}", "--count=60",
         f"--runs={tmp_path}"],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == OK, done.stdout + done.stderr
    passed = re.search(r"(\d+) PASS", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 25


def test_a_support_library_gives_a_table(library: Library, tmp_path: Path) -> None:
    exported = subprocess.run(["nm", "-D", "--defined-only", library("SUPPORT")], capture_output=True, check=True)
    assert re.findall(rb"T (ANeural\w+)", exported.stdout) == [b"ANeuralNetworks_getSLDriverImpl"]
    ran = pytest_run(tmp_path, f"--driver={library('SUPPORT')}", *(f"--case={n}-*-drawn-0" for n in SIX))
    assert ran.status == OK, ran.out[-3000:]
    assert ran.run.counts()["PASS"] > 30
    with IsolatedDriver(library("SUPPORT")) as driver:
        assert driver.device.traits.execution_modes == set(ExecutionMode) - {ExecutionMode.ASYNCHRONOUS}
        assert driver.device.traits.buffers


def test_the_order_of_the_table_is_that_of_its_names() -> None:
    """Each part of the interface has its functions in the order of the alphabet, as the public header has them."""
    groups = list(dict.fromkeys(name.partition("_")[0] for name in TABLE))
    assert groups == ["Burst", "Compilation", "Device", "Event", "Execution", "MemoryDesc", "Memory", "Model", ""]
    for group in groups:
        names = [name for name in TABLE if name.partition("_")[0] == group]
        assert names == sorted(names, key=lambda name: name)


# ---- faults


def failure(library: Library, tmp_path: Path, fault: str, *cases: str) -> tuple[Record, str]:
    """The record of the first failure of a library with a fault, and what the terminal says."""
    options = [f"--case={case}" for case in cases]
    ran = pytest_run(tmp_path, f"--driver={library(fault)}", "--deadline=2", "-x", *options)
    assert ran.status == FAILED, ran.out[-3000:]
    return only_failures(ran.run)[0], ran.out


def test_a_crash_names_signal_function_and_line(library: Library, tmp_path: Path) -> None:
    record, _ = failure(library, tmp_path, "CRASH", "MUL-float32-sync-drawn-0")
    assert (record.verdict, record.repeated) == ("CRASH", "same")
    assert "killed by SIGSEGV" in record.message
    assert "_nnapi_prepared.py" in record.log  # the Python stack ends in the call
    if shutil.which("gdb"):
        assert re.search(r"#0 .*compute_pair .*kernels\.c:\d+", record.log)


@pytest.mark.thorough
def test_a_hang(library: Library, tmp_path: Path) -> None:
    record, _ = failure(library, tmp_path, "HANG", "RELU-float32-sync-drawn-0")
    assert record.verdict == "HANG"
    assert record.stage == "execute"


@pytest.mark.thorough
def test_a_write_beyond_an_output(library: Library, tmp_path: Path) -> None:
    record, _ = failure(library, tmp_path, "OVERRUN", "ADD-float32-sync-drawn-0")
    assert (record.verdict, record.cause) == ("FAIL", "OVERRUN")


@pytest.mark.thorough
def test_a_wrong_value(library: Library, tmp_path: Path) -> None:
    record, out = failure(library, tmp_path, "VALUE", "SOFTMAX-float32*-sync-drawn-*")
    assert (record.verdict, record.cause) == ("FAIL", "VALUE")
    assert "expected" in out


@pytest.mark.thorough
def test_biased_rounding_is_poor(library: Library, tmp_path: Path) -> None:
    ran = pytest_run(tmp_path, f"--driver={library('BIASED')}", "--case=ADD-quant8_asymm-sync-drawn-*", "--fail-poor")
    assert ran.status == FAILED
    assert {record.verdict for record in ran.run.records.values()} <= {"PASS", "POOR"}
    assert ran.run.counts()["POOR"] > 0


def stress(library: str, runs: Path, *options: str) -> Record:
    """The record of a run of stress."""
    subprocess.run(
        [sys.executable, "-m", "stress", f"--driver={library}", "--preset=smoke", f"--runs={runs}", *options],
        capture_output=True, check=False, timeout=200,
    )  # fmt: skip
    (folder,) = runs.iterdir()
    (record,) = read_run(folder).records.values()
    return record


@pytest.mark.thorough
def test_a_leak(library: Library, tmp_path: Path) -> None:
    record = stress(library("LEAK"), tmp_path, "--only=soak/light", "--for=15s")
    assert (record.verdict, record.cause) == ("FAIL", "LEAK"), record.message


@pytest.mark.thorough
def test_a_race_shows_in_parallel_requests_alone(library: Library, tmp_path: Path) -> None:
    ran = pytest_run(tmp_path / "alone", f"--driver={library('RACE')}", "--case=ADD-float32-sync-drawn-*")
    assert ran.status == OK
    record = stress(library("RACE"), tmp_path / "together", "--only=parallel_inference/threads8", "--for=6s")
    assert (record.verdict, record.cause) == ("FAIL", "VALUE"), record.message


# ---- sanitizers

GCC = compiler("gcc")
CLANG = compiler("clang")


def sanitized(folder: Path, program: str, runtime: str, *options: str) -> str:
    folder.mkdir()
    path = build(folder, "HEAP", program=program, options=("-fsanitize=address", *options))
    named = subprocess.run([program, f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    return f"{path},preload={Path(named.stdout.strip()).resolve()}"


@pytest.mark.parametrize(
    ("program", "runtime", "options"),
    [
        pytest.param(GCC, "libasan.so", (), id="gcc",
                     marks=pytest.mark.skipif(GCC is None, reason="needs gcc: apt-get install gcc")),
        pytest.param(CLANG, "libclang_rt.asan-x86_64.so", ("-shared-libasan",), id="clang",
                     marks=pytest.mark.skipif(CLANG is None, reason="needs clang: apt-get install clang")),
    ],
)  # fmt: skip
def test_a_sanitizer_names_the_line(program: str, runtime: str, options: tuple[str, ...], tmp_path: Path) -> None:
    driver = sanitized(tmp_path / "built", program, runtime, *options)
    ran = pytest_run(tmp_path / "runs", f"--driver={driver}", "--case=ADD-float32-sync-drawn-0")
    record = only_failures(ran.run)[0]
    assert (record.verdict, record.repeated) == ("CRASH", "same")
    assert "ERROR: AddressSanitizer: heap-buffer-overflow" in record.log
    assert re.search(r"#0 .* start_values .*graph\.c:\d+", record.log)


# ---- what cannot be loaded, and what answers nonsense

HEADER = '#include "neuralnetworks.h"\n'
COUNT = "int ANeuralNetworks_getDeviceCount(uint32_t *count) { *count = 1; return 0; }\n"
EXITS = (
    "#include <stdio.h>\n#include <stdlib.h>\n__attribute__((constructor)) static void start(void) "
    '{ printf("no licence\\n"); fflush(stdout); exit(3); }\n'
)


def sentence(driver: str) -> str:
    with pytest.raises(UsageError) as caught, IsolatedDriver(driver):
        pass
    return str(caught.value)


def test_what_is_no_driver_is_told_in_one_sentence(library: Library, tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library at all")
    assert sentence(str(text)).startswith(f"driver library {text} cannot be loaded: it is no shared library; ")
    assert "does not exist; give the path of a shared library" in sentence(f"{tmp_path}/none.so")
    other = tmp_path / "arm.so"
    content = bytearray(Path(library("NONE")).read_bytes())
    content[18:20] = (183).to_bytes(2, "little")
    other.write_bytes(content)
    assert sentence(str(other)).endswith("it is built for 64-bit Arm; build it for this machine")
    nothing = build_text(tmp_path, "nothing", "int nothing;\n")
    assert "exports neither ANeuralNetworks_getSLDriverImpl nor ANeuralNetworks* functions" in sentence(str(nothing))
    part = build_text(tmp_path, "part", HEADER + COUNT)
    assert "lacks ANeuralNetworks_getDevice and 20 more; export every function" in sentence(str(part))
    needs = build_text(tmp_path, "needs", "extern int missing_thing;\nint *use = &missing_thing;\n")
    assert sentence(str(needs)).endswith("it needs the symbol missing_thing; link it with the library that has it")
    exits = sentence(str(build_text(tmp_path, "exits", EXITS)))
    assert exits.endswith("could not be loaded: its process exited with status 3: no licence")
    table = build_text(tmp_path, "table", "const void *ANeuralNetworks_getSLDriverImpl(void) { return 0; }\n")
    assert "ANeuralNetworks_getSLDriverImpl gives no table" in sentence(str(table))
    for words in map(sentence, (str(text), str(nothing), str(part))):
        assert "\n" not in words


def test_options_are_checked(library: Library) -> None:
    sound = library("NONE")
    assert "has no device 'gpu'; it has 'nncts-native', 'nncts-native-old'" in sentence(f"{sound},device=gpu")
    assert "validation=none is unknown; give one of library, suite" in sentence(f"{sound},validation=none")
    assert "caching=yes is unknown; give on or off" in sentence(f"{sound},caching=yes")
    assert "preload=/none.so is no file" in sentence(f"{sound},preload=/none.so")
    assert "no library is named" in sentence("nnapi")
    assert DriverSpec.parse("x.so.1").is_native
    assert not DriverSpec.parse("x.so.py:DRIVER").is_native


def test_bad_input_ends_a_run_with_its_own_status(tmp_path: Path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library at all")
    ran = pytest_run(tmp_path / "runs", f"--driver={text}")
    assert ran.status == USAGE
    assert "is no shared library" in ran.out + ran.err
    assert "Traceback" not in ran.out + ran.err


NONSENSE = {
    "null name": ("Device_getName", "*name = 0; return 0;", "Device_getName gave a null pointer"),
    "no device": ("_getDevice", "*device = 0; return 0;", "_getDevice answered NO_ERROR and gave a null pointer"),
    "negative count": ("_getDeviceCount", "*numDevices = -1; return 0;", "_getDeviceCount gave 4294967295 devices"),
    "no code": ("_getDeviceCount", "return 77;", "answered 77, which is no result code"),
    "no level": ("Device_getFeatureLevel", "*featureLevel = 3; return 0;", "gave 3, which is no level"),
}


@pytest.mark.parametrize("name", one_in_three(NONSENSE))
def test_nonsense_of_enumeration_is_the_librarys_failure(name: str, tmp_path: Path) -> None:
    function, body, message = NONSENSE[name]
    function = f"ANeuralNetworks{function}"
    source = (SOURCES / "device.c").read_text()
    signature = re.search(rf"int {function}\(([^)]*)\) {{", source)
    assert signature is not None
    start = signature.start()
    end = source.index("\n}\n", start) + 3
    unused = "".join(f"(void){p.split()[-1].lstrip('*')}; " for p in signature[1].split(","))
    wrong = source[:start] + f"int {function}({signature[1]}) {{ {unused}{body} }}\n" + source[end:]
    folder = tmp_path / "sources"
    folder.mkdir()
    for path in SOURCES.iterdir():
        (folder / path.name).write_text(wrong if path.name == "device.c" else path.read_text())
    target = tmp_path / "nonsense.so"
    sources = [str(p) for p in folder.glob("*.c") if p.name != "support_library.c"]
    subprocess.run(
        [compiler() or "gcc", "-std=gnu11", "-fPIC", "-shared", *sources, "-o", str(target), "-lm", "-lpthread"],
        check=True,
    )
    ran = pytest_run(tmp_path / "runs", f"--driver={target}", "--case=ADD-float32-sync-drawn-0")
    assert ran.status == FAILED
    (record,) = ran.run.records.values()
    assert (record.verdict, record.cause, record.stage) == ("FAIL", "UNCLEAN_ERROR", "start")
    assert message in record.message


def test_the_listing_in_the_documentation_is_a_driver(tmp_path: Path) -> None:
    text = (SOURCES.parents[1] / "docs" / "writing-a-native-driver.md").read_text(encoding="utf-8")
    found = re.search(r"```c\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / "mine.c").write_text(found[1], encoding="utf-8")
    target = tmp_path / "libmine.so"
    command = [compiler() or "gcc", "-shared", "-fPIC", f"-I{SOURCES}", "-o", str(target), str(tmp_path / "mine.c")]
    subprocess.run(command, check=True)
    ran = pytest_run(tmp_path / "runs", f"--driver={target},validation=suite", "--case=ADD-float32-sync-drawn-*")
    assert ran.status == OK
    assert set(ran.run.counts()) >= {"NOT_SUPPORTED"}
    assert ran.run.counts()["NOT_SUPPORTED"] == ran.run.selected


def test_nothing_of_the_library_is_left(library: Library) -> None:
    """Models, compilations and memory are freed: a driver that is asked again and again does not grow."""
    with IsolatedDriver(f"{library('NONE')},validation=suite") as driver:
        sizes = []
        for number in range(600):
            prepared = driver.device.prepare_model(add_model())
            prepared.execute_synchronously(add_request())
            prepared.close()
            if number in (100, 599):
                found = driver.sample()
                assert found is not None
                sizes.append((found.rss, found.descriptors))
        assert sizes[1][0] - sizes[0][0] < 2 << 20
        assert sizes[1][1] <= sizes[0][1] + 2
