"""What is known of generic faults that no case notices: `docs/mutation-score.md` says it where they come up."""

from __future__ import annotations

# What comes of these conforms to the specification: a suite that noticed them would be wrong. By operation and place,
# with the faults; empty for all.
CONFORMING: dict[tuple[str, str], tuple[frozenset[str], str]] = {
    ("LSTM", "scratch"): (frozenset(), "the contents of scratch are not defined"),
    ("RANDOM_MULTINOMIAL", "output"): (
        frozenset({"ro"}),
        "samples are independent: in another order, or one of them in another row, they are as good",
    ),
    ("RANDOM_MULTINOMIAL", "seeds"): (
        frozenset({"if"}),
        "no sequence is prescribed for a pair of seeds: those of another pair are as good",
    ),
}

# These change something, but no draw, of whatever seed, can show it.
UNREACHED: dict[tuple[str, str, str], str] = {}

# Why the other pairs that are not noticed are not.
REASONS: dict[tuple[str, str, str], str] = {
    ("QUANTIZED_16BIT_LSTM", "up", "cell_state_out"): "several steps are allowed, which say nothing of rounding",
    ("QUANTIZED_LSTM", "up", "cell_state_out"): "several steps are allowed, which say nothing of rounding",
}

# Why a fault can be equivalent to none, by its key.
EQUIVALENT = {
    "ro": "all elements are equal",
    "re": "all elements are equal, or samples whose order says nothing",
    "ex": "the result has rank 1, or one of the two dimensions is 1",
    "fr": "all elements are equal",
    "tr": "results are whole steps: values are moved, or computed in integers",
    "wr": "results cannot leave the range: they have the quantisation of an input, or a range that holds all",
    "xr": "the two results are the same by definition",
    "iz": "values are not read",
    "if": "values are not read, or there is one element",
    "xi": "the operation is commutative",
    "zi": "stored values are moved, compared or hashed; integers follow their own steps; a softmax does not see it; "
    "graphs say how their inputs are quantised",
    "zo": "stored values are moved; integers follow their own steps; graphs say how their outputs are quantised",
    "sc": "integers follow their own steps; graphs say how their inputs are quantised",
    "ch": "values are not read",
    "rq": "stored values are moved; integers follow their own steps; graphs say how their outputs are quantised",
    "fl": "the flag decides the shape alone, not the order of values",
    "ax": "the axis decides the shape alone",
}
