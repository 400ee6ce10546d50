"""Native stacks of crashes: what is kept of what gdb tells, and when it is not asked."""

from __future__ import annotations

import shutil

import pytest

from harness import crash_stacks
from harness.crash_stacks import _stack_in, crash_stack, debugger, frames_in
from nnhal.loading import DriverSpec
from tests.add_model import add_model, add_request

TOLD = """some words of the driver
Thread 4 "python" received signal SIGSEGV, Segmentation fault.
[Switching to Thread 0x7f]
0x00007f in compute (code=18) at kernels.c:87
#0  0x00007f in compute (code=18) at kernels.c:87
#1  run (until=0) at graph.c:104
#2  0x00007e in ?? () from /lib/x86_64-linux-gnu/libffi.so.8
#3  0x00007d in _PyEval_EvalFrameDefault () at ceval.c:1
Kill the program being debugged? (y or n) [answered Y; input not from terminal]
"""


def test_the_stack_goes_from_the_signal_to_where_python_calls() -> None:
    lines = _stack_in(TOLD).splitlines()
    assert lines[0].endswith("received signal SIGSEGV, Segmentation fault.")
    assert [line.split()[0] for line in lines[1:]] == ["#0", "#1"]
    assert _stack_in("no signal at all") == ""


def test_the_nearest_frames_are_shown_at_once() -> None:
    assert frames_in(f"of the driver\n{_stack_in(TOLD)}") == [
        'Thread 4 "python" received signal SIGSEGV, Segmentation fault.',
        "#0  compute (code=18) at kernels.c:87",
        "#1  run (until=0) at graph.c:104",
    ]
    aborted = (
        "x received signal SIGABRT, Aborted.\n#0  __GI_raise (sig=6) at raise.c:26\n#1  __GI_abort () at abort.c:79\n"
    )
    assert frames_in(aborted + "#2  0x00007f in check () at own.c:1")[1:] == ["#2  check () at own.c:1"]
    report = "==1==ERROR: AddressSanitizer: heap-buffer-overflow\nWRITE of size 8\n    #0 0x7f in start graph.c:85\n"
    assert frames_in(report) == ["==1==ERROR: AddressSanitizer: heap-buffer-overflow", "#0 start graph.c:85"]
    assert frames_in("nothing") == []


def test_a_stack_of_python_alone_stays_whole() -> None:
    told = (
        "x received signal SIGABRT, Aborted.\n#0  _PyEval_EvalFrameDefault () at ceval.c:1\n#1  main () at main.c:2\n"
    )
    assert _stack_in(told).count("#") == 2


def test_it_is_not_asked_for_without_gdb_or_with_a_sanitizer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert crash_stack(DriverSpec("x", "x", preload="/lib/x.so"), pytest.fail) == ""
    monkeypatch.setattr(crash_stacks.shutil, "which", lambda name: None)
    assert debugger() == ()
    assert crash_stack(DriverSpec.parse("tests.minimal_driver:DRIVER"), pytest.fail) == ""


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb: apt-get install gdb")
def test_a_driver_that_does_not_crash_has_none() -> None:
    asked = []

    def act(device) -> None:
        asked.append(device.prepare_model(add_model()).execute_synchronously(add_request()))

    assert crash_stack(DriverSpec.parse("tests.minimal_driver:DRIVER"), act) == ""
    assert len(asked) == 1
