"""Log lines on standard error: for people, or one JSON object a line."""

import json
import logging
from datetime import UTC, datetime

from deeproot.runtime.options import LogFormat


def set_up_logging(level: str, log_format: LogFormat = "text") -> None:
    """Log this process's records from `level` ("debug" to "error") on."""
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("deeproot").setLevel(level.upper())


class _JsonFormatter(logging.Formatter):
    """Keys: time (ISO 8601, UTC), level, logger, message, exception where there is one, and whatever the record has as
    `fields`, such as a request's rid."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
