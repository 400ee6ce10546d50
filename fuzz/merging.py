"""Prunes a corpus: of inputs that reach the same, the smallest is kept."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from fuzz.covering import environment_for
from fuzz.slices import arguments_of, order_of
from fuzz.worker import ORDER
from harness.process import TAG, environment
from nnhal.loading import ROOT, DriverSpec

if TYPE_CHECKING:
    from fuzz.campaign import Ground
    from fuzz.targets import Target

MERGE_SECONDS = 120
# The fuzzer runs itself again through the shell, so that it must be a program with a path of its own.
PROGRAM = """\
    #!{python}
    import sys

    sys.path.insert(0, {root!r})
    from fuzz.worker import main

    sys.exit(main(sys.argv))
"""


def pruned(ground: Ground, target: Target, work: Path) -> bool:
    """Prunes a target's corpus; False where that came to nothing, and all is kept.

    Args:
        ground: of the run.
        target: whose corpus it is.
        work: folder for files that are not kept.
    """
    corpus = ground.state.corpus(target.name)
    fresh, folder = work / f"merged-{target.name}", work / f"merging-{target.name}"
    for place in (fresh, folder):
        place.mkdir()
    program = folder / "fuzz"
    program.write_text(textwrap.dedent(PROGRAM).format(python=sys.executable, root=str(ROOT)), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    words = folder / "words"
    words.touch()
    order = order_of(
        target,
        ground.way,
        ground.known,
        str(folder),
        (str(fresh), str(corpus.resolve())),
        arguments_of(MERGE_SECONDS, 1, target.longest, words, "-merge=1"),
        deadline=ground.plan.deadline,
    )
    order.save(folder / "order")
    spec = DriverSpec.parse(order.driver) if order.driver else DriverSpec("", "")
    env = {**environment(spec, f"{os.getpid()}-merge"), **environment_for(spec), ORDER: str(folder / "order")}
    env.pop(TAG)
    line = [str(program), *order.arguments, *order.corpus]
    try:
        done = subprocess.run(line, env=env, cwd=folder, capture_output=True, timeout=2 * MERGE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode or not any(fresh.iterdir()):
        return False
    kept = {path.name for path in fresh.iterdir()}
    for path in list(corpus.iterdir()):
        if path.name not in kept:
            path.unlink()
    for path in fresh.iterdir():
        if not (corpus / path.name).exists():
            shutil.copy(path, corpus / path.name)
    ground.state.merged[target.name] = ground.state.size(target.name)
    return True
