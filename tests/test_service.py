"""The service alone, spoken to over a socket: methods, several clients, malformed requests, what it lets go of."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nnhal.channel import Channel, Closed
from nnhal.device import ExecutionConfig
from nnhal.model import Model, Request
from nnhal.parts import Json, Parts
from nnhal.service import SPARE_THREADS
from nnhal.wire import encode
from tests.add_model import EXPECTED, add_model, add_request, output

FULL = "tests.full_driver:DRIVER"
ROOT = Path(__file__).parents[1]


class Client:
    def __init__(self, name: str) -> None:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(f"\0{name}")
        self.channel = Channel(end)
        self.hello = self.channel.receive()[0]
        self.number = 0

    def send(self, method: str, *arguments: Json, parts: Parts | None = None) -> int:
        self.number += 1
        body: list[Json] = [self.number, method, list(arguments), []]
        self.channel.send(body, parts or Parts())
        return self.number

    def ask(self, method: str, *arguments: Json, parts: Parts | None = None) -> list[Json]:
        number = self.send(method, *arguments, parts=parts)
        answer = self.channel.receive()[0]
        assert isinstance(answer, list)
        assert answer[0] == number
        return answer[1:]

    def prepare(self, model: Model) -> Json:
        parts = Parts()
        config = [1, 1, None, [], [], {"b": parts.add_blob(bytes(32))}, [], []]
        kind, handle = self.ask("prepare_model", [1, encode(Model, model, parts)], config, parts=parts)
        assert kind == "ok"
        return handle

    def execute(self, handle: Json, request: Request) -> list[Json]:
        return self.ask(*self.execution(handle, request)[:-1], parts=self.parts)

    def execution(self, handle: Json, request: Request) -> list[Json]:
        self.parts = Parts()
        config = encode(ExecutionConfig, ExecutionConfig(), self.parts)
        written = encode(Request, request, self.parts)
        return ["execute_synchronously", handle, written, config, None, None]


@pytest.fixture
def service() -> Iterator[object]:
    running: list[tuple[subprocess.Popen[bytes], list[Client]]] = []

    def start(spec: str = FULL) -> str:
        name = f"nncts-test-{os.getpid()}-{os.urandom(4).hex()}"
        program = [sys.executable, "-m", "nnhal.service", "--listen", name, "--driver", spec]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        running.append((subprocess.Popen(program, env=env, stderr=subprocess.PIPE), []))
        for _ in range(500):
            probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                probe.connect(f"\0{name}")
                return name
            except ConnectionRefusedError:
                time.sleep(0.02)
            finally:
                probe.close()
        raise AssertionError("the service does not listen")

    yield start
    for process, _ in running:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_it_needs_neither_psutil_nor_the_suite() -> None:
    program = "import nnhal.service, sys; print([m for m in sys.modules if m in BAD])".replace(
        "BAD", "('psutil', 'harness', 'opset', 'pytest', 'hypothesis')"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_bad_driver_is_told_and_the_exit_status_is_2() -> None:
    program = [sys.executable, "-m", "nnhal.service", "--listen", "unused", "--driver", "nosuch"]
    run = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("driver 'nosuch' not found; installed: ")
    assert run.stderr.count("\n") == 1


def test_it_says_what_it_is(service) -> None:
    client = Client(service())
    assert isinstance(client.hello, dict)
    assert client.hello["level"] == 7
    assert client.hello["adapter"] is None
    assert client.hello["numpy"] == np.__version__
    client.channel.close()


def test_a_model_is_prepared_run_and_released(service) -> None:
    client = Client(service(f"{FULL},odd=alive"))
    handle = client.prepare(add_model())
    request = add_request()
    kind, result = client.execute(handle, request)
    assert kind == "ok"
    assert result == [[[[1, 8, 8, 3]]]]
    np.testing.assert_array_equal(output(request), EXPECTED)
    assert client.ask("get_version_string") == ["ok", "model"]
    assert client.ask("release", handle) == ["ok", None]
    assert client.ask("release", handle) == ["ok", None]
    assert client.ask("get_version_string") == ["ok", ""]
    assert client.execute(handle, request)[0] == "released"
    client.channel.close()


def test_a_client_that_goes_leaves_nothing(service) -> None:
    name = service(f"{FULL},odd=alive")
    staying, going = Client(name), Client(name)
    handle = going.prepare(add_model())
    going.ask("configure_execution_burst", handle)
    assert staying.ask("get_version_string") == ["ok", "model,burst"]
    assert staying.ask("release", handle)[0] == "ok"  # handles are each client's own
    assert staying.ask("get_version_string") == ["ok", "model,burst"]
    going.channel.close()
    for _ in range(250):
        if staying.ask("get_version_string") == ["ok", ""]:
            break
        time.sleep(0.02)
    else:
        raise AssertionError("the objects of a client that has gone are kept")
    staying.channel.close()


def test_requests_of_one_client_and_of_two_run_at_once(service) -> None:
    name = service(f"{FULL},odd=meet")
    client = Client(name)
    handle = client.prepare(add_model())
    requests = [add_request(), add_request()]
    for request in requests:  # each waits in the driver for the other
        body = client.execution(handle, request)[:-1]
        client.send(*body, parts=client.parts)  # type: ignore[arg-type]
    answers = [client.channel.receive()[0] for _ in requests]
    assert [answer[1] for answer in answers if isinstance(answer, list)] == ["ok", "ok"]
    for request in requests:
        np.testing.assert_array_equal(output(request), EXPECTED)
    client.channel.close()


@pytest.mark.parametrize(
    ("body", "due"),
    [
        ([1, "no_such_method", [], []], "misused"),
        ([1, "__init__", [], []], "misused"),
        ([1, "prepare_model", [[1]], []], "again"),
        ([1, "prepare_model", ["x"], []], "misused"),
        ([1, "get_supported_operations", [[5, [1, 2]]], []], "misused"),
        ([1, "execute_synchronously", [99, None, None, None], []], "misused"),
        ([1, "get_type", [], [99, "x"]], "ok"),
        ("nonsense", "misused"),
        ([1, 2], "misused"),
    ],
)
def test_a_malformed_request_is_the_clients_fault(service, body, due) -> None:
    client = Client(service())
    client.channel.send(body, Parts())
    answer = client.channel.receive()[0]
    assert isinstance(answer, list)
    assert answer[1] == due
    assert client.ask("get_type") == ["ok", 4]
    client.channel.close()


def test_garbage_ends_that_connection_alone(service) -> None:
    name = service()
    good = Client(name)
    bad = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bad.connect(f"\0{name}")
    bad.sendall(b"garbage, much more than the header of a message is long")
    channel = Channel(bad)
    channel.receive()
    with pytest.raises(Closed):
        channel.receive()
    assert good.ask("get_type") == ["ok", 4]
    good.channel.close()
    channel.close()


@pytest.mark.parametrize(
    ("odd", "name", "message"),
    [
        ("none", "TypeError", "NoneType stands where a list is due"),
        ("system_exit", "SystemExit", "4"),
    ],
)
def test_what_is_no_answer_is_an_unclean_error(service, odd, name, message) -> None:
    client = Client(service(f"{FULL},odd={odd}"))
    parts = Parts()
    model = [1, encode(Model, add_model(), parts)]
    kind, found, text, trace = client.ask("get_supported_operations", model, parts=parts)
    assert (kind, found, text) == ("unclean", name, message)
    assert "Traceback" in str(trace)
    assert client.ask("get_type") == ["ok", 4]
    client.channel.close()


def test_no_descriptor_and_no_thread_is_left_behind(service) -> None:
    name = service()
    client = Client(name)
    assert isinstance(client.hello, dict)
    pid = client.hello["pid"]
    handle = client.prepare(add_model())

    def count(what: str) -> int:
        return len(list(Path(f"/proc/{pid}/{what}").iterdir()))

    before = count("fd"), count("task")
    for _ in range(50):
        request = add_request(extra=20)
        assert client.execute(handle, request)[0] == "ok"
    assert count("fd") == before[0]  # nothing of a request is held when its answer is here
    assert count("task") <= before[1] + SPARE_THREADS
    client.channel.close()
