"""The options of an activity that a history holds, against those that the code of today asks for. Pure."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from temporalio.api.history.v1 import ActivityTaskScheduledEventAttributes
from temporalio.worker import StartActivityInput

from client.differences import Difference, differences

__all__ = ["changed_options"]


def changed_options(
    was: ActivityTaskScheduledEventAttributes | None, now: StartActivityInput | None
) -> tuple[Difference, ...]:
    """Where retry policy and timeouts differ; nothing of what is no activity.

    What the code leaves open is the server's matter. The time that a call may take with all its attempts
    is what is left of the run's time: it depends on the clock, and is not compared.
    """
    if was is None or now is None:
        return ()
    asked = _asked(was, now)
    recorded = {name: value for name, value in _recorded(was).items() if name in asked}
    return differences({"options": recorded}, {"options": asked})


def _recorded(was: ActivityTaskScheduledEventAttributes) -> dict[str, float | list[str]]:
    policy = was.retry_policy
    return {
        "start_to_close_timeout": _seconds(was.start_to_close_timeout),
        "heartbeat_timeout": _seconds(was.heartbeat_timeout),
        "initial_interval": _seconds(policy.initial_interval),
        "backoff_coefficient": policy.backoff_coefficient,
        "maximum_interval": _seconds(policy.maximum_interval),
        "maximum_attempts": policy.maximum_attempts,
        "non_retryable_error_types": list(policy.non_retryable_error_types),
    }


def _asked(
    was: ActivityTaskScheduledEventAttributes, now: StartActivityInput
) -> dict[str, float | list[str]]:
    """What the code asks for, cut as the server cuts it: one attempt takes no longer than all of them."""
    policy, whole = now.retry_policy, _seconds(was.schedule_to_close_timeout)
    found: dict[str, float | list[str]] = {}
    if now.start_to_close_timeout is not None:
        found["start_to_close_timeout"] = _capped(now.start_to_close_timeout, whole)
    if now.heartbeat_timeout is not None:
        one = _seconds(was.start_to_close_timeout)
        found["heartbeat_timeout"] = _capped(now.heartbeat_timeout, one)
    if policy is not None:
        found["initial_interval"] = policy.initial_interval.total_seconds()
        found["backoff_coefficient"] = policy.backoff_coefficient
        found["maximum_attempts"] = policy.maximum_attempts
        found["non_retryable_error_types"] = list(policy.non_retryable_error_types or ())
    if policy is not None and policy.maximum_interval is not None:
        found["maximum_interval"] = policy.maximum_interval.total_seconds()
    return found


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _capped(asked: timedelta, cap: float) -> float:
    seconds = asked.total_seconds()
    return min(seconds, cap) if cap else seconds
