"""How long the runs of each preset take, and how much they do."""

from __future__ import annotations

from dataclasses import dataclass

from nnhal.errors import UsageError


@dataclass(frozen=True)
class Preset:
    """A preset.

    Attributes:
        name: on the command line.
        text: what it is for, in a sentence.
        share: of the public length of a run.
        least: seconds of a run.
        most: seconds of a run.
        models: how many are looked for.
        private: seconds of runs that no public test has.
        soak: seconds of a soak.
        random: random graphs of a setting.
        whole: each model has a run of its own where the public test has.
        crowd: processes and threads of each, of the runs with many processes.
    """

    name: str
    text: str
    share: float
    least: float
    most: float
    models: int
    private: float
    soak: float
    random: int
    whole: bool = False
    crowd: tuple[int, int] = (6, 10)

    def seconds(self, public: float) -> float:
        """The length of a run whose public one is so long."""
        return round(min(max(public * self.share, self.least), self.most), 3)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("smoke", "every workload for a moment: what pytest runs", 0.0, 0.6, 0.6, 3, 0.6, 1.5, 8, crowd=(3, 4)),
        Preset("short", "every workload within ten minutes", 0.0, 8.0, 8.0, 5, 6.0, 40.0, 60),
        Preset("mlts", "the lengths and numbers of the public crash tests", 1.0, 0.0, 1e9, 16, 120.0, 600.0, 600, True),
        Preset("night", "a night: a third of the public lengths, long soaks", 0.34, 60.0, 1e9, 8, 300.0, 3600.0, 600),
    )
}


def preset_of(name: str) -> Preset:
    """The preset of a name.

    Raises:
        UsageError: there is none.
    """
    if name not in PRESETS:
        raise UsageError(f"--preset={name} is unknown; there are {', '.join(PRESETS)}")
    return PRESETS[name]
