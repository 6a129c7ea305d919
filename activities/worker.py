"""All activities of a worker, made from its settings and stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from activities.archiving import ArchiveActivities
from activities.code.activity import CodeActivities
from activities.code.pool import Pool
from activities.images import Images
from activities.keyfiles import private_key
from activities.material import Materials
from activities.mcp.servers import McpServers
from activities.model import ModelActivities
from activities.notify import NotifyActivities
from activities.provider import close_providers
from activities.providers import load_providers
from activities.rate_limits import RateLimits
from activities.settings import Settings
from activities.store.cache import ConversationCache
from activities.store.stores import Stores
from activities.telemetry.report import Telemetry
from activities.tools import load_tools
from activities.tools.artifacts import ArtifactActivities
from activities.tools.resources import Resources
from activities.tools.run import DigestsOf, ToolActivities, ToolRunner

__all__ = ["worker_activities"]

OUTPUTS_SECONDS = 30 * 86_400
"""Older tool outputs in the cache are forgotten when a worker starts; a question brings one within days."""


def worker_activities(
    settings: Settings,
    stores: Stores,
    telemetry: Telemetry,
    digests: DigestsOf = lambda machine, specs: None,
    given: Mapping[Callable[[], Any], Any] | None = None,
) -> tuple[Sequence[Callable[..., Any]], Sequence[Callable[[], Awaitable[None]]]]:
    """The activities, and what closes what they opened, but for the stores, to be called from the last to the
    first. `digests` say what a machine is here; `given` are objects in the place of what resources of tools
    open."""
    blobs, resources = stores.sealed, Resources(given)
    images, mcp, pool = Images(blobs, stores.secret), McpServers(settings.mcp), Pool()
    providers = load_providers(settings)
    runner = ToolRunner(load_tools(settings), settings, blobs, stores.calls, mcp, images, resources=resources)
    cache = ConversationCache(settings.cache_file, keys=stores.keys)
    cache.trim(OUTPUTS_SECONDS)
    models = ModelActivities(providers, cache, runner.describe, _limits(settings), telemetry, images)
    tools = ToolActivities(runner, models, telemetry, digests)
    signing = private_key(settings.signing_key) if settings.signing_key else None
    archive = ArchiveActivities(stores.archive, settings.history_seconds, telemetry, signing)
    activities: list[Callable[..., Any]] = [
        models.ask_model,
        tools.describe_tools,
        tools.call_tool,
        tools.block_call,
        tools.reconcile_tool,
        tools.compensate_tool,
        ArtifactActivities(blobs).read_artifacts,
        CodeActivities(Materials(blobs), pool).run_code,
        NotifyActivities(settings).notify,
        archive.archive_log,
        archive.read_log,
    ]
    closing: list[Callable[[], Awaitable[None]]] = [
        lambda: close_providers(providers.values()),
        pool.close,
        resources.close,
        mcp.close,
    ]
    return activities, closing


def _limits(settings: Settings) -> RateLimits | None:
    if not settings.rate_limits:
        return None
    waiting = max(settings.max_activities // 2, 1)  # other slots are for what need not wait
    return RateLimits(settings.limits_file, settings.rate_limits, waiting)
