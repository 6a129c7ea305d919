"""What Ratchet needs of a Temporal namespace: search attributes, and runs kept long enough."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from client.errors import RatchetError
from workflows.api import ATTRIBUTES

__all__ = ["RETENTION", "missing_attributes", "namespace_exists", "prepare", "register_attributes"]

RETENTION = timedelta(hours=2160)
"""How long the embedded server keeps finished runs."""

TYPES = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Datetime": IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
}


async def missing_attributes(client: Client) -> list[str]:
    """Names of our search attributes that are not registered.

    Raises:
        RatchetError: one is registered with another type; only the namespace's owner can change that.
    """
    found = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    for name, kind in ATTRIBUTES.items():
        if name in found.custom_attributes and found.custom_attributes[name] != TYPES[kind]:
            other = IndexedValueType.Name(found.custom_attributes[name])
            raise RatchetError(
                f"search attribute {name} of namespace {client.namespace!r} is registered as {other}, "
                f"Ratchet needs {kind}: use another namespace (TEMPORAL_NAMESPACE)"
            )
    return [name for name in ATTRIBUTES if name not in found.custom_attributes]


async def register_attributes(client: Client) -> list[str]:
    """Register those of our search attributes that are missing; their names."""
    missing = await missing_attributes(client)
    if not missing:
        return missing
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=client.namespace,
            search_attributes={name: TYPES[ATTRIBUTES[name]] for name in missing},
        )
    )
    for _ in range(100):  # the server's own cache takes a moment to see them
        if not await missing_attributes(client):
            return missing
        await asyncio.sleep(0.1)
    raise RatchetError(f"the server took search attributes {missing} but does not list them")


async def _keep_runs(client: Client) -> None:
    """Make the namespace keep finished runs at least as long as `RETENTION`."""
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace)
    )
    if described.config.workflow_execution_retention_ttl.ToTimedelta() >= RETENTION:
        return
    ttl = Duration()
    ttl.FromTimedelta(RETENTION)
    await client.workflow_service.update_namespace(
        UpdateNamespaceRequest(
            namespace=client.namespace, config=NamespaceConfig(workflow_execution_retention_ttl=ttl)
        )
    )


async def namespace_exists(client: Client) -> bool:
    """The server has such a namespace."""
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    except RPCError:
        return False
    return True


async def prepare(address: str, namespace: str = "default") -> None:
    """Check that the server answers, and give the namespace what Ratchet needs.

    Raises:
        RuntimeError, RPCError: the server does not answer yet.
    """
    client = await Client.connect(address, namespace=namespace, connect_timeout=timedelta(seconds=5))
    await client.service_client.check_health(timeout=timedelta(seconds=5))
    await register_attributes(client)
    await _keep_runs(client)
