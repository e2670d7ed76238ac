"""What the server's process loads."""

import subprocess
import sys


def test_the_process_that_holds_text_loads_no_tensors() -> None:
    """It would take two seconds longer to start and 200 MB more to run."""
    code = "import sys, deeproot.runtime.server.process, deeproot.runtime.server.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
