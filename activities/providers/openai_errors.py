"""Every way in which an OpenAI-compatible server can fail, in one place: class, cause, advice.

Messages carry what the server said, cut and without the key: servers do repeat it.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import ValidationError

from activities.endpoints import OPENAI, Endpoint
from activities.provider import ProviderError
from activities.retry_after import retry_after
from activities.text import problems_text

__all__ = ["ReportedError", "Server", "reported_error", "with_plain_errors", "without_secrets"]

SECRET_CHARS = 16
LONGEST_WAIT_SECONDS = 3600.0
"""Seconds; a server that wants a longer pause is asked again after this one."""
TOO_LONG = re.compile(
    r"(maximum|max|exceeds?( the)?( available)?) context|context (length|window|size)"
    r"|prompt is too long|input is too long|too many (input )?tokens|request too large"
    r"|reduce the length of the messages",
    re.IGNORECASE,
)
RETRY_DELAY = re.compile(r"retryDelay\W+(\d{1,3}(?:\.\d+)?)s")
QUOTA = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
TOO_LONG_CODES = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
FILTER_CODES = {"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"}
PASSING_CODES = {"server_error", "rate_limit_exceeded", "vector_store_timeout"}
"""The documented codes of a failed response that are worth another try. A prompt that breaks the usage policy
(`invalid_prompt`) must not be repeated: accounts are warned for it."""
NO_KEY = (
    "no key was sent, because an agent file names this address. To send it, give the address by "
    "--base-url, or by OPENAI_BASE_URL where the worker runs, and set OPENAI_API_KEY; or leave the address "
    "out, if the model's name says its provider"
)
NO_PATH = {
    "chat": "check the base URL (OPENAI_BASE_URL); it often ends in /v1",
    "responses": "leave `api` out if this server has no Responses API; else check the base URL "
    "(OPENAI_BASE_URL), which often ends in /v1",
}

T = TypeVar("T")
ErrorClass = Literal["transient", "recoverable", "fatal"]


@dataclass(frozen=True, slots=True)
class ReportedError:
    """What a server reported; `status` is None for an error inside a reply with status 200."""

    status: int | None = None
    code: str = ""
    kind: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: float | None = None
    """Seconds that the body asks for, as Google's does."""

    @property
    def names(self) -> tuple[str, str]:
        """Code and type: servers mix them up."""
        return self.code, self.kind


def reported_error(
    body: object, status: int | None = None, headers: Mapping[str, str] | None = None
) -> ReportedError:
    """Read an error object in any of the shapes that servers give it."""
    body = body[0] if isinstance(body, list) and body else body  # Google's
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(inner, Mapping):
        return ReportedError(status, message=str(inner or ""), headers=headers or {})
    message = inner.get("message") or inner.get("detail") or ""
    code, kind = str(inner.get("code") or ""), str(inner.get("type") or "")
    details = str(inner.get("details") or "")
    if "API_KEY_INVALID" in details:  # Google's, with status 400
        code = "invalid_api_key"
    wait = RETRY_DELAY.search(details)
    return ReportedError(status, code, kind, str(message), headers or {}, float(wait[1]) if wait else None)


def without_secrets(url: str) -> str:
    """The URL without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@dataclass(frozen=True)
class Server:
    """Where a call goes, for which model and with which key. Its errors name the first two and repeat no
    secret."""

    url: str = field(repr=False)
    model: str
    key: str = field(default="", repr=False)
    configured: bool = True
    """The worker's own server, which is sent its key; not one that only a task names."""
    owner: Endpoint | None = None
    """The provider whose server it is; None for a server that is in no table."""
    api: Literal["chat", "responses"] = "chat"

    @property
    def shown(self) -> str:
        """The URL, for people."""
        return without_secrets(self.url)

    @property
    def secrets(self) -> list[str]:
        """What no error may repeat."""
        return [secret for secret in (urlsplit(self.url).password, self.key) if secret]

    @property
    def secret_forms(self) -> list[str]:
        """The secrets as they are, and as they are often written."""
        found = []
        for secret in self.secrets:
            data = secret.encode()
            basic = b64encode(data).decode().rstrip("=")
            found += [
                secret,
                quote(secret, safe=""),
                basic,
                urlsafe_b64encode(data).decode().rstrip("="),
                data.hex(),
            ]
        return list(dict.fromkeys(found))

    @cached_property
    def long_secrets(self) -> list[str]:
        """Those that no reply may repeat: a short one, such as `ollama`, is a word that a model may use."""
        return [secret for secret in self.secret_forms if len(secret) >= SECRET_CHARS]

    def without_keys(self, text: str) -> str:
        """The text of a reply without the key; history keeps it."""
        for secret in self.long_secrets:
            text = text.replace(secret, "[key]")
        return text

    def error(
        self, error: ErrorClass, cause: str, text: str, retry_after_seconds: float | None = None
    ) -> ProviderError:
        """An error that begins with the model and the server."""
        return ProviderError(error, cause, f"model {self.model} at {self.shown}: {text}", retry_after_seconds)

    def bad_response(self, what: str) -> ProviderError:
        """The status was 200, but what came is no reply."""
        advice = "expected a model's reply; does the base URL end where the API begins (often /v1)?"
        return self.error("transient", "bad_response", f"sent {self.redacted(what)}; {advice}")

    def web_page(self, start: str) -> ProviderError:
        """The status was 200, but a page for a browser came. To ask again does not help."""
        advice = "the base URL leads to no API; it often ends in /v1, and a proxy may ask for a login"
        return self.error("fatal", "web_page", f"sent a web page, {self.redacted(start)!r}; {advice}")

    def provider_error(self, reported: ReportedError) -> ProviderError:
        """The error for what the server reported."""
        message = self.redacted(reported.message) or self.redacted(" ".join(reported.names))
        code = self.redacted(reported.code, limit=60)
        status = f"HTTP{reported.status}" if reported.status else code or "error_in_reply"
        text = f"answered {status}" + (f": {message}" if message else "")
        known = _named_cause(reported, self)
        if known is not None:
            error, cause, advice = known
            return self.error(error, cause, f"{text}; {advice}")
        if _worth_a_retry(reported, self.api):
            wait = retry_after(reported.headers, LONGEST_WAIT_SECONDS)
            return self.error("transient", status, text, reported.wait if wait is None else wait)
        advice = (
            "redirects are not followed, so that the key goes nowhere else; correct the base URL"
            if reported.status and 300 <= reported.status < 400
            else "the request was refused; correct the model's settings"
        )
        return self.error("fatal", status, f"{text}; {advice}")

    def redacted(self, text: str, limit: int = 300) -> str:
        """A server's words on one line, cut, without the key or any larger part of it."""
        for secret in self.secret_forms:
            text = text.replace(secret, "[key]")
        line = " ".join("[key]" if self._shows_a_key(word) else word for word in text.split())
        return line if len(line) <= limit else line[: limit - 1] + "…"

    def _shows_a_key(self, word: str) -> bool:
        if "***" in word or re.search(r"\bsk-\w{3}", word):
            return True  # how servers abbreviate keys
        return any(s[i : i + 8] in word for s in self.secrets for i in range(max(0, len(s) - 7)))


async def with_plain_errors(work: Awaitable[T], server: Server) -> T:
    """The result of `work`; what the client library raises becomes a `ProviderError`."""
    try:
        return await work
    except ProviderError as error:
        failure = error
    except Exception as error:
        explained = _provider_error(error, server)
        if explained is None:
            raise
        failure = explained
    raise failure  # without a context: the library's errors hold the key in their request


def _provider_error(error: Exception, server: Server) -> ProviderError | None:
    """The error for what the client library raised, or reading its answer; None for anything else."""
    import httpx2
    import openai

    if isinstance(error, openai.APIStatusError):
        return server.provider_error(reported_error(error.body, error.status_code, error.response.headers))
    if isinstance(error, (openai.APIConnectionError, httpx2.HTTPError)):
        return _connection_error(error.__cause__ or error, server)
    if isinstance(error, openai.APIError):  # inside a stream: no status
        known = {"code": error.code, "type": error.type, "message": error.message}
        body = error.body if isinstance(error.body, Mapping) else {}
        return server.provider_error(reported_error({"error": {**known, **body}}))
    if isinstance(error, ValidationError):
        return server.bad_response(f"JSON of another shape ({problems_text(error, 1)})")
    if isinstance(error, (openai.OpenAIError, httpx2.StreamError, ValueError, RecursionError)):
        return server.bad_response(f"{type(error).__name__}: {error}")
    return None


def _connection_error(cause: BaseException, server: Server) -> ProviderError:
    import httpx2

    words = server.redacted(str(cause)) or type(cause).__name__
    if isinstance(cause, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        advice = "check that the server runs and that the base URL is right"
        return server.error("transient", "unreachable", f"cannot be reached: {words}; {advice}")
    if isinstance(cause, httpx2.TimeoutException):
        return server.error("transient", "timeout", "no answer in time; is the server busy?")
    return server.error("transient", "connection_lost", f"the connection broke before the end: {words}")


def _named_cause(reported: ReportedError, server: Server) -> tuple[ErrorClass, str, str] | None:
    """Class, cause and advice of the failures that have a name."""
    status, names = reported.status, set(reported.names)
    if names & QUOTA:
        return "fatal", "insufficient_quota", "add credit to the key's account or use another key"
    if status in (401, 403) or "invalid_api_key" in names:
        variables = (server.owner or OPENAI).key_names
        set_key = f"set {variables} to a key that this server accepts for this model"
        advice = set_key if server.configured else NO_KEY
        return "fatal", "HTTP403" if status == 403 else "HTTP401", advice
    if "model_not_found" in names or (status == 404 and "model" in reported.message.lower()):
        return "fatal", "model_not_found", "name a model that the server has"
    if status == 404:
        return "fatal", "HTTP404", NO_PATH[server.api]
    if "invalid_prompt" in names:
        advice = "the server says that the question breaks its usage policy; change goal or instructions"
        return "fatal", "invalid_prompt", advice
    if names & FILTER_CODES:
        return "recoverable", "content_filter", "the server's content filter refused the request"
    if _too_long(reported):
        return "recoverable", "context_too_long", "send less: fewer or shorter messages"
    return None


def _too_long(reported: ReportedError) -> bool:
    if reported.status == 413 or TOO_LONG_CODES & set(reported.names):
        return True
    if reported.status == 429:  # a rate limit, unless this one request is more than the limit
        return "request too large" in reported.message.lower()
    return bool(TOO_LONG.search(reported.message))


def _worth_a_retry(reported: ReportedError, api: str) -> bool:
    wish = reported.headers.get("x-should-retry", "").lower()
    if wish in ("true", "false"):
        return wish == "true"
    if reported.status is None and api == "responses" and reported.code:
        return reported.code in PASSING_CODES
    if reported.status is None:
        return "invalid_request_error" not in reported.names
    return reported.status in (408, 409, 425, 429) or reported.status >= 500
