"""Where what is compiled is kept."""

import os
from pathlib import Path


def home_folder() -> Path:
    """`$DEEPROOT_HOME`, or the default below the user's cache."""
    home = os.environ.get("DEEPROOT_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "deeproot"
