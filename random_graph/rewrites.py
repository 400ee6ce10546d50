"""Equal graphs: ways to write a model so that it means the same, by which a driver can be held against itself.

Each rewrite takes a valid model with values for its inputs and gives another one, valid at the same level. What the
outputs of the other have to do with those of the first say its links: mostly they are the same, in places parts of
them. No expected value enters: the specification is asked where a batch may be divided, what an operation on constants
gives, and whether a value that is led through others stays as it is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from nnhal.errors import UsageError
from nnhal.model import Model
from nnhal.types import Array, FeatureLevel
from nnhal.validate import violations
from random_graph import rewrites_batch, rewrites_constants, rewrites_identities, rewrites_order
from random_graph.rewrites_graph import Graph, Link, NoRewriteError, Rewrite

__all__ = ["REWRITES", "Graph", "Link", "NoRewriteError", "Rewrite", "level_of", "rewrite", "rewrite_at_random"]

TRIES = 12  # candidates that may turn out invalid at the level before a rewrite is given up

_order, _constants, _identities, _batch = rewrites_order, rewrites_constants, rewrites_identities, rewrites_batch
ALL = (
    Rewrite("reordered", "operations that are independent may come in any order", True, _order.reordered, True),
    Rewrite("renumbered", "how operands are numbered means nothing", True, _order.renumbered, True),
    Rewrite("ends_reordered", "inputs and outputs may be listed in any order", True, _order.ends_reordered, True),
    Rewrite("swapped", "which operand comes first does not matter", True, _order.swapped, True),
    Rewrite("duplicated", "what is done twice gives the same twice", True, _order.duplicated),
    Rewrite("constant_split", "a constant is its parts put together", True, _constants.split),
    Rewrite("constants_joined", "constants may be put together beforehand", True, _constants.joined),
    Rewrite("constants_folded", "constants may be computed with beforehand", False, _constants.folded),
    Rewrite("made_input", "an input does what a constant does", True, _constants.made_inputs, True),
    Rewrite("made_constant", "a constant does what an input does", True, _constants.made_constants, True),
    Rewrite("moved_through", "what is moved and moved back stays", True, _identities.moved_through),
    Rewrite("computed_through", "what is computed to be itself stays", False, _identities.computed_through),
    Rewrite("batch_divided", "rows of a batch give the same in two parts", False, _batch.divided),
    Rewrite("rows_alone", "rows of a batch alone give what they give in it", False, _batch.rows_alone),
)
REWRITES: dict[str, Rewrite] = {each.name: each for each in ALL}


def level_of(model: Model) -> FeatureLevel:
    """The lowest level at which a model is valid.

    Raises:
        ValueError: it is so at none.
    """
    for level in FeatureLevel:
        if not violations(model, level):
            return level
    raise ValueError(f"the model is not valid: {violations(model)[0]}")


def named(names: Sequence[str]) -> tuple[Rewrite, ...]:
    """The rewrites of these names.

    Raises:
        UsageError: there is none of a name.
    """
    for name in names:
        if name not in REWRITES:
            raise UsageError(f"rewrite {name!r} is unknown; there are {', '.join(REWRITES)}")
    return tuple(REWRITES[name] for name in names)


def rewrite(graph: Graph, chosen: Rewrite, chance: random.Random) -> Graph:
    """A graph written in another way, its links counted from the same beginning.

    Args:
        graph: valid at its level.
        chosen: how.
        chance: decides where.

    Raises:
        NoRewriteError: the graph has no place for it that is valid at its level.
    """
    start = Graph.of(graph.model, graph.inputs, graph.level)  # a rewrite knows nothing of what came before it
    for number, found in enumerate(chosen.candidates(start, chance)):
        if not violations(found.model, graph.level):
            links = tuple(link.behind(graph.links[link.position]) for link in found.links)
            return Graph(found.model, found.inputs, links, graph.level)
        if number == TRIES:
            break
    raise NoRewriteError(f"the graph has no place where it can be {chosen.name.replace('_', ' ')}")


def rewrite_at_random(
    model: Model, inputs: Sequence[Array | None], seed: object, level: FeatureLevel, count: int = 1
) -> tuple[Graph, tuple[Rewrite, ...]]:
    """A model written in another way, by as many different rewrites as are found up to a number.

    Args:
        model: valid at the level.
        inputs: stored values in the order of the model's list.
        seed: decides which rewrites, and where.
        level: at which all must be valid.
        count: rewrites that are done one after the other.

    Returns:
        The other graph, and how it was made.

    Raises:
        NoRewriteError: none has a place in it.
    """
    chance = random.Random(str(seed))
    graph, done = Graph.of(model, inputs, level), list[Rewrite]()
    for chosen in chance.sample(list(REWRITES.values()), len(REWRITES)):
        if len(done) == count:
            break
        try:
            graph = rewrite(graph, chosen, chance)
        except NoRewriteError:
            continue
        done.append(chosen)
    if not done:
        raise NoRewriteError("the graph has no place for any rewrite")
    return graph, tuple(done)
