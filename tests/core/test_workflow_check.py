"""Definitions: what is refused, with line and reason, before anything of it is stored."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from holdfast import api
from holdfast.core.document import Refused
from holdfast.core.job import Tenant
from holdfast.core.rules import RESPONSE_SCHEMA_BYTES_MAX
from holdfast.core.workflow import STEPS_MAX, definition_of, revision_of, workflow_record
from holdfast.core.workflow_check import KINDS, parse
from holdfast.core.workflow_drawing import draw_mermaid, draw_text
from holdfast.core.workflow_graph import Graph
from holdfast.errors import Invalid

TRIAGE = """\
name: triage
description: Look at an incident, and ask before anything is restarted.
input_schema:
  type: object
  required: [service]
  properties:
    service: {type: string}
    notify: {type: boolean, default: true}
timeout_s: 3600
max_parallel: 5
output: {done: "${steps.restart.state}"}
steps:
  - id: look
    kind: job
    topic: triage.look
    payload: {service: "${input.service}"}
    retry: {max_attempts: 3}
  - id: severity
    kind: switch
    depends_on: [look]
    cases:
      urgent: steps.look.output.level >= 8
      normal: steps.look.output.level >= 3
    default: none_at_all
  - id: allowed
    kind: approval
    depends_on: [severity=urgent]
    message: "Restart ${input.service}?"
    approvers: [ann, bob]
  - {id: restart, kind: job, depends_on: [allowed], topic: service.restart, compensate: {topic: service.start}}
  - {id: cool, kind: delay, depends_on: [severity=normal], seconds: 60}
  - id: hosts
    kind: for_each
    depends_on: [look]
    items: steps.look.output.hosts
    step: {kind: job, topic: triage.host, payload: "${item}"}
  - id: both
    kind: parallel
    depends_on: [hosts]
    wait: any
    branches:
      page: {kind: notify, webhook: pager}
      mail: {kind: notify, webhook: mail}
  - {id: report, kind: workflow, workflow: report, depends_on: [both, restart, cool], input: "${steps.hosts.output}"}
"""


def test_a_definition_is_what_its_record_says() -> None:
    definition = parse(TRIAGE)
    record = workflow_record(definition, tenant=Tenant("acme"), revision=12, now=1.0)

    assert definition_of(record) == definition
    assert (revision_of(record), record.parent) == (12, "triage")
    assert Graph.of(definition_of(record)).bind_input({"service": "x"}) == {"service": "x", "notify": True}


def test_an_input_that_does_not_fit_is_refused_with_the_workflow_it_was_for() -> None:
    with pytest.raises(Invalid, match="the input does not fit the schema of workflow triage: "):
        Graph.of(parse(TRIAGE)).bind_input([])


def test_what_a_step_asks_for_is_known_before_it_runs() -> None:
    graph = Graph.of(parse(TRIAGE))

    assert graph.nodes["severity"].reads == {"look"}
    assert graph.nodes["report"].reads == {"hosts"}
    assert graph.output_reads == {"restart"}
    assert graph.order.index("report") > max(graph.order.index(step) for step in ("both", "restart", "cool"))


def steps(*lines: str) -> str:
    return "name: bad\nsteps:\n" + "\n".join(f"  - {line}" for line in lines)


JOB = "{id: a, kind: job, topic: t}"


ASK = "{{id: a, kind: approval, message: m, {}}}"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: x", 1, "missing required field `steps`"),
        ("name: x\nsteps: []", 2, "length"),
        (f"name: x\nsteps:\n  - {ASK.format('approvers: [ann, bob], quorum: 3')}", 3, "more than there are approvers"),
        (f"name: x\nsteps:\n  - {ASK.format('approvers: [ann smith]')}", 3, "cannot match"),
        (
            f"name: x\nsteps:\n  - {ASK.format('choices: [maybe]')}",
            3,
            r"choices: Invalid enum value 'maybe' \(there are: approve, reject, respond\)",
        ),
        (f"name: x\nsteps:\n  - {ASK.format('choices: [approve, edit]')}", 3, "choices: .* nobody edits it"),
        (f"name: x\nsteps:\n  - {ASK.format('choices: [reject]')}", 3, "choices: only reject"),
        (f"name: x\nsteps:\n  - {ASK.format('choices: [respond]')}", 3, "choices: respond needs a response_schema"),
        (
            "name: x\nsteps:\n  - id: a\n    kind: approval\n    message: m\n    response_schema: {type: strange}",
            6,
            r"step a: response_schema: not a JSON Schema: \$\.type: ",
        ),
        (
            (
                "name: x\nsteps:\n  - id: a\n    kind: for_each\n    items: input.x\n    step:\n      kind: approval\n"
                f"      message: m\n      response_schema: {{description: {'x' * RESPONSE_SCHEMA_BYTES_MAX}}}"
            ),
            9,
            f"response_schema: the schema of an answer has at most {RESPONSE_SCHEMA_BYTES_MAX} bytes",
        ),
        ("name: x y\nsteps: [" + JOB + "]", 1, "name"),
        ("name: x\ntimeout: 3\nsteps: [" + JOB + "]", 2, "no field 'timeout'"),
        (steps(JOB, r'{id: b, kind: job, topic: "a\0b"}'), 4, r"step b: topic: 'a\\x00b' is no topic"),
        (steps(JOB, "{id: b, kind: job, topic: '${input.topic}'}"), 4, "is no topic"),
        (
            steps(JOB, "{id: b, kind: job, topic: u, compensate: {topic: u v}}"),
            4,
            r"compensate.topic: 'u v' is no topic",
        ),
        (steps(JOB, "{id: b, kind: for_each, items: input.x, step: {kind: job, topic: '*'}}"), 4, "is no topic"),
        (steps(JOB, "{id: b, kind: parallel, branches: {c: {kind: job, topic: -t}}}"), 4, "is no topic"),
        (steps(JOB, "{id: b, kind: jobb, topic: t}"), 4, "a step is one of: job, approval"),
        (steps("{id: a, topic: t}"), 3, "kind"),
        (steps("{id: a, kind: job}"), 3, "missing required field `topic`"),
        (steps("{id: a, kind: job, topic: t, colour: red}"), 3, "no field 'colour'"),
        (steps("{id: a, kind: job, topic: t, retry: {max_attempts: many}}"), 3, "max_attempts: Expected `int`"),
        (steps("{kind: job, topic: t}"), 3, "needs an id"),
        (steps("{id: a-b, kind: job, topic: t}"), 3, "begins with a letter"),
        (steps("{id: if, kind: job, topic: t}"), 3, "a word of the expression language"),
        (steps(JOB, JOB), 4, "two steps 'a'; the first is on line 3"),
        (steps(JOB, "{id: b, kind: job, topic: t, depends_on: [c]}"), 4, "no such step"),
        (steps(JOB, "{id: b, kind: job, topic: t, depends_on: [a, a]}"), 4, "twice"),
        (steps(JOB, "{id: b, kind: job, topic: t, depends_on: [a=yes]}"), 4, "has no cases"),
        (
            steps("{id: a, kind: condition, test: 'true'}", "{id: b, kind: job, topic: t, depends_on: [a=maybe]}"),
            4,
            r"no case 'maybe' \(it has: true, false\)",
        ),
        (steps("{id: a, kind: job, topic: t, depends_on: [a]}"), 3, "a → a"),
        (
            steps(
                JOB,
                "{id: b, kind: job, topic: t, depends_on: [d, a]}",
                "{id: c, kind: job, topic: t, depends_on: [b]}",
                "{id: d, kind: job, topic: t, depends_on: [c]}",
            ),
            4,
            "wait for each other: b → d → c → b",
        ),
        (steps("{id: a, kind: condition, test: 'input.x >'}"), 3, "test: column"),
        (steps("{id: a, kind: condition, test: 'imput.x > 1'}"), 3, "no such variable: imput"),
        (steps("{id: a, kind: condition, test: 'item > 1'}"), 3, "no such variable: item"),
        (
            steps(JOB, "{id: b, kind: condition, depends_on: [a], test: 'steps.c.output'}"),
            4,
            "steps.c: there is no such",
        ),
        (steps(JOB, "{id: b, kind: condition, test: 'steps.a.output'}"), 4, "step b does not depend on a"),
        (steps(JOB, "{id: b, kind: condition, depends_on: [a], test: 'size(steps) > 1'}"), 4, "by name"),
        (steps("id: a\n    kind: job\n    topic: t\n    payload:\n      deep: ['${1 +}']"), 7, "0: column"),
        (steps("{id: a, kind: job, topic: t, payload: '${nobody}'}"), 3, "no such variable: nobody"),
        (steps("{id: a, kind: delay}"), 3, "either seconds or until"),
        (steps("{id: a, kind: delay, seconds: 1, until: input.x}"), 3, "either seconds or until"),
        (steps("{id: a, kind: parallel, wait: 3, branches: {x: {kind: job, topic: t}}}"), 3, "3 of 1 branches"),
        (steps("{id: a, kind: parallel, branches: {x: {kind: job, topic: t, id: y}}}"), 3, "has no id"),
        (steps("{id: a, kind: for_each, items: input.x, step: {kind: for_each, items: item}}"), 3, "one of"),
        ("name: x\ninput_schema: {type: strange}\nsteps: [" + JOB + "]", 2, "JSON Schema"),
        ("name: x\noutput: '${steps.z.output}'\nsteps: [" + JOB + "]", 2, "steps.z"),
        (steps(*[f"{{id: s{n}, kind: transform, value: 1}}" for n in range(STEPS_MAX + 1)]), 2, "length"),
    ],
)
def test_a_bad_definition_is_refused_with_line_and_reason(text: str, line: int, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        parse(text)

    assert refused.value.line == line, str(refused.value)


def test_the_kinds_are_those_that_there_are() -> None:
    schema = msgspec.json.schema(type(parse(TRIAGE)))
    tags = {
        kind for part in schema["$defs"].values() for kind in part.get("properties", {}).get("kind", {}).get("enum", [])
    }

    assert tags == set(KINDS)


def test_two_thousand_steps_in_a_chain_are_read() -> None:
    lines = [
        f"{{id: s{n}, kind: job, topic: t, depends_on: {[f's{n - 1}'] if n else []}, payload: '{'${steps.s0.output}' if n else ''}'}}"
        for n in range(STEPS_MAX)
    ]
    graph = Graph.of(parse(steps(*lines)))

    assert graph.nodes["s1999"].reads == {"s0"}
    assert len(graph.after("s0")) == STEPS_MAX


def test_it_can_be_drawn() -> None:
    definition = parse(TRIAGE)

    text = draw_text(definition).splitlines()
    assert text[0] == "triage: 8 steps"
    assert " ".join(text[2].split()) == "severity switch urgent | normal | none_at_all ← look"
    mermaid = draw_mermaid(definition)
    assert '    severity_{"severity<br/>switch urgent | normal | none_at_all"}' in mermaid
    assert "    severity_ -->|urgent| allowed_" in mermaid


def test_topic_of_a_step_is_one_that_a_job_may_be_submitted_with() -> None:
    """What a definition is refused for must not be more, nor less, than what a job is."""
    for topic in ("t", "0", "a.b:c@d/e-f_g", "a" * 128, "a" * 129, ".a", "a b", "a\n", "ä", "a*"):
        document = msgspec.json.encode({"name": "x", "steps": [{"id": "a", "kind": "job", "topic": topic}]})
        try:
            msgspec.convert({"topic": topic}, api.NewJob)
        except msgspec.ValidationError:
            with pytest.raises(Refused):
                parse(document)
        else:
            assert parse(document).name == "x"


def test_patterns_of_all_answers_together_are_bounded() -> None:
    """Each of the steps has no more than a schema may have."""
    asking = {"kind": "approval", "message": "m", "choices": ["respond", "reject"]}
    asked = [{**asking, "id": f"s{n}", "response_schema": {"pattern": rf"\p{{L}}{{20}}x{n}"}} for n in range(17)]

    parse(msgspec.json.encode({"name": "x", "steps": asked[:16]}))
    with pytest.raises(Refused, match="step s16: response_schema: with those before it, its patterns are too large"):
        parse(msgspec.json.encode({"name": "x", "steps": asked}))
    inside = [
        {"id": "f", "kind": "for_each", "items": "input", "step": {k: v for k, v in asked[16].items() if k != "id"}}
    ]
    with pytest.raises(Refused, match="step f: response_schema"):
        parse(msgspec.json.encode({"name": "x", "steps": [*asked[:16], *inside]}))


IN_THREADS = """
import sys, threading
from holdfast.core.job import Tenant
from holdfast.core.record import Kind, Record
from holdfast.core.workflow import definition_of

sys.setswitchinterval(1e-6)
record = Record(kind=Kind.WORKFLOW, tenant=Tenant("acme"), id="w@000001", created_at=0, body=sys.argv[1].encode())
start = threading.Barrier(8)

def read():
    start.wait()
    definition_of(record)

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_definitions_are_read_in_several_threads_from_the_first_one_on() -> None:
    """As by a plane that is started while runs of two workflows are under way. In a process of its own, which crashed."""
    branches = {"x": {"kind": "job", "topic": "t", "compensate": {"topic": "u", "retry": {"max_attempts": 3}}}}
    steps = [{"id": "p", "kind": "parallel", "wait": "any", "branches": branches}]
    document = msgspec.json.encode({"name": "w", "steps": steps}).decode()

    assert subprocess.run([sys.executable, "-c", IN_THREADS, document], check=False).returncode == 0
