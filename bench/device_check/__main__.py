"""`python -m deeproot.bench.device_check`"""

import sys

from deeproot.bench.device_check.main import main

sys.exit(main())
