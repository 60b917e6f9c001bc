"""What `make` prints when it can't go on."""

from __future__ import annotations

import sys
from collections.abc import Callable


class LocalError(Exception):
    """One or two plain sentences: what happened, where the log is, what to do."""


def exit_with_sentence(main: Callable[[], int]) -> None:
    """Runs a command; a LocalError becomes its sentence on stderr and exit status 1."""
    try:
        sys.exit(main())
    except LocalError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
