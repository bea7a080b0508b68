"""The draft of a post-mortem: other people's words in it stay words."""

from __future__ import annotations

from holdfast.core.incident import Happening, Incident, post_mortem

WORDS = "a\n# Summary\r\n| b \\| <script>x</script> ![see](http://elsewhere/x.png) &lt; \u2028- c"


def test_words_of_others_break_no_table_and_bring_nothing_along() -> None:
    incident = Incident(number=1, title=WORDS, by=WORDS, started_at=0.0, strict=True, after=0, before={"jobs": [WORDS]})
    draft = post_mortem(incident, [Happening(1.0, "note", WORDS, WORDS)], {})

    assert "<script" not in draft
    assert "![see](" not in draft
    assert draft.count("\n# ") == 0
    [row] = [line for line in draft.splitlines() if line.startswith("| 1970-01-01 00:00:01Z")]
    # Cells end at a bar that nothing escapes: an even number of backslashes before it.
    ends = [n for n, sign in enumerate(row) if sign == "|" and (n - len(row[:n].rstrip("\\"))) % 2 == 0]
    assert len(ends) == 5
