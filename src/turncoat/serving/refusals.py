"""Why there is no answer: every kind of failure as a status, and as what is sent."""

from __future__ import annotations

import logging

from turncoat.errors import StateError, StoreError, TurncoatError
from turncoat.serving.attempt import LateTransactionError
from turncoat.serving.batcher import OverloadedError
from turncoat.serving.decoding import FieldError, InvalidJsonError
from turncoat.serving.labels import UnknownTransactionError
from turncoat.serving.responses import ErrorDetail

_log = logging.getLogger("turncoat")


class RequestError(TurncoatError):
    """A request that is refused for what it is, not for what it says."""

    def __init__(
        self, status: int, kind: str, message: str, retry_after: float | None = None
    ) -> None:
        """With the status to answer."""
        super().__init__(message)
        self.status, self.kind, self.retry_after = status, kind, retry_after


def problem_of(problem: Exception) -> tuple[int, ErrorDetail, float | None]:
    """Status, what is sent, and after how many seconds it makes sense to try again."""
    if isinstance(problem, RequestError):
        return problem.status, ErrorDetail(problem.kind, str(problem)), problem.retry_after
    if isinstance(problem, InvalidJsonError):
        return 400, ErrorDetail("malformed", str(problem)), None
    if isinstance(problem, LateTransactionError):
        return 409, ErrorDetail("late", str(problem)), None
    if isinstance(problem, FieldError):
        return 422, ErrorDetail("invalid", str(problem), problem.field), None
    if isinstance(problem, UnknownTransactionError):
        return 404, ErrorDetail("not_found", str(problem)), None
    if isinstance(
        problem, StoreError | StateError | OverloadedError
    ):  # what is stored is never the sender's fault
        return (
            503,
            ErrorDetail(
                "overloaded" if isinstance(problem, OverloadedError) else "store", str(problem)
            ),
            1.0,
        )
    if isinstance(problem, TurncoatError):
        return 422, ErrorDetail("invalid", str(problem)), None
    return 500, ErrorDetail("internal", "an internal error, which is in the server's log"), None


def tell_operator(problem: Exception) -> None:
    """What is no fault of the sender's is in the log. What was sent is not."""
    if isinstance(problem, StoreError | StateError):
        _log.error("%s", problem)
    elif not isinstance(problem, TurncoatError):
        _log.error("a request failed", exc_info=problem)
