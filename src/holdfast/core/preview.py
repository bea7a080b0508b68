"""Previews: what a yes would do, in words that the author of a rule chose and the job's own arguments fill in.

So it is no word of whoever asks: a model that describes its own request has no say in it. It is made of the
arguments that the approval is bound to, and made anew when they are edited.
"""

from __future__ import annotations

from holdfast.core.expression import ExpressionFailed
from holdfast.core.job import Job
from holdfast.core.rules import NAMES, variables_of
from holdfast.core.template import as_text, compile_template

PREVIEW_MAX = 2_000
"""Characters."""


def preview(template: str, job: Job) -> str:
    """Empty without a template. One that has no value for this job says so: what is wrong with it must not keep
    anybody from deciding, and whoever decides must not take it for nothing to be seen."""
    if not template:
        return ""
    compiled = compile_template(template, names=NAMES)
    try:
        return shortened(as_text(compiled.fill(variables_of(job, compiled.names))))
    except ExpressionFailed as error:
        return f"(no preview: {error})"


def shortened(text: str) -> str:
    """A cut is seen: what was pushed out of sight would be what nobody has agreed to."""
    return text if len(text) <= PREVIEW_MAX else f"{text[: PREVIEW_MAX - 6]} (cut)"
