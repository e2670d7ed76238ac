"""`python -m deeproot.kernels.cpu`: compile now what the first start would, and say where it is."""

import logging
import sys

from deeproot.kernels.cpu.build import BuildError, abilities_here, built_library


def main() -> int:
    """The exit status: 1 if it cannot be compiled here."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(built_library(abilities_here()))
    except BuildError as error:
        print(f"not compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
