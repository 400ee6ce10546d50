"""`python -m reports`: pages, comparisons, exports, histories and statements of runs, from their records."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nnhal.errors import UsageError
from reports.programs import PAGE, PROGRAMS, WRONG


def _help() -> str:
    width = max(len(program.name) for program in PROGRAMS)
    lines = ["usage: python -m reports RUN [RUN ...]", "       python -m reports PROGRAM ...", ""]
    lines += [f"  {'RUN':<{width}}   {PAGE.short}"]
    lines += [f"  {program.name:<{width}}   {program.short}" for program in PROGRAMS]
    lines += ["", "Each explains itself with --help. A folder that is called like a program is given as ./NAME."]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["-h"], ["--help"]):
        sys.stdout.write(f"{_help()}\n")  # and what its first line takes goes on with
    named = {program.name: program for program in PROGRAMS}
    try:
        if words and words[0] in named:
            return named[words[0]].main(words[1:])
        return PAGE.main(words)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
    except BrokenPipeError:
        sys.stderr.close()  # whoever read standard output has gone; Python would complain of it at its end
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'a file'} cannot be written or read: {error.strerror or error}\n")
    return WRONG


if __name__ == "__main__":
    sys.exit(main())
