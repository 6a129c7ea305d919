"""Everything that Ratchet adds to Temporal, as one plugin.

Give it to the client; workers and replayers made from that client inherit it:

    client = await Client.connect("localhost:7233", plugins=[RatchetPlugin(Settings())])
    worker = Worker(client, task_queue="ratchet")
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from temporalio.client import Client, WorkflowHistory
from temporalio.plugin import SimplePlugin
from temporalio.worker import Replayer, ReplayerConfig, WorkerConfig, WorkflowReplayResult, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from activities.converter import data_converter
from activities.settings import Settings
from activities.store import BlobStore

__all__ = ["PASSED_THROUGH", "RatchetPlugin", "connect"]

PASSED_THROUGH = (
    "activities",
    "cryptography",
    "workflows.api",
    "workflows.gate",
    "workflows.kernel",
    "workflows.machines",
    "workflows.pages",
    "workflows.people",
    "workflows.registry",
    "ratchet_user",
)
"""What the workflow sandbox does not import anew: frozen data and pure functions, and the registry
that the worker has filled. `workflows.agent` and `workflows.perform` stay inside."""


class RatchetPlugin(SimplePlugin):
    """Converter and external storage, the workflow, the activities, the sandbox's passthrough.

    The workflow is imported, and activities are built, when a worker asks for them: a client alone loads
    no machines and no tools.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.blobs = BlobStore(settings.data_dir / "blobs.db", durable=True)
        self._closing: list[Callable[[], Any]] = []
        super().__init__(
            "ratchet",
            data_converter=data_converter(self.blobs),
            workflows=_workflows,
            activities=self._activities,
            workflow_runner=_runner,
            run_context=self._open,
        )

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Load users' machines and rules before the worker makes its workflows."""
        self._load()
        return super().configure_worker(config)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """The same for a replayer: it must know the machines of the runs that it replays."""
        self._load()
        return super().configure_replayer(config)

    @asynccontextmanager
    async def run_replayer(
        self,
        replayer: Replayer,
        histories: AsyncIterator[WorkflowHistory],
        next: Callable[..., AbstractAsyncContextManager[AsyncIterator[WorkflowReplayResult]]],
    ) -> AsyncIterator[AsyncIterator[WorkflowReplayResult]]:
        """Replay as the SDK does; what a worker of the same plugin has opened stays open."""
        async with next(replayer, histories) as results:
            yield results

    def _load(self) -> None:
        from activities.extensions import load_extensions
        from workflows import registry

        for module in load_extensions(self.settings.modules):
            registry.add_module(module)

    def _activities(self, given: Sequence[Callable[..., Any]] | None) -> Sequence[Callable[..., Any]]:
        from activities.archive import ArchiveActivities
        from activities.artifacts import ArtifactActivities
        from activities.code import CodeActivities
        from activities.model import ModelActivities
        from activities.notify import NotifyActivities
        from activities.providers import load_providers
        from activities.store import TranscriptCache
        from activities.tool import ToolActivities
        from activities.tool_after import AfterActivities
        from activities.toolbox import Toolbox

        providers = load_providers(self.settings)
        cache = BlobStore(self.settings.data_dir / "cache.db", durable=False)
        models = ModelActivities(providers, TranscriptCache(cache))
        toolbox = Toolbox.load(self.settings)
        tools = ToolActivities(toolbox, self.settings, self.blobs.put)
        after = AfterActivities(toolbox, self.settings, self.blobs.put)
        archive = ArchiveActivities(self.settings.data_dir / "archive.db")
        code = CodeActivities(self.blobs)
        self._closing += [*(provider.close for provider in providers.values()), code.close]
        ours: list[Callable[..., Any]] = [
            models.call_model,
            tools.call_tool,
            tools.describe_tools,
            after.reconcile_tool,
            after.compensate_tool,
            NotifyActivities(self.settings).notify,
            ArtifactActivities(self.blobs).read_artifacts,
            archive.archive_log,
            archive.read_log,
            code.run_code,
        ]
        return [*(given or ()), *ours]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """Around a worker: what the activities opened is closed with it."""
        try:
            yield
        finally:
            for close in self._closing:
                await close()
            self._closing.clear()


def _workflows(given: Sequence[type] | None) -> Sequence[type]:
    from workflows.agent import AgentWorkflow

    return [*(given or ()), AgentWorkflow]


def _runner(given: WorkflowRunner | None) -> WorkflowRunner:
    runner = given or SandboxedWorkflowRunner()
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner
    names = runner.restrictions.with_passthrough_modules(*PASSED_THROUGH)
    return dataclasses.replace(runner, restrictions=names)


async def connect(settings: Settings, **config: Any) -> Client:
    """A Temporal client that speaks as Ratchet does; `config` is what `Client.connect` takes.

    Raises RuntimeError when the server does not answer.
    """
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return await Client.connect(**config, plugins=[RatchetPlugin(settings)])
    except RuntimeError as error:
        # The core's errors nest their causes as Rust prints them; the innermost message says it.
        messages: list[str] = re.findall(r'(?:message|error): "([^"]+)"', str(error))
        raise RuntimeError(messages[-1].lower() if messages else str(error)) from error
