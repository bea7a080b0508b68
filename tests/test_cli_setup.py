"""`holdfast up|worker run|config|completion`: how things start, end, and are set up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from harness import sooner_or_later
from plane_shell import API_KEY, Plane, one_line, plane_in_thread

from holdfast.cli import cli

TASKS = """
from holdfast.worker import Job, Worker

worker = Worker(name="adder")

@worker.task("add")
async def add(job: Job) -> int:
    await job.progress({"step": 1})
    return sum(job.payload)
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    with plane_in_thread(tmp_path_factory.mktemp("plane")) as shared:
        yield shared


def test_option_goes_before_environment_before_profile_before_default(tmp_path: Path) -> None:
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast/config.toml").write_text('[profiles.staging]\nurl = "http://staging:1"\ntenant = "acme"\n')

    def settings(*options: str, **environment: str) -> dict[str, tuple[str, str]]:
        env = {"XDG_CONFIG_HOME": str(tmp_path), "HOLDFAST_URL": None, "HOLDFAST_TENANT": None, **environment}
        done = CliRunner(env=env).invoke(cli, ["config", "list", "-o", "json", *options])
        assert done.exit_code == 0, done.output
        return {row["name"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}

    staging = settings("--profile", "staging", "--tenant", "other", HOLDFAST_API_KEY="s3cr3t")

    assert settings()["url"] == ("http://127.0.0.1:7070", "default")
    assert settings(HOLDFAST_PROFILE="staging")["url"] == ("http://staging:1", "profile staging")
    assert settings(HOLDFAST_PROFILE="staging", HOLDFAST_URL="http://b:2")["url"] == ("http://b:2", "HOLDFAST_URL")
    assert (staging["tenant"], staging["api_key"][0]) == (("other", "--tenant"), "set")
    assert staging["profiles"][0] == "staging"


@pytest.mark.parametrize(
    "text",
    ['[profiles.a]\napi_key = "s3cr3t"', "[profiles.a]\nport = 1", "profiles = 1", "[plane]", "[profiles", "a = 1"],
)
def test_a_configuration_that_is_wrong_is_exit_code_2_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast/config.toml").write_text(text)

    refused = CliRunner(env={"XDG_CONFIG_HOME": str(tmp_path)}).invoke(cli, ["job", "list"])

    assert refused.exit_code == 2
    assert "config.toml" in one_line(refused)
    assert "s3cr3t" not in refused.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])

    assert done.exit_code == 0
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.parametrize("group", [[], ["job"], ["worker"], ["policy", "matrix"]])
def test_help_names_every_command_with_a_whole_sentence(group: list[str]) -> None:
    shown = CliRunner().invoke(cli, [*group, "--help"]).stdout
    listed: click.Command = cli
    for name in group:
        assert isinstance(listed, click.Group)
        listed = listed.commands[name]

    assert isinstance(listed, click.Group)
    for name, command in listed.commands.items():
        assert re.search(rf"^  {name} +\S", shown, re.MULTILINE)
        assert command.short_help
        assert command.short_help in " ".join(shown.split())


def test_help_is_fast_because_it_loads_nothing() -> None:
    unwanted = ["asyncio", "apsw", "httpx2", "msgspec", "starlette", "uvicorn", "holdfast.client", "holdfast.locks"]
    script = (
        "import sys; from holdfast.cli import cli; cli(sys.argv[1:], standalone_mode=False); "
        f"print(*(m for m in {unwanted} if m in sys.modules), file=sys.stderr)"
    )
    for command in ([], ["up"], ["job", "submit"], ["worker", "run"]):
        shown = subprocess.run(
            [sys.executable, "-c", script, *command, "--help"], capture_output=True, text=True, check=True
        )

        assert "Usage:" in shown.stdout
        assert shown.stderr.split() == []


class Process:
    """`holdfast …` as a process of its own, with what it said on stderr."""

    def __init__(self, *arguments: str, cwd: Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "holdfast", *arguments],
            cwd=cwd,
            env={**os.environ, "XDG_CONFIG_HOME": str(cwd), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def output_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self._process.send_signal(number)
        _, said = self._process.communicate(timeout=30)
        return self._process.returncode, said


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.end(signal.SIGKILL)


def test_up_and_worker_run_a_job_and_end_cleanly(tmp_path: Path, processes: list[Process]) -> None:
    (tmp_path / "sums.py").write_text(TASKS)
    up = Process("up", "--port", "0", "--store", "sqlite:///plane.db", cwd=tmp_path)
    processes.append(up)
    url = up.line().split()[-1]
    worker = Process("worker", "sums:worker", "--slots", "1", cwd=tmp_path, HOLDFAST_URL=url, PYTHONPATH=".")
    processes.append(worker)

    done = CliRunner(env={"HOLDFAST_URL": url, "HOLDFAST_API_KEY": None}).invoke(
        cli, ["job", "submit", "add", "--payload", "[1, 2]", "--wait-timeout", "30", "-o", "json"]
    )
    told = worker.line()
    stopped = worker.end()
    watching = Process("job", "list", "--watch", "-o", "jsonl", cwd=tmp_path, HOLDFAST_URL=url)
    processes.append(watching)
    first = json.loads(watching.output_line())
    interrupted = watching.end(signal.SIGINT)
    ended = up.end()

    assert done.exit_code == 0, done.output
    assert (json.loads(done.stdout)["result"], json.loads(done.stdout)["progress"]) == (3, {"step": 1})
    assert re.fullmatch(rf"worker adder@\S+ takes jobs from {url}: add\n", told)
    assert first["state"] == "SUCCEEDED"
    assert (stopped, interrupted) == ((0, ""), (130, ""))
    # Nothing is said at the end but, where the folder is in memory, what was said of that at the beginning.
    assert (ended[0], [line for line in ended[1].splitlines() if "store.not_safe code=memory-file" not in line]) == (
        0,
        [],
    )


def test_a_plane_on_a_store_that_keeps_nothing_works_and_says_so(tmp_path: Path, processes: list[Process]) -> None:
    up = Process("up", "--port", "0", "--store", "sqlite:///:memory:", cwd=tmp_path)
    processes.append(up)

    told = [up.line(), up.line()]

    assert told[0].startswith("holdfast is up at ")
    assert "store.not_safe code=not-kept" in told[1]
    assert up.end() == (0, "")


def test_a_second_plane_on_a_file_is_told_of_the_first(tmp_path: Path, processes: list[Process]) -> None:
    first = Process("up", "--port", "0", cwd=tmp_path)
    processes.append(first)
    assert first.line().startswith("holdfast is up at ")
    sooner_or_later((tmp_path / "holdfast.db-plane").exists)
    second = Process("up", "--port", "0", cwd=tmp_path)
    processes.append(second)
    assert second.line().startswith("holdfast is up at ")

    told = second.line()
    while "store.not_safe" in told:  # where the folder is in memory
        told = second.line()

    assert "store.not_alone another plane works on holdfast.db. Stop one of them" in told
    assert (first.end()[0], second.end()[0]) == (0, 0)


def test_a_plane_works_without_its_mark_beside_the_file(tmp_path: Path, processes: list[Process]) -> None:
    (tmp_path / "holdfast.db-plane").mkdir()
    up = Process("up", "--port", "0", cwd=tmp_path)
    processes.append(up)

    assert up.line().startswith("holdfast is up at ")
    assert up.end()[0] == 0


def test_a_worker_whose_plane_is_away_says_so_while_it_waits(tmp_path: Path, processes: list[Process]) -> None:
    (tmp_path / "sums.py").write_text(TASKS)
    worker = Process("worker", "sums.py:worker", "--url", "http://127.0.0.1:9", cwd=tmp_path)
    processes.append(worker)

    told = worker.line()

    assert "worker.not_registered url=http://127.0.0.1:9 error=hello: " in told
    assert worker.end()[0] == 0


def test_up_says_what_is_wrong_in_one_line(plane: Plane, tmp_path: Path) -> None:
    port = plane.url.rpartition(":")[2]
    (tmp_path / "notes.db").write_text("these are my notes\n" * 100)
    (tmp_path / "plane.toml").write_text('[plane]\napi_key = "s3cr3t"\n')

    taken = plane.shell("up", "--port", port, "--store", f"sqlite:///{tmp_path}/new.db")
    strange = plane.shell("up", "--port", "0", "--store", f"sqlite:///{tmp_path}/notes.db")
    nowhere = plane.shell("up", "--port", "0", "--store", "mysql://ada:s3cr3t@db")
    exposed = plane.shell("up", "--host", "0.0.0.0", HOLDFAST_API_KEY="")
    written = plane.shell("up", "--config", str(tmp_path / "plane.toml"))
    missing = plane.shell("up", "--config", str(tmp_path / "no.toml"))

    assert [done.exit_code for done in (taken, strange, nowhere, exposed, written, missing)] == [1, 5, 2, 2, 2, 2]
    assert "--port" in one_line(taken)
    assert "not a SQLite database" in one_line(strange)
    assert "--store" in one_line(nowhere)
    assert "HOLDFAST_API_KEY" in one_line(exposed)
    assert "s3cr3t" not in nowhere.output + written.output
    assert "no.toml" in one_line(missing)


@pytest.mark.parametrize("target", ["no_such_module:worker", "sums:nobody", "sums.py:nobody", "missing.py:worker"])
def test_a_worker_that_cannot_be_found_is_exit_code_2(tmp_path: Path, target: str) -> None:
    (tmp_path / "sums.py").write_text(TASKS)

    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: ")


def test_a_module_without_its_worker_is_told_how_to_name_it() -> None:
    done = CliRunner().invoke(cli, ["worker", "sums"])

    assert done.exit_code == 2
    assert "holdfast worker sums:worker" in done.stderr


@pytest.mark.parametrize(
    ("options", "key", "code", "named"),
    [((), "wrong", 5, "HOLDFAST_API_KEY"), (("--pool", "a b"), API_KEY, 2, "$.pool")],
)
def test_a_worker_that_the_plane_refuses_is_told_what_to_look_at(
    options: tuple[str, ...], key: str, code: int, named: str, plane: Plane, tmp_path: Path
) -> None:
    (tmp_path / "sums.py").write_text(TASKS)

    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "worker", "sums.py:worker", *options],
        cwd=tmp_path,
        env={**os.environ, "HOLDFAST_URL": plane.url, "HOLDFAST_API_KEY": key},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert done.returncode == code, done.stderr
    assert named in done.stderr
    assert ("HOLDFAST_API_KEY" in done.stderr) == (code == 5)


def test_files_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast/config.toml").write_bytes("# für alle\n[profiles.default]\ntenant = 'a'\n".encode())
    (tmp_path / "plane.toml").write_bytes("# für alle\n[plane]\nlive_jobs_max = 5\n".encode())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "holdfast", "config", "list", "--config", str(tmp_path / "plane.toml")]
    listed = subprocess.run(command, env={**os.environ, **plain}, capture_output=True, text=True, check=False)

    assert listed.returncode == 0, listed.stderr
    assert "live_jobs_max" in listed.stdout


def holdfast(
    plane: Plane, *arguments: str | bytes, encoding: str = "utf-8", given: bytes = b""
) -> tuple[int, str, str]:
    """The command as a process, on a terminal of that encoding."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env={**os.environ, "HOLDFAST_URL": plane.url, "HOLDFAST_API_KEY": API_KEY, "PYTHONIOENCODING": encoding},
        input=given,
        capture_output=True,
        check=False,
        timeout=30,
    )
    return done.returncode, done.stdout.decode(encoding), done.stderr.decode(encoding)


def test_a_terminal_that_lacks_the_letters_is_told_all_the_same(plane: Plane) -> None:
    """The job is submitted by then: a traceback would have it submitted once more."""
    words = {"was": "für", "日本": "😀"}
    told = holdfast(plane, "job", "submit", "mail", "--payload", json.dumps(words), encoding="latin-1")
    written = holdfast(plane, "job", "list", "-o", "json", encoding="latin-1")

    assert told[0] == 0, told
    assert r"für" in told[1]
    assert r"\u65e5\u672c" in told[1]
    assert json.loads(written[1])[0]["payload"] == words
    assert holdfast(plane, "up", "--help", encoding="latin-1")[0] == 0, "there is an ellipsis in it"


def test_a_document_on_stdin_is_utf_8_whatever_the_locale(plane: Plane) -> None:
    given = '["für"]'.encode()
    told = holdfast(plane, "job", "submit", "mail", "--payload", "-", "-o", "json", encoding="latin-1", given=given)

    assert json.loads(told[1])["payload"] == ["für"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("job", "submit", b"\xff"),
        ("job", "submit", "mail", "--payload", b'"\xff"'),
        ("job", "submit", "mail", "--payload", "-"),
        ("job", "submit", "mail", "--label", b"a=\xff"),
        ("job", "get", b"\xff"),
        ("job", "list", "--topic", b"\xff"),
        ("policy", "check", "-"),
        ("lock", "show", b"\xff"),
        ("lock", "list", b"\xff"),
        ("why", "lock", b"\xff"),
        ("freeze", "--scope", "all", "--reason", b"\xff"),
        ("run", "start", b"\xff"),
    ],
)
def test_bytes_that_are_no_text_are_exit_code_2_in_one_line(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str | bytes, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.db").touch()
    code, _, said = holdfast(plane, *arguments, given=b'"\xff"')

    assert code == 2, said
    assert [line for line in said.splitlines() if "Error" in line] == said.splitlines()[-1:]


@pytest.mark.parametrize(
    "arguments",
    [
        ("job", "submit", "mail", "--timeout", "nan"),
        ("job", "submit", "mail", "--delay", "inf"),
        ("job", "submit", "mail", "--wait-timeout", "nan"),
        ("schedule", "add", "s", "--job", "mail", "--every", "nan"),
        ("webhook", "rotate", "w", "--overlap", "nan"),
    ],
)
def test_no_number_of_seconds_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    """NaN is in every range: a job without a limit was submitted, or waited for until the end of days."""
    refused = CliRunner().invoke(cli, arguments)

    assert refused.exit_code == 2
    assert "no number of seconds" in refused.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_has_no_room_is_told_in_one_line(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "holdfast", "drill", "list"],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert ended.returncode == 1
    assert ended.stderr.decode().splitlines() == ["Error: it could not all be written: No space left on device"]
