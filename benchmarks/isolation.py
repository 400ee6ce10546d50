"""What a process of its own costs: one case (query, prepare, execute) of ADD on 1x8x8x3, in process and isolated.

`python -m benchmarks.isolation [CASES] [DRIVER]`. Both are measured in turns, so that a busy machine slows both.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np

from harness.isolation import IsolatedDriver
from nnhal import loading
from nnhal.device import Device
from nnhal.errors import DriverDied
from nnhal.loading import DriverSpec
from tests.add_model import EXPECTED, add_model, add_request, output

DRIVER = "tests.minimal_driver:DRIVER"
BLOCK = 50


def one_case(device: Device) -> float:
    """Seconds for one case with a new model; making model and memory does not count."""
    model, request = add_model(), add_request()
    start = time.perf_counter()
    supported = device.get_supported_operations(model)
    device.prepare_model(model).execute_synchronously(request)
    seconds = time.perf_counter() - start
    if supported != [True] or not np.array_equal(output(request), EXPECTED):
        raise SystemExit("the driver gave a wrong result")
    return seconds


def again(device: Device) -> Callable[[], float]:
    """Seconds for one more execution of a prepared model."""
    prepared, request = device.prepare_model(add_model()), add_request()

    def run() -> float:
        start = time.perf_counter()
        prepared.execute_synchronously(request)
        return time.perf_counter() - start

    return run


def question(device: Device) -> float:
    """Seconds for the smallest call."""
    start = time.perf_counter()
    device.get_type()
    return time.perf_counter() - start


def seconds_of(action: Callable[[], object]) -> float:
    """Seconds for an action."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def replacement(driver: IsolatedDriver) -> float:
    """Seconds from a driver's death to an answer of the next process."""
    device = driver.device
    start = time.perf_counter()
    os.kill(driver.pid, 9)
    try:
        while True:
            device.get_type()
    except DriverDied:
        driver.device.get_type()
    return time.perf_counter() - start


def show(name: str, here: list[float], apart: list[float]) -> None:
    """One line of the table, in microseconds."""
    a, b = (float(np.median(times)) * 1e6 for times in (here, apart))
    low, high = (float(np.percentile(apart, p)) * 1e6 for p in (10, 90))
    print(f"{name:<24}{a:>10.0f} {b:>10.0f} {b - a:>10.0f}   {low:.0f} to {high:.0f}")


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    cases = int(arguments[0]) if arguments else 2000
    spec = arguments[1] if len(arguments) > 1 else DRIVER
    inside = loading.load(DriverSpec.parse(spec))
    begin = time.perf_counter()
    with IsolatedDriver(spec) as driver:
        ready = time.perf_counter() - begin
        isolated: Device = driver.device
        for _ in range(BLOCK):
            one_case(inside)
            one_case(isolated)
        measures: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "case": (lambda: one_case(inside), lambda: one_case(isolated)),
            "execution again": (again(inside), again(isolated)),
            "smallest call": (lambda: question(inside), lambda: question(isolated)),
        }
        print(f"driver {spec}, {cases} cases, load {os.getloadavg()[0]:.1f}; medians in us\n")
        print(f"{'':<24}{'in process':>10} {'isolated':>10} {'more':>10}   isolated, 10 to 90 %")
        for name, (first, second) in measures.items():
            here: list[float] = []
            apart: list[float] = []
            for _ in range(cases // BLOCK):
                here += [first() for _ in range(BLOCK)]
                apart += [second() for _ in range(BLOCK)]
            show(name, here, apart)
        restarts = [seconds_of(driver.restart) for _ in range(3)]
        time.sleep(1)  # for the spare to get ready
        print(f"\nready after start          {ready * 1e3:8.1f} ms")
        print(f"restart, spare not ready   {min(restarts) * 1e3:8.1f} ms")
        print(f"death to next answer       {replacement(driver) * 1e3:8.1f} ms, spare ready")


if __name__ == "__main__":
    main(sys.argv[1:])
