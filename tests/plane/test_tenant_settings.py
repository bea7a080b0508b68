"""Settings of tenants and webhooks: read, shown, and refused where they make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import explain, load
from holdfast.core.job import Tenant
from holdfast.core.share import Quota
from holdfast.errors import Invalid


def written(folder: Path, text: str) -> Path:
    file = folder / "plane.toml"
    file.write_text(text)
    return file


def test_quotas_and_limits_of_topics_are_read_and_shown(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '[tenants."acme"]\nrunning_max = 2\n[tenants."*"]\nlive_jobs_max = 9\n'
        '[topics."gpu"]\nrunning_max = 1\nlive_jobs_max = 3\n[webhooks]\nallow_private = true\n',
    )
    settings = load(file)
    shown = {one.name: (one.value, one.origin) for one in explain(file)}

    assert settings.tenants.of(Tenant("acme")) == Quota(running_max=2)
    assert settings.tenants.of(Tenant("other")) == Quota(live_jobs_max=9)
    assert (settings.topics.get("gpu").running_max, settings.topics.get("gpu").live_jobs_max) == (1, 3)
    assert settings.webhooks.allow_private
    assert shown["tenants.acme.running_max"] == ("2", str(file))
    assert shown["tenants.acme.live_jobs_max"] == ("0", "default")
    assert shown["webhooks.allow_private"] == ("True", str(file))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[tenants."a"]\nrunning = 1\n', "running_max"),
        ('[tenants."a"]\nrunning_max = -1\n', "0 or more"),
        ('[tenants."a"]\nrunning_max = "many"\n', "tenant 'a'"),
        ("[webhooks]\nallow_private = 1\n", "true or false"),
        ("[webhooks]\nprivate = true\n", "allow_private"),
        ('[topics."t"]\nrunning_max = -1\n', "0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(Invalid, match=word):
        load(written(tmp_path, text))
