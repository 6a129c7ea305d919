"""Every way in which an OpenAI-compatible server can fail, in one place: class, cause, advice.

Messages carry what the server said, cut and cleared of the key: servers do repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2
import openai
from pydantic import ValidationError

from activities.contracts import ErrorClass
from activities.provider import ProviderError
from activities.retry_after import retry_after

__all__ = ["Problem", "ReplyTooLarge", "Server", "bad_response", "classify", "explain", "problem_of"]

LONGEST_WAIT = 3600.0
"""Seconds; a server that wants a longer pause is asked again after this one."""

TOO_LONG = re.compile(
    r"(maximum|max|exceeds?( the)?( available)?) context|context (length|window|size)"
    r"|prompt is too long|input is too long|too many (input )?tokens|request too large"
    r"|reduce the length of the messages",
    re.IGNORECASE,
)
QUOTA = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
TOO_LONG_CODES = ("context_length_exceeded", "exceed_context_size_error", "string_above_max_length")
FILTER_CODES = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")


class ReplyTooLarge(ValueError):
    """More bytes came than a reply can have."""


@dataclass(frozen=True, slots=True)
class Server:
    """Whom was asked for which model, and which secrets must not be repeated."""

    url: str
    model: str
    secrets: tuple[str, ...] = field(default=(), repr=False)
    configured: bool = True
    """The worker's own, which is sent its key; not one that a task names."""

    def cleared(self, text: str, limit: int = 300) -> str:
        """A server's words on one line, cut, without the key or any larger part of it."""
        for secret in self.secrets:
            text = text.replace(secret, "[key]")
        words = [("[key]" if self._telling(word) else word) for word in text.split()]
        line = " ".join(words)
        return line if len(line) <= limit else line[: limit - 1] + "…"

    def _telling(self, word: str) -> bool:
        if "***" in word or re.search(r"\bsk-\w{3}", word):
            return True  # how servers abbreviate keys
        return any(s[i : i + 8] in word for s in self.secrets for i in range(max(0, len(s) - 7)))


@dataclass(frozen=True, slots=True)
class Problem:
    """What a server reported; `status` is None for an error inside a reply with status 200."""

    status: int | None = None
    code: str = ""
    kind: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, str]:
        """Code and type: servers mix them up."""
        return self.code, self.kind


def problem_of(body: object, status: int | None = None, headers: Mapping[str, str] | None = None) -> Problem:
    """Read an error object in any of the shapes that servers give it."""
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(inner, Mapping):
        said = inner.get("message") or inner.get("detail") or ""
        return Problem(
            status, str(inner.get("code") or ""), str(inner.get("type") or ""), str(said),
            headers or {},
        )  # fmt: skip
    return Problem(status, message=str(inner or ""), headers=headers or {})


def explain(error: Exception, server: Server) -> ProviderError:
    """Our error for whatever the client library raised."""
    if isinstance(error, openai.APIStatusError):
        return classify(problem_of(error.body, error.status_code, error.response.headers), server)
    if isinstance(error, (openai.APITimeoutError, httpx2.TimeoutException)):
        return _error("transient", "timeout", server, "no answer in time; is the server busy?")
    if isinstance(error, (openai.APIConnectionError, httpx2.HTTPError)):
        cause = error.__cause__ or error
        if isinstance(cause, ReplyTooLarge):
            return bad_response(str(cause), server)
        said = server.cleared(str(cause)) or type(cause).__name__
        advice = "check that the server runs and that the base URL is right"
        return _error("transient", "connection", server, f"cannot be reached: {said}; {advice}")
    if isinstance(error, openai.APIError):  # inside a stream: no status
        known = {"code": error.code, "type": error.type, "message": error.message}
        body = error.body if isinstance(error.body, Mapping) else {}
        return classify(problem_of({"error": {**known, **body}}), server)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        return bad_response(f"JSON of another shape ({place}: {first['msg']})", server)
    return bad_response(str(error) if isinstance(error, ReplyTooLarge) else _named(error), server)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def bad_response(what: str, server: Server) -> ProviderError:
    """The server said 200 but what came is no chat completion."""
    advice = "expected a chat completion; does the base URL end where the API begins (often /v1)?"
    return _error("transient", "bad_response", server, f"sent {server.cleared(what)}; {advice}")


def classify(problem: Problem, server: Server) -> ProviderError:
    """The error for what a server reported."""
    said = server.cleared(problem.message) or server.cleared(" ".join(problem.names))
    code = server.cleared(problem.code, limit=60)
    status = f"HTTP{problem.status}" if problem.status else code or "error"
    text = f"answered {status}" + (f": {said}" if said else "")
    known = _key_refused(problem, server) or _known(problem)
    if known is not None:
        error, cause, advice = known
        return _error(error, cause, server, f"{text}; {advice}")
    if _worth_a_retry(problem):
        wait = retry_after(problem.headers, LONGEST_WAIT)
        cause = status if problem.status else code or "error_in_reply"
        return _error("transient", cause, server, text, wait)
    advice = (
        "a redirect is not followed, so that the key stays where it was meant to go; correct the base URL"
        if problem.status and 300 <= problem.status < 400
        else "the request itself was refused; correct the model's settings"
    )
    return _error("fatal", status, server, f"{text}; {advice}")


def _key_refused(problem: Problem, server: Server) -> tuple[ErrorClass, str, str] | None:
    """Class, cause and advice where the server wants a key, or another one."""
    if any(name in QUOTA for name in problem.names):
        return None
    if problem.status == 401 or "invalid_api_key" in problem.names:
        cause, key = "HTTP401", "a key that this server accepts"
    elif problem.status == 403:
        cause, key = "HTTP403", "a key that may use this model"
    else:
        return None
    if server.configured:
        return "fatal", cause, f"set OPENAI_API_KEY to {key}"
    return (
        "fatal",
        cause,
        "no key was sent: it never goes to an address that an agent file names. To send it there, give this "
        "address by --base-url, or by OPENAI_BASE_URL where the worker runs, "
        f"and set OPENAI_API_KEY to {key}",
    )


def _known(problem: Problem) -> tuple[ErrorClass, str, str] | None:
    """Class, cause and advice of the failures that have a name."""
    status, names = problem.status, problem.names
    if any(name in QUOTA for name in names):
        return "fatal", "insufficient_quota", "add credit to the key's account or use another key"
    if "model_not_found" in names or (status == 404 and "model" in problem.message.lower()):
        return "fatal", "model_not_found", "name a model that the server has"
    if status == 404:
        return "fatal", "HTTP404", "check the base URL (OPENAI_BASE_URL); it often ends in /v1"
    if any(name in FILTER_CODES for name in names):
        return "recoverable", "content_filter", "the server's content filter refused the request"
    if _too_long(problem):
        return "recoverable", "context_too_long", "send less: fewer or shorter messages"
    return None


def _too_long(problem: Problem) -> bool:
    if problem.status == 413 or any(name in TOO_LONG_CODES for name in problem.names):
        return True
    if problem.status == 429:  # a rate limit, unless this one request is more than the limit
        return "request too large" in problem.message.lower()
    return bool(TOO_LONG.search(problem.message))


def _worth_a_retry(problem: Problem) -> bool:
    asked = problem.headers.get("x-should-retry", "").lower()
    if asked in ("true", "false"):
        return asked == "true"
    if problem.status is None:
        return "invalid_request_error" not in problem.names
    return problem.status in (408, 409, 425, 429) or problem.status >= 500


def _error(
    error: ErrorClass, cause: str, server: Server, text: str, wait: float | None = None
) -> ProviderError:
    return ProviderError(error, cause, f"model {server.model} at {server.url}: {text}", wait)
