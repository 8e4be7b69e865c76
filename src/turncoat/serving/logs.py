"""Log lines of the service, as text or JSON, with the id of the request they belong to."""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from typing import Any

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


class TextFormatter(logging.Formatter):
    """Formats a record as one line of text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the time, the request id if there is one, the message, and any traceback."""
        request_id = REQUEST_ID.get()
        prefix = f"[{request_id}] " if request_id else ""
        text = f"{self.formatTime(record)} turncoat: {prefix}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return `time` (UTC), `level`, `message`, and `request_id` and `traceback` if any."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def build_log_config(log_format: str) -> dict[str, Any]:
    """Return the `logging` configuration of the service and its HTTP server: all to stderr."""
    formatter = JsonFormatter if log_format == "json" else TextFormatter
    handlers = ["stderr"]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            "turncoat": {"handlers": handlers, "level": "INFO", "propagate": False},
            "_granian": {"handlers": handlers, "level": "WARNING", "propagate": False},
        },
    }
