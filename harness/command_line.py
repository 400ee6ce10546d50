"""What the command lines of the suite's programs have in common."""

from __future__ import annotations

import argparse
from typing import NoReturn

from nnhal.errors import UsageError


class CommandParser(argparse.ArgumentParser):
    """A parser that raises what is wrong as one sentence, with the program that explains the options.

    Raises:
        UsageError: in place of an exit.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")
