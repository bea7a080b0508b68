"""Rules as people write them: what is refused, and with which line."""

from __future__ import annotations

import pytest

from holdfast.core.rules import RESPONSE_SCHEMA_BYTES_MAX, load_rules
from holdfast.errors import Invalid

GOOD = """\
format: 1
on_failure: {low: open}
rules:
  - name: large-payouts
    match:
      topic: payout.*
      risk: [high, medium]
      labels: {env: prod}
    when: payload.amount > 1000
    action: require_approval
    approval: {approvers: [alice, bob], quorum: 2, separate: true}
    constraints: {max_attempts: 1}
  - name: mail
    match: {topic: [mail.*, sms.send], actor: agent-*}
    action: throttle
    throttle: {rate: 10/s, concurrency: 3}
default: {action: deny, reason: no rule allows it}
"""


def test_a_good_document_is_its_value() -> None:
    document = load_rules(GOOD, name="policy.yaml")

    assert [rule["name"] for rule in document["rules"]] == ["large-payouts", "mail"]


@pytest.mark.parametrize(
    ("right", "wrong", "refusal"),
    [
        ("topic: payout", "topics: payout", "policy.yaml:6: rules[0].match.topics: no such field here"),
        ("payload.amount >", "payload.amount >>", "policy.yaml:9: rules[0].when: column 17: "),
        ("payload.amount", "payloud.amount", "policy.yaml:9: rules[0].when: column 1: no such variable: payloud"),
        ("topic: payout.*", "topic: pay[out", "policy.yaml:6: rules[0].match.topic: 'pay[out' cannot match"),
        ("topic: payout.*", "topic: '*a*b*c*'", "policy.yaml:6: rules[0].match.topic: at most 3 *"),
        ("env: prod", "en*v: prod", "policy.yaml:8: rules[0].match.labels.en*v: the name of a label is plain"),
        (
            "[high, medium]",
            "[huge]",
            "policy.yaml:7: rules[0].match.risk[0]: Invalid enum value 'huge' (there are: low",
        ),
        ("require_approval", "ask", "policy.yaml:10: rules[0].action: Invalid enum value 'ask' (there are: allow, "),
        ("[alice, bob]", "[alice, 'b[ob]']", "policy.yaml:11: rules[0].approval.approvers: 'b[ob]' cannot match"),
        ("[alice, bob]", "[bob, bob]", "policy.yaml:11: rules[0].approval.quorum: more than there are approvers"),
        ("quorum: 2", "quorum: 3", "policy.yaml:11: rules[0].approval.quorum: more than there are approvers"),
        (
            "topic: payout.*",
            "actor: [alice, bob]",
            "policy.yaml:11: rules[0].approval.quorum: nobody could approve what alice asks for",
        ),
        (
            "quorum: 2",
            "choices: [aprove]",
            "policy.yaml:11: rules[0].approval.choices[0]: Invalid enum value 'aprove' (there are: approve, reject, ",
        ),
        ("quorum: 2", "choices: []", "policy.yaml:11: rules[0].approval.choices: "),
        ("quorum: 2", "choices: [reject]", "policy.yaml:11: rules[0].approval.choices: only reject: nobody could"),
        ("quorum: 2", "choices: [edit, reject]", "policy.yaml:11: rules[0].approval.choices: an edit is for others"),
        (
            "quorum: 2",
            "choices: [respond]",
            "policy.yaml:11: rules[0].approval.choices: respond needs a response_schema",
        ),
        (
            "quorum: 2",
            "choices: [approve], response_schema: {}",
            "policy.yaml:11: rules[0].approval.choices: with a response_schema, respond must be among them",
        ),
        (
            "quorum: 2",
            "response_schema: {type: strange}",
            "policy.yaml:11: rules[0].approval.response_schema: not a JSON Schema: $.type: ",
        ),
        (
            "quorum: 2",
            "response_schema: {$ref: 'https://example.org/form'}",
            "policy.yaml:11: rules[0].approval.response_schema: $ref points outside of the schema",
        ),
        (
            "quorum: 2",
            f"response_schema: {{description: {'x' * RESPONSE_SCHEMA_BYTES_MAX}}}",
            f"policy.yaml:11: rules[0].approval.response_schema: the schema of an answer has at most {RESPONSE_SCHEMA_BYTES_MAX} bytes",
        ),
        (
            "quorum: 2",
            "effect_preview: 'pays ${payload.amount'",
            "policy.yaml:11: rules[0].approval.effect_preview: column 6: ${ without its }",
        ),
        (
            "quorum: 2",
            "effect_preview: '${amount}'",
            "policy.yaml:11: rules[0].approval.effect_preview: column 1: no such variable: amount",
        ),
        ("max_attempts: 1", "max_attempts: 0", "policy.yaml:12: rules[0].constraints.max_attempts: "),
        ("name: mail", "name: large-payouts", "policy.yaml:13: rules[1].name: there is another rule called"),
        ("name: mail", "name: default", "policy.yaml:13: rules[1].name: there is another rule called"),
        ("10/s", "10/d", "policy.yaml:16: rules[1].throttle.rate: a rate is a number per s, m or h"),
        ("10/s", "0/s", "policy.yaml:16: rules[1].throttle.rate: a rate is a number per s, m or h"),
        ("{rate: 10/s, concurrency: 3}", "{}", "policy.yaml:16: rules[1].throttle: the action throttle needs"),
        ("rate: 10/s", "burst: 5", "policy.yaml:16: rules[1].throttle.burst: needs a rate"),
        ("action: throttle", "action: allow", "policy.yaml:16: rules[1].throttle: only for the action throttle"),
        ("default: {", "defaults: {", "policy.yaml:17: defaults: no such field here"),
        ("default: {action: deny, reason: no rule allows it}", "", "policy.yaml:1: document: default is missing: say"),
        (", reason: no rule allows it", "", "policy.yaml:17: default: a denial needs a reason"),
        ("{low: open}", "{lw: open}", "policy.yaml:2: on_failure: Invalid enum value 'lw'"),
        ("format: 1", "format: 2", "policy.yaml:1: format: Invalid enum value 2 (there are: 1)"),
        ("format: 1", "format: 1\nformat: 1", "policy.yaml:2: 'format' is there twice"),
        ("format: 1", "format: [1", "policy.yaml:2: not YAML"),
        ("format: 1", "format: &a [1]\nx: *a", "policy.yaml:1: an anchor (&a) is not allowed"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(right: str, wrong: str, refusal: str) -> None:
    assert right in GOOD
    with pytest.raises(Invalid) as refused:
        load_rules(GOOD.replace(right, wrong, 1), name="policy.yaml")

    assert str(refused.value).startswith(refusal)


def test_all_faults_of_the_rules_are_told_at_once() -> None:
    text = GOOD.replace("payload.amount >", "payload.amount >>").replace("10/s", "often").replace("bob", "")

    with pytest.raises(Invalid) as refused:
        load_rules(text.replace("quorum: 2, ", "").replace("[alice, ]", "[alice]"), name="policy.yaml")

    assert [line.split(":")[1] for line in str(refused.value).splitlines()] == ["9", "16"]


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = "a: &a [x, x]\n" + "\n".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]" for n in range(20)
    )

    with pytest.raises(Invalid, match=r"policy\.yaml:1: an anchor"):
        load_rules(bomb, name="policy.yaml")


def test_toml_says_the_same() -> None:
    text = """
format = 1
default = {action = "allow"}

[[rules]]
name = "no-shell"
match = {topic = "shell.*"}
action = "deny"
reason = "not here"
"""

    assert load_rules(text, name="policy.toml")["rules"][0]["match"] == {"topic": "shell.*"}
    with pytest.raises(Invalid, match=r"policy\.toml:5: rules\[0\]: a denial needs a reason"):
        load_rules(text.replace('reason = "not here"', ""), name="policy.toml")
    with pytest.raises(Invalid, match=r"policy\.toml:5: not TOML"):
        load_rules(text.replace("[[rules]]", "[[rules]"), name="policy.toml")
