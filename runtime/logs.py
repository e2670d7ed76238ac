"""Log lines for people, on standard error."""

import logging


def set_up_logging(level: str) -> None:
    """Log this process's records from `level` ("debug" to "error") on."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", datefmt="%H:%M:%S", force=True
    )
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("deeproot").setLevel(level.upper())
