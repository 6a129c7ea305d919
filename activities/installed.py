"""What is installed: Ratchet's version, the packages of the extras, the line for a person who lacks one."""

from __future__ import annotations

__all__ = ["EXTRAS", "installed_version", "missing_extra"]

EXTRAS = {
    "jinja2": ("console", "the console"),
    "mcp": ("mcp", "MCP"),
    "obstore": ("s3", "a store at s3://"),
    "openai": ("openai", "a model of the provider `openai`"),
    "opentelemetry": ("telemetry", "sending traces"),
    "prometheus_client": ("telemetry", "serving metrics"),
    "psycopg": ("postgres", "a store at postgresql://"),
    "psycopg_pool": ("postgres", "a store at postgresql://"),
    "pydantic_monty": ("code", "running a model's code"),
    "starlette": ("console", "serving web pages"),
    "temporal": ("server", "the embedded server"),
    "uvicorn": ("console", "serving web pages"),
    "z3": ("verify", "telling what an agent can do with nobody asked"),
}
"""Package, or program, that only some need -> the extra that brings it, and what cannot be had without it."""


def missing_extra(package: str) -> str:
    """What to do where a package of an extra is not installed."""
    extra, what = EXTRAS[package]
    return (
        f"{what} needs Ratchet's extra `{extra}`, which is not installed; add it in this environment: "
        f"`pip install 'ratchet[{extra}]'` (pip keeps the Ratchet that is there)"
    )


def installed_version() -> str:
    """Of Ratchet; empty: a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ratchet")
    except PackageNotFoundError:
        return ""
