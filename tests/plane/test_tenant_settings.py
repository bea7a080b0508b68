"""Settings of topics, tenants and webhooks: read, shown, and refused where they make no sense."""

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
        ('[topics."t"]\nmax_attempts = "5"\n', "topic 't': max_attempts must be a whole number, not '5'"),
        ('[topics."t"]\nmax_attempts = 0\n', "at least 1"),
        ('[topics."t"]\nlease_s = 0\n', "more than 0"),
        ('[topics."t"]\nlease_s = true\n', "lease_s must be a number"),
        ('[topics."t"]\nlease_s = nan\n', "lease_s must be a number of at most"),
        ('[topics."t"]\nrunning_timeout_s = inf\n', "running_timeout_s must be a number of at most"),
        ('[topics."t"]\nmax_attempts = 99999999999999999999\n', "max_attempts must be a number of at most"),
        ('[topics."t"]\nbackoff = {cap_s = inf}\n', "cap_s must be a number of at most"),
        ("[retention]\ndead_letters_s = nan\n", "dead_letters_s must be a number of at most"),
        ('[topics."t"]\nrisk = "lo"\n', "low, medium, high"),
        ('[topics."t"]\nbackoff = {first = 1}\n', "first_s"),
        ('[topics."t"]\nbackoff = 1\n', "must be a table"),
        ('[topics."t"]\nschema = 5\n', "topic 't'"),
        ("[topics]\nt = 5\n", "must be a table"),
        ("topics = 5\n", r"must be a section, \[topics\]"),
        ('[plane]\nport = "7070"\n', "plane: port must be a whole number"),
        ("[plane]\nprot = 7070\n", "no such setting: prot"),
        ("[retention]\nfinished_jobs_s = '30 days'\n", "finished_jobs_s must be a number"),
        ("[policy]\nfile = 1\n", "file must be a text"),
        ("[people]\nbob = 1\n", "holdfast key new bob"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(Invalid, match=word) as refused:
        load(written(tmp_path, text))
    assert str(refused.value).startswith(str(tmp_path / "plane.toml"))  # of several files, one is to be changed


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plane.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match="not valid TOML"):
        load(tmp_path / "plane.toml")


def test_what_the_environment_says_is_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PORT", "abc")
    with pytest.raises(Invalid, match="HOLDFAST_PORT must be a whole number, not 'abc'"):
        load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_DRAIN_S", "inf"),
        ("HOLDFAST_DRAIN_S", "-1"),
        ("HOLDFAST_NOTICE_S", "nan"),
        ("HOLDFAST_LIVE_JOBS_MAX", "99999999999999999999"),
    ],
)
def test_number_that_nothing_can_be_done_with_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match="must be"):
        load()


@pytest.mark.parametrize("key", ["key\n", " key", "kéy", "key\udcff", " "])
def test_key_that_nobody_can_send_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """As one from a file with its newline: everybody would be told that their key is wrong, which is the same."""
    monkeypatch.setenv("HOLDFAST_API_KEY", key)
    with pytest.raises(Invalid, match="HOLDFAST_API_KEY") as refused:
        load()

    assert "key" not in str(refused.value)
