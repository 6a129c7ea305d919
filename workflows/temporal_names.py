"""Names that client and workflow share. This module imports nothing, so that lists need nothing else."""

from __future__ import annotations

from typing import Literal

__all__ = [
    "ATTRIBUTES", "FOR_ARCHIVE", "LOG_HEAD_KEY", "REQUESTS_KEY", "RESULT_KEY", "TASK_QUEUE", "WORKFLOW_TYPE",
    "Kind", "Verb",
]  # fmt: skip

WORKFLOW_TYPE = "AgentWorkflow"
TASK_QUEUE = "ratchet"
REQUESTS_KEY = "requests"
"""Memo: the open requests in short, for lists."""
RESULT_KEY = "result"
"""Memo of a run that Temporal shows as Canceled: its result."""
FOR_ARCHIVE = "archive"
"""AgentWaiting of a run that is over and whose log could not be archived then."""
LOG_HEAD_KEY = "log_head"
"""Memo of such a run: the hash of its log's last record."""
ATTRIBUTES: dict[str, Literal["Keyword", "Datetime"]] = {
    "AgentName": "Keyword",
    "AgentMachine": "Keyword",
    "AgentState": "Keyword",
    "AgentWaiting": "Keyword",
    "AgentWaitingSince": "Datetime",
    "AgentDeadline": "Datetime",
    "AgentExit": "Keyword",
}
"""Search attributes of a run, to be registered in the namespace."""
Kind = Literal["approval", "question", "interrupt", "escalation", "limit", "outcome", "trouble", "stuck"]
"""approval: may this tool be called? question, escalation: a machine asks. interrupt: the run waits before a
step or a state. limit: a limit is reached. outcome: did an unsafe call take effect? trouble: a model call
failed permanently. stuck: the run goes round in circles."""
Verb = Literal["approve", "reject", "edit", "answer", "resume", "retry", "topup", "finish", "abort"]
"""retry: make the call again. finish: end as the limit would end the run. answer: the text is the answer (of
an outcome: the call took effect, with this result)."""
