"""Runs of the benchmark as files, made by hand, and their pages taken apart."""

import json
import re
from html.parser import HTMLParser

import numpy as np

from harness.verdict import Judgement, Verdict
from harness.waivers import Waivers
from mlts.folder import BenchFolder
from mlts.page import write_page

SEEDED, GENUINE = "seeded, no trained weights", "genuine weights"
HOSTILE = '<script>alert("1")</script>&amp;\x1b[31m\u202e'
NO_WAIVERS = Waivers([], None)
SURE = {"p not worse": 1e-6, "p worse": 1.0}
GOOD = {
    "results": Judgement(Verdict.PASS, stage="results", numbers=SURE),
    "latency": Judgement(Verdict.PASS, stage="latency", numbers=SURE),
    "stability": Judgement(Verdict.PASS, stage="stability", numbers={"change over the run": 0.01, "p": 0.5}),
}
INLINE = re.compile(r"(?P<head><(?P<tag>style|script)\b[^>]*>)(?P<text>.*?)</", re.DOTALL)
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}


class Page(HTMLParser):
    """A page or part of one taken apart: texts, tables by caption, elements, links and ids; tags close in order."""

    def __init__(self, source):
        super().__init__()
        self.source = source if isinstance(source, str) else source.read_text(encoding="utf-8")
        self.open, self.tags, self.ids, self.links, self.inline = [], [], [], [], []
        self.tables, self.words, self.headings = {}, [], []
        self._caption, self._rows = "", []
        # Most of a page is one script, which the parser takes long to read.
        self.feed(INLINE.sub(self._take, self.source))
        self.close()
        assert not self.open

    def _take(self, found):
        self.inline.append((found["tag"], "json" if "json" in found["head"] else "", found["text"]))
        return found["head"] + "</"

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        assert not any(name.startswith("on") or name == "style" for name in found), found
        assert not found.get("src")
        if "id" in found:
            self.ids.append(found["id"])
        if "href" in found:
            self.links.append(found["href"])
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._caption, self._rows = "", []
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag in ("small", "summary", "br") and self._rows and self._rows[-1]:
            self._rows[-1][-1] += " "

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "table":
            self.tables[" ".join(self._caption.split())] = [[" ".join(c.split()) for c in row] for row in self._rows]

    def handle_data(self, data):
        self.words.append(data)
        if "caption" in self.open:
            self._caption += data
        elif "table" in self.open and self._rows and self._rows[-1]:
            self._rows[-1][-1] += data

    @property
    def text(self):
        return " ".join("".join(self.words).split())

    def table(self, start):
        return next(rows for caption, rows in self.tables.items() if caption.startswith(start))

    @property
    def charts(self):
        return [json.loads(text) for _, kind, text in self.inline if kind]


def interval(value, low=None, high=None, count=12.0):
    return [value, low, high, count]


def side(name, times, **more):
    given = {
        "model": "m",
        "driver": name,
        "tier": "default",
        "operations": 31,
        "on_driver": 31,
        "partition": "",
        "prepare": [0.25, 0.5, 0.75],
        "to_cache": [],
        "from_cache": [],
        "cache_bytes": 0,
        "first": 0.0875,
        "warm_up": 7,
        "latency": list(times),
        "pairs": [],
        "modes": {},
        "in_flight": {},
        "told": [],
        "memory": {},
        "processor": None,
        "energy": None,
        "notes": [],
    }
    return {**given, **more}


def row_of(
    model="mobilenet_v1_1.0_224_float",
    *,
    tier="default",
    slot="mobilenet_v1",
    reality=GENUINE,
    executions=700,
    seed=1,
    driver=None,
    **more,
):
    draw = np.random.default_rng(seed)
    mine = (0.010 * draw.lognormal(0, 0.05, executions)).tolist()
    base = (0.008 * draw.lognormal(0, 0.05, executions)).tolist()
    pairs = list(zip(mine[:40], base[:40], strict=True))
    errors = [{"rms": 2e-6 * n, "mean": 1e-8, "lowest": -3e-5 * n, "highest": 4e-5 * n} for n in (1, 2, 3)]
    given = {
        "model": model,
        "tier": tier,
        "tier_words": f"{tier} (1 thread)",
        "slot": slot,
        "size": "1.0_224",
        "type": "float",
        "reality": reality,
        "digest": "0123456789abcdef",
        "relaxed": True,
        "operators": 31,
        "licence": "Apache-2.0",
        "note": "",
        "expected": None,
        "data_set": "imagenet20",
        "verdicts": {},
        "driver": side("mine", mine, **{"pairs": pairs, **(driver or {})}),
        "baseline": side("theirs", base),
        "ratio": {"ratio": interval(1.25, 1.2375, 1.2625, 40.0), "verdict": "worse"},
        "error_ratio": {"ratio": interval(0.75, 0.5, 1.5), "verdict": "not worse"},
        "errors": errors,
        "baseline_errors": errors,
        "numbers": {},
        "scores": {
            "driver": {"top 1": interval(0.85, 0.56, 0.96, 20.0), "top 1 agrees": interval(0.95, 0.68, 1.0, 20.0)},
            "baseline": {"top 1": interval(0.9, 0.6, 0.98, 20.0)},
        },
        "seconds": 4.0,
    }
    return {**given, **more}


def write_run(
    folder, rows, judgements=None, *, planned=None, waivers=NO_WAIVERS, log="", driver="faulty", ended=True, **header
):
    bench = BenchFolder(folder, driver, waivers)
    keys = [(row["model"], row["tier"]) for row in rows]
    bench.begin(planned or keys, {"preset": "mlts", "baseline": "litert", "tiers": ["default:threads=1"], **header})
    for row, key in zip(rows, keys, strict=True):
        found = {**GOOD, **(judgements or {}).get(key[0], {})}
        bench.add(*key, found, repeat=f"python -m mlts --only={key[0]}", log=log, seconds=1.0)
        bench.measured(row)
    if ended:
        bench.end(1.0, interrupted=False)
    bench.close()
    return folder


def page_of(folder, *args, **more):
    return Page(write_page(write_run(folder, *args, **more)))


def all_judged(judgement):
    return dict.fromkeys(("results", "latency", "stability"), judgement)
