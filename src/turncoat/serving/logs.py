"""Log lines of the service, as text or JSON, with the id of the request they belong to."""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from typing import Any

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


class LogFormatter(logging.Formatter):
    """Formats a record as a line of text or, if `as_json` is set, as a JSON object on one line."""

    def __init__(self, as_json: bool) -> None:
        """Choose the format."""
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return time (UTC), level, message, and request id and traceback if there are any."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{seconds}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line["message"] = record.getMessage()
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line) if self._as_json else " ".join(line.values())


def build_log_config(log_format: str) -> dict[str, Any]:
    """Return the `logging` configuration of the service and its HTTP server: all to stderr."""
    logger = {"handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": LogFormatter, "as_json": log_format == "json"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            "turncoat": {**logger, "level": "INFO"},
            "_granian": {**logger, "level": "WARNING"},
        },
    }
