"""A page of what a corpus reaches: lines of a Python driver, functions of a native one, and answers of any."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment

from fuzz.covering import environment_for
from fuzz.known import Known
from fuzz.opening import asked, opened
from fuzz.plan import Plan, Way
from fuzz.reach import LINES, ORDER, RESULT, ReachOrder
from fuzz.slices import arguments_of, order_of
from fuzz.state import State
from fuzz.targets import TARGETS
from fuzz.worker import ORDER as WORKER_ORDER
from harness.environment import SUITE_VERSION
from harness.process import environment
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec

INDEX = "index.html"
SECONDS = 900.0
FUNCTION = re.compile(r"^(?P<kind>COVERED|UNCOVERED)_FUNC: hits: (?P<hits>\d+) edges: (?P<some>\d+)/(?P<all>\d+) "
                      r"(?P<name>.+?) (?P<place>\S+)$", re.MULTILINE)  # fmt: skip
TEMPLATE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What fuzzing reaches: {{ driver }}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light dark } body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em;
padding: 0 1em } table { border-collapse: collapse; margin: .5em 0 2em } th, td { padding: .15em .8em; text-align: left;
border-bottom: 1px solid #8884 } td.n { text-align: right; font-variant-numeric: tabular-nums } .none { color: #c33 }
meter { width: 8em }
</style></head><body>
<h1>What fuzzing reaches in {{ driver }}</h1>
<p>{{ inputs }} inputs of {{ targets|length }} targets, run once each on {{ when }}; suite {{ version }}.
{%- if lines %} Lines of its code: <a href="{{ lines }}">page by page</a>.{% endif %}
{%- if apart %} The driver has a process of its own: where it has been cannot be told, what it answered can.{% endif %}
</p>
<h2>Targets</h2>
<table><tr><th>target</th><th>what is tried</th><th>inputs</th><th>outcomes</th></tr>
{% for row in targets %}<tr><td>{{ row.name }}</td><td>{{ row.sentence }}</td><td class="n">{{ row.inputs }}</td>
<td>{{ row.outcomes }}</td></tr>
{% endfor %}</table>
{% if functions %}<h2>Functions: {{ reached }} of {{ functions|length }} reached</h2>
<table><tr><th>function</th><th>place</th><th>places in it that were reached</th><th></th></tr>
{% for f in functions %}<tr{% if not f.some %} class="none"{% endif %}><td>{{ f.name }}</td><td>{{ f.place }}</td>
<td class="n">{{ f.some }} of {{ f.all }}</td><td><meter max="{{ f.all }}" value="{{ f.some }}"></meter></td></tr>
{% endfor %}</table>{% endif %}
<h2>Operations, by the type of what they take first</h2>
<table><tr><th>operation</th><th>models</th><th>types</th></tr>
{% for row in operations %}<tr{% if not row.count %} class="none"{% endif %}><td>{{ row.name }}</td>
<td class="n">{{ row.count }}</td><td>{{ row.kinds }}</td></tr>
{% endfor %}</table>
<h2>Calls and answers</h2>
<table><tr><th>call</th><th>mode</th><th>answer</th><th>times</th></tr>
{% for row in answers %}<tr><td>{{ row.action }}</td><td>{{ row.mode }}</td><td>{{ row.status }}</td>
<td class="n">{{ row.count }}</td></tr>
{% endfor %}</table>
</body></html>
"""


@dataclass(frozen=True)
class Function:
    """A function of a native driver.

    Attributes:
        some: places in it that were reached.
        all: places in it.
    """

    name: str
    place: str
    some: int
    all: int


def write_coverage(plan: Plan, folder: Path) -> int:
    """Writes the page into a folder, and says where; returns the exit status.

    Raises:
        UsageError: there is no corpus, the driver cannot be loaded, or the folder cannot be written.
    """
    state = State.open(Path(plan.state))
    with opened(plan) as (way, driver):
        _, known = asked(plan, driver)
    corpora = {}
    for name in plan.targets:
        if TARGETS[name].read is None and not TARGETS[name].barred(known):
            places = [state.corpus(name)] + ([] if plan.bare else [state.seeds(TARGETS[name], known)])
            corpora[name] = [str(place.resolve()) for place in places]
    inputs = sum(1 for places in corpora.values() for place in places for _ in Path(place).iterdir())
    if not inputs:
        raise UsageError(f"--state={plan.state} holds no corpus; fuzz first, by {plan.command()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--coverage={folder} cannot be made: {error.strerror}; give another folder") from None
    order = ReachOrder(way.text, known.to_json(), way.in_process, way.covered, corpora, str(folder.resolve()))
    found = _reached(order)
    functions = _functions(plan, way, known, corpora) if way.guided and not way.covered else []
    (folder / INDEX).write_text(_page(plan, way, found, functions, inputs), encoding="utf-8")
    sys.stdout.write(f"{inputs} inputs were run; the page: {folder / INDEX}\n")
    return 0


def _environment(text: str, **more: str) -> dict[str, str]:
    spec = DriverSpec.parse(text)
    return {**environment(spec, f"{os.getpid()}-reach"), **environment_for(spec), **more}


def _reached(order: ReachOrder) -> dict[str, Any]:
    """What a process that runs the corpus counts."""
    with tempfile.TemporaryDirectory(prefix="nncts-reach-") as place:
        path = Path(place) / "order"
        order.save(path)
        env = _environment(order.driver, **{ORDER: str(path)})
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.reach"], env=env, capture_output=True, timeout=SECONDS, check=False
        )
    result = Path(order.folder) / RESULT
    if done.returncode or not result.is_file():
        last = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()][-1:]
        raise UsageError(f"the corpus cannot be run in one process: {' '.join(last) or done.returncode}; "
                         "see to the known findings first, or give --isolated")  # fmt: skip
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    return found


def _functions(plan: Plan, way: Way, known: Known, corpora: dict[str, list[str]]) -> list[Function]:
    """Functions of a native driver with how much of each was reached, over all targets."""
    best: dict[tuple[str, str], Function] = {}
    for name, places in corpora.items():
        with tempfile.TemporaryDirectory(prefix="nncts-reach-") as folder:
            words = Path(folder) / "words"
            words.touch()
            arguments = arguments_of(0, 1, TARGETS[name].longest, words, "-runs=0", "-print_coverage=1")
            order = order_of(TARGETS[name], way, known, folder, places, arguments, deadline=plan.deadline)
            order.save(Path(folder) / "order")
            env = _environment(way.text, **{WORKER_ORDER: str(Path(folder) / "order")})
            line = [sys.executable, "-m", "fuzz.worker"]
            text = ""
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(line, env=env, capture_output=True, timeout=SECONDS, check=False)
                text = (done.stdout + done.stderr).decode(errors="replace")
        for match in FUNCTION.finditer(text):
            key = (match["name"], match["place"])
            one = Function(match["name"], match["place"], int(match["some"]), int(match["all"]))
            if key not in best or one.some > best[key].some:
                best[key] = one
    return sorted(best.values(), key=lambda one: (one.place, one.name))


def _page(plan: Plan, way: Way, found: dict[str, Any], functions: list[Function], inputs: int) -> str:
    kinds: dict[str, dict[str, int]] = defaultdict(dict)
    for words, count in found["operations"].items():
        name, _, kind = words.rpartition(" ")
        kinds[name][kind] = count
    operations = [
        {
            "name": name,
            "count": sum(kinds[name].values()),
            "kinds": ", ".join(f"{kind} {count}" for kind, count in sorted(kinds[name].items(), key=lambda i: -i[1])),
        }
        for name in sorted({*kinds, *_names()})
    ]
    answers = []
    for words, count in sorted(found["answers"].items()):
        action, mode, status = words.split(" ", 2)
        answers.append({"action": action, "mode": mode, "status": status, "count": count})
    targets = [
        {
            "name": name,
            "sentence": TARGETS[name].sentence,
            "inputs": sum(verdicts.values()),
            "outcomes": ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())),
        }
        for name, verdicts in found["verdicts"].items()
    ]
    template = Environment(autoescape=True).from_string(TEMPLATE)
    return template.render(
        driver=plan.driver,
        inputs=inputs,
        targets=targets,
        when=datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        version=SUITE_VERSION,
        lines=f"{LINES}/index.html" if way.covered else "",
        apart=not way.guided,
        functions=functions,
        reached=sum(one.some > 0 for one in functions),
        operations=operations,
        answers=answers,
    )


def _names() -> list[str]:
    from opset import OPSET

    return [definition.name for definition in OPSET.values()]
