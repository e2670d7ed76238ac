"""`python -m deeproot.kernels.check`: see run.py."""

import sys

from deeproot.kernels.check.run import main

if __name__ == "__main__":
    sys.exit(main())
