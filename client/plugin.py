"""Everything that Ratchet adds to Temporal, as one plugin.

Give it to the client; workers and replayers made from that client inherit it:

    client = await Client.connect("localhost:7233", plugins=[RatchetPlugin(Settings())])
    worker = Worker(client, task_queue="ratchet")
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.plugin import SimplePlugin
from temporalio.service import ConnectConfig, ServiceClient
from temporalio.worker import (
    ReplayerConfig,
    UnsandboxedWorkflowRunner,
    Worker,
    WorkerConfig,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.worker.workflow_sandbox import RestrictedWorkflowAccessError, SandboxedWorkflowRunner
from temporalio.workflow import SandboxImportNotificationPolicy

import activities
import workflows
from activities.keyfiles import private_key
from activities.settings import Settings
from activities.store.blobs import StoreError, StoreUnavailable
from activities.store.converter import HandlersConverter, data_converter
from activities.store.stores import Stores
from activities.telemetry.report import Telemetry
from client.server.telemetry import showing_waiting, worker_telemetry
from client.server.workerconfig import register_modules
from workflows.api import WORKFLOW_TYPE

__all__ = ["PASSED_THROUGH", "RatchetPlugin"]

PASSED_THROUGH = (
    "ratchet", activities.__name__, workflows.__name__,  # their real names: in a wheel others are the user's
    "cryptography", "jsonschema", "re2", "referencing", "rpds",
)  # fmt: skip
"""What the workflow sandbox does not import again for every run: our own code, and libraries with Rust or C
inside. Users' modules are not among them: `workflows/registry.py` has the sandbox import them under its
restrictions, so that a machine that reads a clock or a file is refused."""


class RatchetPlugin(SimplePlugin):
    """Converter and external storage, the workflow, the activities, the sandbox's passthrough.

    The workflow is imported, and activities are built, when a worker needs them: a client alone loads no
    machines and no tools.
    """

    def __init__(
        self,
        settings: Settings,
        stores: Stores | None = None,
        *,
        resources: Mapping[Callable[[], Any], Any] | None = None,
    ) -> None:
        """`resources`: objects that the application has already, in the place of what these functions open
        for tools; they stay open when a worker ends."""
        self.settings = settings
        self._resources = resources or {}
        self.stores = stores or Stores(settings)
        self._closing: list[tuple[Callable[..., Any], Sequence[Callable[[], Awaitable[None]]]]] = []
        """One of a worker's activities, and what closes all that they opened; until the worker runs."""
        self._telemetry: Telemetry | None = None
        self._watched = 0
        """Workers that share it."""
        self._running = 0
        """Workers that run, and share the stores."""
        super().__init__(
            "ratchet",
            data_converter=data_converter((self.stores.blobs, self.stores.secret), self.stores.keys),
            workflows=_workflows,
            activities=self._activities,
            workflow_runner=_runner,
            # a user's machine that reads a clock or a file ends its run, instead of waiting for other code
            workflow_failure_exception_types=[RestrictedWorkflowAccessError],
        )

    async def connect_service_client(
        self, config: ConnectConfig, next: Callable[[ConnectConfig], Awaitable[ServiceClient]]
    ) -> ServiceClient:
        """Connect as the SDK does. Raises `WrongKey` before anything is encrypted with it."""
        with suppress(StoreUnavailable):  # left to the calls that need it
            await asyncio.to_thread(self.stores.check_keys)
        return await super().connect_service_client(config, next)

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """Load users' machines and rules before the worker makes its workflows."""
        register_modules(self.settings.modules)
        return super().configure_worker(config)

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """The same for a replayer: it must know the machines of the runs that it replays."""
        register_modules(self.settings.modules)
        return super().configure_replayer(config)

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """Run it as the SDK does; what its activities opened is closed with it. Raises `StoreError`."""
        asked = DescribeNamespaceRequest(namespace=worker.client.namespace)
        described = (await worker.client.workflow_service.describe_namespace(asked)).namespace_info
        await asyncio.to_thread(self.stores.add_namespace, described.id, described.name)
        with suppress(StoreError):  # left to the calls that need it
            await asyncio.to_thread(self.stores.calls.make)
        from activities.archiving import ArchiveActivities
        from client.runs.archive_repair import repairing_archive

        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_telemetry)
            if self._telemetry is not None and self._telemetry.metrics is not None:
                stack.enter_context(showing_waiting(worker.client, self._telemetry.metrics))
            self._running += 1
            stack.push_async_callback(self._end_stores)
            for close in self._closers(worker):
                stack.push_async_callback(close)
            file = self.settings.signing_key
            key = private_key(file) if file else None
            archiving = ArchiveActivities(self.stores.archive, telemetry=self._telemetry, key=key)
            await stack.enter_async_context(repairing_archive(worker.client, worker.task_queue, archiving))
            await super().run_worker(worker, next)

    async def _end_telemetry(self) -> None:
        """With the last of the workers that share it."""
        self._watched -= 1
        if self._telemetry is not None and not self._watched:
            telemetry, self._telemetry = self._telemetry, None
            await asyncio.to_thread(telemetry.close)

    async def _end_stores(self) -> None:
        """With the last of the workers that run."""
        self._running -= 1
        if not self._running:
            await asyncio.to_thread(self.stores.close)

    def _closers(self, worker: Worker) -> Sequence[Callable[[], Awaitable[None]]]:
        """What closes what this worker's activities open, to be called from the last to the first."""
        activities = worker.config(active_config=True).get("activities", ())
        for made in self._closing:
            if any(made[0] is activity for activity in activities):
                self._closing.remove(made)
                return made[1]
        return ()

    def _activities(self, given: Sequence[Callable[..., Any]] | None) -> Sequence[Callable[..., Any]]:
        from activities.worker import worker_activities
        from client.proof.digests import digests_of, ratchet_code

        ratchet_code()  # as it is loaded, not as it is when the first run asks
        self._telemetry = self._telemetry or worker_telemetry(self.settings)
        self._watched += 1
        ours, closing = worker_activities(
            self.settings, self.stores, self._telemetry, digests_of, self._resources
        )
        self._closing.append((ours[0], closing))
        return [*(given or ()), *ours]


def _workflows(given: Sequence[type] | None) -> Sequence[type]:
    from workflows.workflow import AgentWorkflow

    return [*(given or ()), AgentWorkflow]


def _runner(given: WorkflowRunner | None) -> WorkflowRunner:
    runner = given or SandboxedWorkflowRunner()
    if not isinstance(runner, SandboxedWorkflowRunner):
        return ForHandlers(runner)
    restrictions = runner.restrictions.with_passthrough_modules(*PASSED_THROUGH)
    # a run imports its machine's module when it begins, and that module may import others
    silent = SandboxImportNotificationPolicy.SILENT
    restrictions = restrictions.with_import_notification_policy(silent)
    return SandboxForUsersCode(dataclasses.replace(runner, restrictions=restrictions))


ONE_BATCH = 2
"""A flag of Temporal's SDK, which is written into the history: a workflow hears everything that has happened
before its code runs. A worker that sees a run for the first time may get an update together with the news of
an earlier workflow task; a replay gets them one after the other. Without the flag the worker obeyed the
update before it knew the rest: a pause went to an inner run that had ended, and a replay took another course
(github.com/temporalio/sdk-python/issues/1591)."""


class ForHandlers(WorkflowRunner):
    """A runner that gives agents `ONE_BATCH` and the converter of their handlers; with another converter a
    signal could get lost."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self.runner = runner

    def prepare_workflow(self, defn: Any) -> None:
        """See `WorkflowRunner`."""
        self.runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        if det.defn.name == WORKFLOW_TYPE:
            flags: Any = det.default_workflow_logic_flags | {ONE_BATCH}
            det = dataclasses.replace(
                det, payload_converter_factory=HandlersConverter, default_workflow_logic_flags=flags
            )
        return self.chosen(det).create_instance(det)

    def chosen(self, det: WorkflowInstanceDetails) -> WorkflowRunner:
        """Who runs this workflow."""
        return self.runner

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """See `WorkflowRunner`."""
        self.runner.set_worker_level_failure_exception_types(types)


class SandboxForUsersCode(ForHandlers):
    """Temporal's sandbox, except for agents on a worker that has no machine, rule, policy or hook of a user.

    The sandbox costs a fifth of the worker's time in a step. Our own modules pass through it anyway, and
    import-linter keeps them pure.
    """

    def __init__(self, sandbox: SandboxedWorkflowRunner) -> None:
        super().__init__(sandbox)
        self.plain = UnsandboxedWorkflowRunner()

    def chosen(self, det: WorkflowInstanceDetails) -> WorkflowRunner:
        """See `ForHandlers`."""
        from workflows import registry

        is_ours = det.defn.name == WORKFLOW_TYPE and not registry.has_users_code()
        return self.plain if is_ours else self.runner
