"""Logs as JSON lines on stderr, with the sandbox that a line is about; no objects, so no secrets."""

import json
import logging
import sys
import time
from typing import Literal

#: Attributes that every record has; what else a record carries was given as ``extra``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Of what kopf adds to its records, this is told; the rest are whole objects.
_TOLD = frozenset({"namespace", "sandbox", "reason", "identity"})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and who it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key in _TOLD and key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str, form: Literal["json", "text"]) -> None:
    """Send all logs of the process to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if level != "debug":
        # kopf tells of every handler that it calls, and aiohttp of every probe.
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
