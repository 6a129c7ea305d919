"""Which tool calls need a person's approval, and whose. Pure.

No text of a model or a tool has a say. The input is the policy as the agent's author wrote it, the tool's
declared effect, the call's name and fitted arguments, and what the run has spent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice

from pydantic import Field

from activities.contracts import Frozen, JsonObject, Label, ToolSpec
from workflows.gate.arguments import (
    Budget,
    argument_names,
    argument_problem,
    checks_path,
    condition_problem,
    fits,
    has_key,
    number_problem,
)
from workflows.gate.bounds import Bounds
from workflows.kernel.canonical import canonical, digest_of
from workflows.kernel.labels import Labels, names
from workflows.people import (
    DEFAULT_EFFECT_MODES,
    ApprovalMode,
    ApprovalRule,
    Approvals,
    Bound,
    Conditions,
    People,
    Request,
    RequestSettings,
    Vote,
)

__all__ = [
    "ApprovalPolicy",
    "Grant",
    "ApprovalProblem",
    "RequiredApproval",
    "agreeing_votes",
    "covers",
    "granted",
    "label_problems",
    "person_label",
    "problem_text",
    "problems",
    "reaches",
    "unchecked_paths",
    "vote_content",
]

# -- the policy --------------------


class RequiredApproval(Frozen):
    """What the policy says of a call: the entry that decides, and how people are asked."""

    rule: str
    """`rules.0`, `tools.pay` or `effects.unsafe`."""
    mode: ApprovalMode
    """`always` or `first_time`; `reject`: nobody is asked, and the call is not made; `never` or `rules`: it
    passes unless `bound` says otherwise."""
    settings: RequestSettings
    spent_usd: float
    """What the run, and the runs above it, had spent by then."""
    bound: Bound | None = None
    """The bound of the rule that the call would pass; None: the entry asks in any case."""
    labels: tuple[Label, ...] = ()
    """Those that the run had by then."""
    after: tuple[Label, ...] = ()
    """Those without which the rule would not fit."""

    @property
    def passes(self) -> bool:
        """The call needs nobody's approval."""
        return self.bound is None and self.mode in ("never", "rules")


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """The approvals of an agent, its people, and the tools of the run by name."""

    approvals: Approvals
    people: People
    specs: Mapping[str, ToolSpec]
    share: Mapping[str, Decimal] | None = None
    """Of an inner run: its part of the rules' bounds."""
    bounds: Bounds = field(init=False)
    """What the run may let pass unasked, and has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", Bounds(self.approvals, self.share))

    def required_approval(
        self,
        tool: str,
        arguments: JsonObject,
        *,
        spent_usd: float,
        labels: tuple[Label, ...] = (),
        activity_id: str = "",
    ) -> RequiredApproval | None:
        """What approval a call needs; None: none. As `judge`."""
        judged = self.judge(tool, arguments, spent_usd=spent_usd, labels=labels, activity_id=activity_id)
        return None if judged.passes else judged

    def judge(
        self,
        tool: str,
        arguments: JsonObject,
        *,
        spent_usd: float,
        labels: tuple[Label, ...] = (),
        activity_id: str = "",
        budget: Budget | None = None,
    ) -> RequiredApproval:
        """What the policy says of a call. Earlier approvals of people are not considered here. `labels` are
        those of the run. Raises TooMuch beyond the `budget` for conditions.

        The first rule that fits decides, else the entry of the tool, else that of its effect. A tool that the
        run does not have is never called, so it needs none. What the call has taken of its rule's bounds is
        its own.
        """
        entry, mode, rule = self._entry(tool, arguments, spent_usd, labels, budget or Budget())
        bound = self.bounds.passed(entry, arguments, besides=activity_id)
        return RequiredApproval(
            rule=entry,
            mode=rule.then if rule and bound else mode,
            settings=(rule and rule.request) or self.people.settings_for("approval"),
            spent_usd=spent_usd,
            bound=bound,
            labels=labels,
            after=rule.after if rule else (),
        )

    def entry(
        self, tool: str, arguments: JsonObject, *, spent_usd: float, labels: tuple[Label, ...] = ()
    ) -> str:
        """The entry that decides on a call: `rules.0`, `tools.pay` or `effects.unsafe`."""
        return self._entry(tool, arguments, spent_usd, labels, Budget())[0]

    def _entry(
        self, tool: str, arguments: JsonObject, spent_usd: float, labels: tuple[Label, ...], budget: Budget
    ) -> tuple[str, ApprovalMode, ApprovalRule | None]:
        if (spec := self.specs.get(tool)) is None:
            return "", "never", None
        for number, rule in enumerate(self.approvals.rules):
            costs = rule.cost_above is None or spent_usd > rule.cost_above
            is_now = costs and set(rule.after) <= set(labels)
            if is_now and covers(rule, spec) and fits(rule.arguments, arguments, budget):
                return f"rules.{number}", rule.ask, rule
        if tool in self.approvals.tools:
            return f"tools.{tool}", self.approvals.tools[tool], None
        modes = {**DEFAULT_EFFECT_MODES, **self.approvals.effects}
        return f"effects.{spec.effect}", modes.get(spec.effect, "never"), None


def covers(rule: ApprovalRule, spec: ToolSpec) -> bool:
    """The rule is about this tool."""
    named = not rule.tools or any(fnmatchcase(spec.name, pattern) for pattern in rule.tools)
    is_of_effect = not rule.effects or spec.effect in rule.effects
    return named and is_of_effect and (not rule.sends or spec.sends in rule.sends)


# -- what is wrong with a policy --------------------

MAX_NAMED_TOOLS = 20
"""Problems, and tools in a problem, that a text names."""
ApprovalProblem = tuple[tuple[str | int, ...], str]
"""Keys and indices from the top of the agent file, and what is wrong there, for its author."""


def problems(
    approvals: Approvals,
    people: People,
    *,
    tools: Sequence[str] | None = None,
    specs: Sequence[ToolSpec] = (),
) -> list[ApprovalProblem]:
    """What would make rules protect nothing, in the order of the file: unknown groups and bad schemas;
    unknown tools, once the names of the run's `tools` are known; unknown arguments, once the `specs` are."""
    found: list[ApprovalProblem] = []
    for number, rule in enumerate(approvals.rules):
        at = ("approvals", "rules", number)
        for place, pattern in enumerate(rule.tools):
            if tools is not None and not any(fnmatchcase(name, pattern) for name in tools):
                found.append(((*at, "tools", place), _no_tool(pattern, tools)))
        found += (((*at, *place), text) for place, text in _argument_problems(rule, specs) if text)
        if rule.request is not None and (text := people.settings_problem(rule.request)):
            found.append(((*at, "request"), text))
    unknown = [] if tools is None else [name for name in approvals.tools if name not in tools]
    return found + [(("approvals", "tools", name), _no_tool(name, tools or ())) for name in unknown]


def label_problems(
    approvals: Approvals, labels: Labels, *, tools: Sequence[str], specs: Iterable[ToolSpec] = ()
) -> list[ApprovalProblem]:
    """What would make labels and the rules about them protect nothing: tools that the agent does not have.
    Once the `specs` of all of them are known, as the agent labels them: labels that nothing brings, and sinks
    that none of a rule's tools has."""
    found: list[ApprovalProblem] = [
        (("labels", "tools", pattern), _no_tool(pattern, tools))
        for pattern in labels.tools
        if not any(fnmatchcase(name, pattern) for name in tools)
    ]
    is_needed = any(rule.after or rule.sends for rule in approvals.rules)
    known = tuple(specs) if is_needed else ()
    if len(known) < len(tools) or not is_needed:
        return found
    brought = {*labels.input, *labels.people, *(label for spec in known for label in spec.brings)}
    for number, rule in enumerate(approvals.rules):
        at = ("approvals", "rules", number)
        if never := [label for label in rule.after if label not in brought]:
            there = ", ".join(sorted(brought)) or "no label"
            text = f"nothing brings {never[0]!r} into a run of this agent; the rule would never fit"
            found.append(((*at, "after"), f"{text}. What comes in is {there}"))
        if rule.sends and not any(covers(rule, spec) for spec in known):
            sinks = ", ".join(f"{spec.name}: {spec.sends}" for spec in known[:MAX_NAMED_TOOLS]) or "no tools"
            found.append(((*at, "sends"), f"no tool that the rule is about sends so far; there are {sinks}"))
    return found


PATH_WORDS = {
    "path", "paths", "file", "files", "filename", "filepath", "dir", "directory", "folder", "source",
    "destination",
}  # fmt: skip
"""Words in the names of arguments that usually hold paths."""
SPELLED = {"pattern", "const", "enum"}
"""Conditions on how a text is spelled."""


def unchecked_paths(approvals: Approvals, specs: Iterable[ToolSpec]) -> list[ApprovalProblem]:
    """Rules about the spelling of what seems to be a path, where the tool's schema does not mark one: there
    `reports/../secret` fits `^reports/`."""
    found: list[ApprovalProblem] = []
    tools = tuple(specs)
    for number, rule in enumerate(approvals.rules):
        for name, condition in rule.arguments.items():
            if not (PATH_WORDS & _words(name) and has_key(condition, SPELLED)):
                continue
            bare = [spec.name for spec in tools if covers(rule, spec) and not checks_path(name, spec)]
            if bare:
                place = ("approvals", "rules", number, "arguments", name)
                found.append((place, f"{', '.join(bare[:3])}: {BARE_PATH.format(name=name)}"))
    return found


BARE_PATH = (
    "{name!r} seems to be a path, and its schema does not say so; `a/../b` and `./b` are then other texts "
    "than `b`, and pass the rule. Mark it: `RelativePath` in a tool of your own, `paths` in the "
    "configuration of an MCP server"
)


def _words(name: str) -> set[str]:
    """`targetFile` and `target_file` have the words `target` and `file`."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def problem_text(found: Iterable[ApprovalProblem]) -> str:
    """The first problems in one line."""
    return "; ".join(f"{'.'.join(map(str, place))}: {text}" for place, text in islice(found, MAX_NAMED_TOOLS))


def _no_tool(name: str, tools: Sequence[str]) -> str:
    more = f" and {len(tools) - MAX_NAMED_TOOLS} more" if len(tools) > MAX_NAMED_TOOLS else ""
    return (
        f"no tool fits {name!r}; the agent's tools are: {', '.join(tools[:MAX_NAMED_TOOLS]) or 'none'}{more}"
    )


def _argument_problems(rule: ApprovalRule, specs: Sequence[ToolSpec]) -> Iterator[ApprovalProblem]:
    """What is wrong with the arguments that the rule names; an empty text: nothing is."""
    for name, condition in rule.arguments.items():
        of_tool = partial(argument_problem, name, condition)
        text = condition_problem(condition) or _argument_problem(rule, name, specs, of_tool)
        yield ("arguments", name), text
    for name in rule.at_most.sum if rule.at_most else ():
        yield ("at_most", "sum", name), _argument_problem(rule, name, specs, partial(number_problem, name))


def _argument_problem(
    rule: ApprovalRule, name: str, specs: Sequence[ToolSpec], problem: Callable[[ToolSpec], str]
) -> str:
    """Why what the rule says of an argument protects nothing; `problem` says so of one tool."""
    covered = [spec for spec in specs if covers(rule, spec)]
    having = [spec for spec in covered if name in argument_names(spec)]
    texts = [(spec.name, problem(spec)) for spec in having or covered]
    wrong = [f"{tool}: {text}" for tool, text in texts if text]
    if not having and len(wrong) < len(covered):  # a tool with an open schema may have the argument
        return ""
    return "; ".join(wrong[:3])


# -- earlier approvals --------------------


def agreeing_votes(request: Request, vote: Vote) -> tuple[Vote, ...]:
    """The votes that decide the same as this one."""
    content = vote_content(vote)
    return tuple(other for other in request.votes if vote_content(other) == content)


def vote_content(vote: Vote) -> bytes:
    """What a vote decides: the verb; of `edit` the arguments too, of `answer` and `resume` the text, of
    `topup` the amounts. Comments may differ."""
    detail: object = None
    if vote.verb == "edit":
        detail = vote.digest
    elif vote.verb == "topup":
        detail = vote.amounts
    elif vote.verb in ("answer", "resume"):
        detail = vote.text
    return canonical([vote.verb, detail])


def person_label(by: str, verified: bool) -> str:
    """A person as the log shows them: `ann (verified)`, `somebody (claimed)`."""
    return f"{by or 'somebody'} ({'verified' if verified else 'claimed'})"


def reaches(settings: RequestSettings, first: str | None, now: str | None) -> bool:
    """A request with these settings goes to the group `first`, and from there it can come to `now`."""
    return settings.group == first and now in (settings.group, *settings.escalate_to)


class Grant(Frozen):
    """An approval that holds for later calls of one tool."""

    request: str
    tool: str
    rule: str | None = None
    """`first_time`: only for calls that this entry of the policy is about, with any arguments."""
    arguments: Conditions = Field(default_factory=dict)
    same: str | None = None
    """Digest of the only arguments that it is for."""
    group: str | None
    """The first group of the request."""
    decided_by: str | None
    """The group that decided; another one after an escalation."""
    by: tuple[str, ...]
    """All who approved; empty names are those of nobody."""
    verified: bool = False
    """All have signed."""
    labels: tuple[Label, ...] = ()
    """Those of the run when they approved: they have decided about no other."""

    @property
    def approvers(self) -> tuple[str, ...]:
        """Who has approved, as the log shows them."""
        return tuple(person_label(name, self.verified) for name in self.by)

    def holds(
        self, required: RequiredApproval, tool: str, arguments: JsonObject, needed: int, budget: Budget
    ) -> bool:
        """Enough of the people who would decide on this call have approved it already. Raises TooMuch."""
        if tool != self.tool or required.mode == "reject" or not set(required.after) <= set(self.labels):
            return False
        if self.rule is not None:
            return required.mode == "first_time" and required.rule == self.rule
        return (
            len(self.by) >= needed
            and reaches(required.settings, self.group, self.decided_by)
            and (self.same is None or digest_of(arguments) == self.same)
            and fits(self.arguments, arguments, budget)
        )


def granted(request: Request, required: RequiredApproval, known: Sequence[Grant]) -> list[Grant]:
    """What an approved request grants to later calls of the run, beside the grants that it has already;
    `required` is how it was opened. A rollback does not take it back."""
    vote, tool = request.deciding_vote, request.tool
    if request.outcome != "approved" or request.kind != "approval" or vote is None or tool is None:
        return []
    votes = agreeing_votes(request, vote)
    grant = Grant(
        request=request.id,
        tool=tool,
        group=required.settings.group,
        decided_by=request.group,
        by=tuple(other.by for other in votes),
        verified=all(other.verified for other in votes),
        labels=names(request.labels),
    )
    found: list[Grant] = []
    if required.mode == "first_time" and (tool, required.rule) not in ((one.tool, one.rule) for one in known):
        found.append(grant.model_copy(update={"rule": required.rule}))
    wanted = vote.standing_approval
    # It is a decision of its own: all who approve must ask for the same one.
    if wanted is not None and len({canonical(_standing(other)) for other in votes}) == 1:
        same = digest_of(request.arguments or {}) if wanted.same else None
        found.append(grant.model_copy(update={"arguments": wanted.arguments, "same": same}))
    return found


def _standing(vote: Vote) -> JsonObject | None:
    standing = vote.standing_approval
    return None if standing is None else standing.model_dump(mode="json")
