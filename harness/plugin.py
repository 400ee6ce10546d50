"""The pytest side: options, one session per driver, items that are batches of cases, and the summary."""

from __future__ import annotations

import datetime
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.batch import Batch
from harness.case import TestCase
from harness.case_file import load
from harness.driver import Driver, open_driver
from harness.environment import SUITE_VERSION, write_environment
from harness.isolation import DEADLINE
from harness.option_values import level_of, matching, memory_of
from harness.record import Record, RecordFile, read_run
from harness.session import Options, Session, failure_text
from harness.through import FrameworkDriver, combined
from harness.verdict import Verdict
from harness.waivers import Waivers, load_waivers
from nnhal import loading
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec

PROFILES = ("ci", "quick", "full", "nightly")
DEFAULT_PROFILE = "quick"
PAGED = ("full", "nightly")  # profiles that put memory between inaccessible pages
SHOWN = 8  # failing cases that an item's failure shows in full
# What a resumed run takes from its plan.
ADOPTED = {"profile": DEFAULT_PROFILE, "seed": 0, "level": None, "case": [], "mix": [], "through": None}
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
FIRST = "gw0"  # of pytest-xdist's workers
QUIET = {Verdict.NOT_SUPPORTED.value, Verdict.NOT_APPLICABLE.value}


@dataclass
class State:
    """What the plugin keeps while pytest runs.

    Attributes:
        given: drivers as `--driver` names them.
        specs: what each run is of: one of them, or all in a framework.
        patterns: ids and globs of `--case`.
        saved: cases that `--case` names by file.
        planned: batches of the run that goes on; None for a new run.
        part: when the run was begun or gone on with, the same for all workers.
        current: the driver whose items are under way.
    """

    config: pytest.Config
    given: list[DriverSpec] = field(default_factory=list)
    specs: list[DriverSpec] = field(default_factory=list)
    patterns: tuple[str, ...] = ()
    saved: tuple[Batch, ...] = ()
    planned: frozenset[str] | None = None
    sessions: dict[str, Session] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    started: float = 0.0
    part: str = ""
    current: str = ""
    complaints: list[str] = field(default_factory=list)

    def option(self, name: str) -> Any:
        """The value of one of our options."""
        return self.config.getoption(name)


KEY = pytest.StashKey[State]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the suite; pytest's own --strict and pytest-timeout's --timeout are taken."""
    group = parser.getgroup("nncts", "conformance of neural-network drivers")
    add = group.addoption
    add("--driver", action="append", default=[], metavar="NAME[,KEY=VALUE...]", help="driver to test; may be repeated")
    add("--driver-match", metavar="REGEX", help="test every driver found whose name matches")
    add("--through", metavar="framework", help="run the drivers through a framework, all together, with a CPU behind")
    add("--level", type=int, metavar="1..8", help="test at this feature level at most")
    add("--profile", choices=PROFILES, default=DEFAULT_PROFILE, help="how many cases (default: quick)")
    add("--mix", action="append", default=[], metavar="NAME", help="only these kinds of random graphs; may be repeated")
    add("--seed", type=int, default=0, metavar="N", help="seed of drawn cases (default: 0)")
    add("--case", action="append", default=[], metavar="ID|GLOB|FILE", help="only these cases; may be repeated")
    add("--waivers", metavar="FILE", help="known failures: a TOML file, see docs/waivers.md")
    add("--runs", default="runs", metavar="DIR", help="where runs are written (default: runs)")
    add("--resume", metavar="DIR", help="go on with a run: cases that have a record are not run again")
    add("--driver-log", metavar="FILE|COMMAND", help="where the driver's own log comes from, shown at failures")
    add("--fail-poor", action="store_true", help="poor arithmetic fails the run, too")
    add("--in-process", action="store_true", help="load the driver into this process, for debuggers")
    add("--memory", metavar="SIZE", help="limit of the driver's address space, such as 4G")
    add("--deadline", type=float, default=DEADLINE, metavar="SECONDS", help="longest wait for an answer (default: 10)")


def pytest_configure(config: pytest.Config) -> None:
    """Reads the options that can be wrong before anything is collected."""
    state = State(config)
    config.stash[KEY] = state
    try:
        if config.getoption("resume"):
            state.planned = _adopt(config, Path(config.getoption("resume")))
        state.given = _specs(config)
        state.specs = combined(state.given, config.getoption("through"))
        _read_cases(state)
        memory_of(config.getoption("memory"))
        level_of(config.getoption("level"))
        _waivers(config)
        if not 0 < config.getoption("deadline") < math.inf:
            raise UsageError(f"--deadline={config.getoption('deadline'):g} is no time; give seconds above 0")
        if _is_controller(config):  # a worker of pytest-xdist that finds an error can only crash
            _try_drivers(state)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _adopt(config: pytest.Config, folder: Path) -> frozenset[str]:
    """Makes the options those of the run that goes on; gives the batches of its plan."""
    plan, option = read_run(folder).plan, config.option
    if not plan:
        raise UsageError(f"{folder} has no plan, so that nobody knows what is left; start the run again")
    drivers = plan.get("drivers", [plan.get("driver")])
    damaged = [name for name, default in ADOPTED.items() if not _is_like(plan.get(name, default), name)]
    damaged += [] if _is_like(drivers, "driver") and drivers else ["driver"]
    if damaged:
        raise UsageError(f"{folder} has a plan whose {damaged[0]} makes no sense; start the run again")
    if option.driver_match or option.driver not in ([], drivers):
        raise UsageError(f"{folder} is a run of driver {plan.get('driver')}; --resume goes on with that one alone")
    option.driver = drivers
    for name, default in ADOPTED.items():
        given, wanted = getattr(option, name), plan.get(name, default)
        if given not in (default, wanted):
            raise UsageError(f"{folder} was started with --{name}={wanted}; --resume goes on with that")
        setattr(option, name, wanted)
    _waivers(config).check_resumed(plan, folder)
    return frozenset(plan.get("batches", {}))


def _is_like(value: object, name: str) -> bool:
    """Whether a value of a plan is of the kind that an option of this name has."""
    if name in ("profile", "through"):
        return value in (PROFILES if name == "profile" else (None, "framework"))
    if name in ("seed", "level"):
        return type(value) is int or (name == "level" and value is None)
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _specs(config: pytest.Config) -> list[DriverSpec]:
    specs = [DriverSpec.parse(text) for text in dict.fromkeys(config.getoption("driver"))]
    pattern = config.getoption("driver_match")
    if pattern:
        specs += matching(pattern, specs)
    return specs or [DriverSpec.parse(loading.REFERENCE)]


def _read_cases(state: State) -> None:
    """Tells ids and globs from files, and reads the files."""
    patterns, saved = [], []
    for text in state.option("case"):
        path = Path(text)
        if path.is_file():
            case = load(path)
            saved.append(_saved(case, text))
        elif "*" not in text and (path.suffix == ".case" or "/" in text):
            raise UsageError(f"case file {text} does not exist; give a case id, a glob, or a saved case's file")
        else:
            patterns.append(text)
    state.patterns, state.saved = tuple(patterns), tuple(saved)


def _waivers(config: pytest.Config) -> Waivers:
    path = config.getoption("waivers")
    return load_waivers(Path(path) if path else None)


def _try_drivers(state: State) -> None:
    """Starts each driver once.

    Raises:
        UsageError: one cannot be loaded.
    """
    for spec in state.specs:
        driver = _start_driver(state, spec, Path(os.devnull))
        _ = driver.device
        driver.close()


def parametrize(metafunc: pytest.Metafunc, batches: Sequence[Batch]) -> None:
    """Makes one item for each driver and batch; called by a suite's `pytest_generate_tests`."""
    state = metafunc.config.stash[KEY]
    if state.saved and not state.patterns:
        batches = []
    chosen = [batch.select(state.patterns) for batch in batches]
    _parametrize(metafunc, state, [batch for batch in chosen if batch.numbers])


def parametrize_saved(metafunc: pytest.Metafunc) -> None:
    """Makes one item for each driver and each case file that `--case` names."""
    state = metafunc.config.stash[KEY]
    _parametrize(metafunc, state, state.saved)


def _saved(case: TestCase, file: str) -> Batch:
    return Batch(case.origin, (case.origin.number,), lambda number: case, file)


def _parametrize(metafunc: pytest.Metafunc, state: State, batches: Sequence[Batch]) -> None:
    many = len(state.specs) > 1
    rows = [
        pytest.param((spec.text, batch), id=f"{spec.text}:{batch.id}" if many else batch.id)
        for spec in state.specs
        for batch in batches
        if state.planned is None or batch.id in state.planned
    ]
    metafunc.parametrize("batch_of_driver", rows, indirect=True)


@pytest.fixture
def batch_of_driver(request: pytest.FixtureRequest) -> tuple[Session, Batch]:
    """A driver's session and the batch to check."""
    text, batch = request.param
    state = request.config.stash[KEY]
    if state.current not in ("", text):  # one driver's items after another's: the last one's processes can go
        state.sessions[state.current].driver.rest()
    state.current = text
    return state.sessions[text], batch


def check(batch_of_driver: tuple[Session, Batch]) -> None:
    """Checks a batch: the body of every test of cases."""
    __tracebackhide__ = True
    session, batch = batch_of_driver
    before = dict(session.counts)
    failing = session.check_batch(batch)
    if failing:
        pytest.fail(_failures(failing, session, len(batch.numbers)), pytrace=False)
    ran = {k for k, n in session.counts.items() if n > before.get(k, 0)}
    if ran and ran <= QUIET:
        pytest.skip(f"all {len(batch.numbers)} cases {' or '.join(sorted(ran))}; reasons are in the records")


def _failures(failing: Sequence[Record], session: Session, count: int) -> str:
    texts = [failure_text(record, session.options.driver, session.folder) for record in failing[:SHOWN]]
    if len(failing) > SHOWN:
        texts.append(f"and {len(failing) - SHOWN} more; all are in the records and on the page")
    return "\n".join([f"{len(failing)} of {count} cases failed", *texts])


def _is_batch(item: pytest.Item) -> bool:
    return "batch_of_driver" in getattr(item, "fixturenames", ())


def _param(item: pytest.Item) -> tuple[str, Batch] | None:
    callspec = getattr(item, "callspec", None)
    value = callspec.params.get("batch_of_driver") if callspec is not None else None
    return value if isinstance(value, tuple) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drops the items of suites that have no case selected, and puts each driver's together."""
    state = config.stash[KEY]
    mine = [item for item in items if _is_batch(item)]
    empty = {id(item) for item in mine if _param(item) is None}
    items[:] = [item for item in items if id(item) not in empty]
    order = [spec.text for spec in state.specs]
    items.sort(key=lambda item: order.index(param[0]) if (param := _param(item)) else -1)
    if mine and state.patterns and not any(_param(item) for item in items) and not hasattr(config, "workerinput"):
        raise pytest.UsageError(_nothing(state))


def _nothing(state: State) -> str:
    return f"no case matches {' or '.join(state.patterns)}; see the ids in a run's records.jsonl"


@pytest.hookimpl(tryfirst=True)  # before a worker says that it is ready, and others begin to write
def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts each driver and writes the plan, once it is known what will run."""
    config = session.config
    state = config.stash[KEY]
    if config.getoption("collectonly") or _is_controller(config):
        return
    planned: dict[str, dict[str, int]] = {}
    for item in session.items:
        param = _param(item)
        if param is not None:
            batches = planned.setdefault(param[0], {})
            # Saved cases may be of one batch, a file each.
            batches[param[1].id] = batches.get(param[1].id, 0) + len(param[1].numbers)
    state.started = time.monotonic()
    state.part = getattr(config, "workerinput", {}).get("nncts_time", "") or f"{_stamp()}-{os.getpid()}"
    for spec in state.specs:
        if spec.text in planned:
            try:
                state.sessions[spec.text] = _open(state, spec, planned[spec.text])
            except UsageError as error:
                raise pytest.UsageError(str(error)) from None


def _is_controller(config: pytest.Config) -> bool:
    """Whether this process only hands items to pytest-xdist's workers."""
    return bool(getattr(config.option, "dist", "no") != "no") and not hasattr(config, "workerinput")


def _start_driver(state: State, spec: DriverSpec, log_path: Path) -> Driver:
    start = partial(FrameworkDriver, state.given) if state.option("through") else partial(open_driver, spec)
    return start(
        log_path=log_path,
        in_process=state.option("in_process"),
        deadline=state.option("deadline"),
        memory=memory_of(state.option("memory")),
    )


def _open(state: State, spec: DriverSpec, planned: dict[str, int]) -> Session:
    config = state.config
    resumed = bool(state.option("resume"))
    folder = _folder(state, spec)
    earlier = read_run(folder).records if resumed else {}
    try:
        driver = _start_driver(state, spec, folder / "driver.log")
        _ = driver.device  # it can be loaded, or nothing is run at all
    except UsageError:
        _drop(folder)
        raise
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    records = RecordFile(folder / (f"records-{worker}.jsonl" if worker else "records.jsonl"))
    options = Options(
        spec.text,
        level_of(state.option("level")),
        _arguments(config),
        state.option("fail_poor"),
        state.option("driver_log") or "",
        state.option("profile") in PAGED,
        _selection(state, spec),
    )
    session = Session(driver, folder, records, _waivers(config), options, frozenset(earlier))
    for record in earlier.values() if worker in ("", FIRST) else ():  # workers' numbers are added up
        session.waivers.cover(record.id, record.verdict)
    if resumed:
        records.resume()
    else:
        records.plan(planned, {**_header(state, spec), **session.header()})
        write_environment(folder, {"driver_python": spec.python or sys.executable})
    if spec is not state.specs[0]:
        driver.rest()  # until its turn comes
    state.folders.append(folder)
    return session


def _selection(state: State, spec: DriverSpec) -> tuple[str, ...]:
    """The options that choose a run's driver."""
    if not state.option("through"):
        return (f"--driver={spec.text}",)
    return (*(f"--driver={given.text}" for given in state.given), f"--through={state.option('through')}")


def _header(state: State, spec: DriverSpec) -> dict[str, Any]:
    """What a plan's line says of the run."""
    return {
        "driver": spec.text,
        "driver_name": spec.name,
        **({"drivers": [given.text for given in state.given]} if state.option("through") else {}),
        **{name: state.option(name) for name in ADOPTED},
        "options": list(state.config.invocation_params.args),
        "in_process": bool(state.option("in_process")),
        "fail_poor": bool(state.option("fail_poor")),
        "filtered": _is_filtered(state),
        "time": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
        "suite_version": SUITE_VERSION,
    }


def _drop(folder: Path) -> None:
    """Removes the folder of a run that did not begin; a driver's log is kept."""
    log = folder / "driver.log"
    if log.is_file() and not log.stat().st_size:
        log.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _arguments(config: pytest.Config) -> tuple[str, ...]:
    """Options besides driver and case that a repetition needs."""
    wanted = []
    if config.getoption("profile") != DEFAULT_PROFILE:
        wanted.append(f"--profile={config.getoption('profile')}")
    if config.getoption("seed"):
        wanted.append(f"--seed={config.getoption('seed')}")
    if config.getoption("level") is not None:
        wanted.append(f"--level={config.getoption('level')}")
    if config.getoption("memory") is not None:
        wanted.append(f"--memory={config.getoption('memory')}")
    if config.getoption("deadline") != DEADLINE:
        wanted.append(f"--deadline={config.getoption('deadline'):g}")
    return tuple(wanted)


def _is_filtered(state: State) -> bool:
    told = getattr(state.config, "workerinput", {}).get("nncts_filtered")
    if told is not None:
        return bool(told)
    option = state.config.option
    by_path = state.config.args_source == pytest.Config.ArgsSource.ARGS
    return bool(state.patterns or state.saved or option.mix or option.keyword or option.markexpr or by_path)


def _folder(state: State, spec: DriverSpec) -> Path:
    """The folder of a driver's run: a new one, that of the run that goes on, or the one that all workers share."""
    if state.option("resume"):
        return Path(state.option("resume"))
    shared = getattr(state.config, "workerinput", {}).get("nncts_time")
    stamp = shared or _stamp()
    folder = _named(state, spec, stamp)
    number = 1
    while folder.exists() and shared is None:
        number += 1
        folder = _named(state, spec, stamp, f"-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _stamp() -> str:
    return datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")


def _named(state: State, spec: DriverSpec, stamp: str, end: str = "") -> Path:
    name = re.sub(r"[^A-Za-z0-9.=-]+", "-", spec.text)[-80:].strip("-")
    return Path(state.option("runs")) / f"{stamp}-{name}{end}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives pytest-xdist's workers one name for the run's folder."""
    state: State = node.config.stash[KEY]
    if not state.started:
        state.started = time.time()
    stamp = datetime.datetime.fromtimestamp(state.started, tz=datetime.timezone.utc).strftime("%Y%m%dT%H%M%S")
    node.workerinput["nncts_time"] = f"{stamp}-{os.getpid()}"
    node.workerinput["nncts_filtered"] = _is_filtered(state)
    for spec in state.specs:
        resumed = state.option("resume")
        folder = Path(resumed) if resumed else _named(state, spec, node.workerinput["nncts_time"])
        if folder not in state.folders:
            state.folders.append(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Writes the end markers, and looks whether waivers are stale."""
    config = session.config
    state = config.stash[KEY]
    ended = exitstatus in ENDED and not session.shouldstop and not session.shouldfail
    for run in state.sessions.values():
        if ended:
            run.end(time.monotonic() - state.started, part=state.part, resumed=bool(state.option("resume")))
        run.close()
    if hasattr(config, "workerinput"):
        return  # the controller sees all records
    state.folders = [folder for folder in state.folders if list(folder.glob("records*.jsonl"))]
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and state.patterns and _is_controller(config):
        state.complaints = [_nothing(state)]
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    elif ended and not _holds(state) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    config.nncts_run_folders = list(state.folders)  # type: ignore[attr-defined]


def _holds(state: State) -> bool:
    """Whether nothing failed in the runs, earlier parts of resumed ones included, and the waivers are all in use."""
    waivers = _waivers(state.config)
    failed = False
    complete = not _is_filtered(state)
    for folder in state.folders:
        found = read_run(folder)
        complete = complete and found.complete and not found.plan.get("filtered")
        for record in found.records.values():
            poor = record.verdict == Verdict.POOR.value
            reason = waivers.cover(record.id, record.verdict)
            failed = failed or ((record.bad or (poor and state.option("fail_poor"))) and not reason)
    state.complaints = waivers.complaints(filtered=not complete)
    return not failed and not state.complaints


def pytest_report_header(config: pytest.Config) -> Iterator[str]:
    """Says what is tested, and how to repeat it."""
    state = config.stash[KEY]
    names = ", ".join(shlex.quote(spec.text) for spec in state.specs)
    given = "" if state.option("driver") or state.option("driver_match") else " (no --driver given)"
    yield f"nncts: driver {names}{given}; profile {state.option('profile')}, seed {state.option('seed')}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Counts of each driver's run, and where its records are."""
    state = config.stash[KEY]
    for folder in state.folders:
        found = read_run(folder)
        terminalreporter.section(f"nncts: {found.plan.get('driver')}")
        counts = {verdict: number for verdict, number in found.counts().items() if number}
        words = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
        terminalreporter.write_line(f"{found.selected} cases: {words}")
        terminalreporter.write_line(f"records: {folder}")
    for complaint in state.complaints:
        terminalreporter.write_line(complaint, red=True)
