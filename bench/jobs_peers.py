"""The systems that the plane is compared with, in environments of their own.

`bench/peers/<environment>.lock` says exactly what is installed, hashes checked. After a change of an
`.in` file: `python -m bench.jobs_peers lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import ROOT, ContenderFailed, Figures

FOLDER = Path(__file__).with_name("peers")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Peers that can be installed together, what they want being in `peers/<wanted>.in`."""

    wanted: str
    #: Inside of an environment that git ignores already, and that `make clean` removes.
    folder: Path
    python_least: tuple[int, int] = (3, 11)
    #: Whether the others are measured without them where the registry does not have them for this machine.
    may_be_missing: bool = False
    #: A command among what is installed, whose `--version` says more than the names of the packages do.
    command: str = ""
    note: str

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def is_installed(self) -> bool:
        ready = self.folder / "installed"
        return ready.exists() and ready.read_text() == self._fingerprint()

    def install(self) -> None:
        """Install the peers, unless what the lock says is there already, or there is no Python for them."""
        if self.is_installed:
            return
        interpreter = _find_interpreter(self.python_least)
        if interpreter is None:
            print(f"{self._names()}: left out, there is no Python {self._least()} here", file=sys.stderr, flush=True)
            return
        print(f"installing {self._names()} into an environment of their own", file=sys.stderr, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        python, lock = str(self.python), str(self._file("lock"))
        made = _succeeds(interpreter, "-m", "venv", str(self.folder)) and (
            # uv does not read pip's configuration. Where a registry is named only there, pip does the work.
            _succeeds(_uv(), "pip", "sync", "--quiet", "--python", python, "--require-hashes", lock)
            or _succeeds(python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", lock)
        )
        if not made and self.may_be_missing:
            print(f"{self._names()}: left out, could not be installed", file=sys.stderr, flush=True)
            return
        if not made:
            raise ContenderFailed(f"{self._names()} could not be installed: is the registry of pip or uv reachable?")
        (self.folder / "installed").write_text(self._fingerprint())

    def described(self) -> str:
        if not self.is_installed:
            why = "could not be installed" if self.may_be_missing else f"there is no Python {self._least()} here"
            return f"{self._names()}: not measured, {why}"
        return f"{self._names()}: {self.note}{self._version()}"

    def run(self, module: str, what: str, amount: int, **named: str) -> Figures:
        """The figures that `bench.peers.<module>` prints. It finds what is named as BENCH_<NAME>: servers, mostly."""
        environment = {f"BENCH_{name.upper()}": value for name, value in named.items()}
        with TemporaryDirectory(prefix="holdfast-peer-", ignore_cleanup_errors=True) as folder:
            done = subprocess.run(
                [self.python, "-m", f"bench.peers.{module}", what, str(amount)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                log = Path(folder, "worker.log")
                told = log.read_text(errors="replace")[-1500:] if log.exists() else "was not started"
                raise RuntimeError(f"{done.stderr[-1500:]}\nits worker:\n{told}")
        figures: Figures = json.loads(done.stdout.splitlines()[-1])
        return figures

    def lock(self) -> None:
        subprocess.run(
            [
                _uv(), "pip", "compile", "--quiet", "--universal", "--python-version", self._least(), "--generate-hashes",
                "--no-emit-index-url", "--no-emit-find-links",
                "--custom-compile-command", "python -m bench.jobs_peers lock",
                self._file("in").relative_to(ROOT), "-o", self._file("lock").relative_to(ROOT),
            ],
            cwd=ROOT,
            check=True,
        )  # fmt: skip

    def _version(self) -> str:
        if not self.command:
            return ""
        asked = [f"{self.folder}/bin/{self.command}", "--version"]
        return f"; {subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()}"

    def _file(self, ending: str) -> Path:
        return FOLDER / f"{self.wanted}.{ending}"

    def _fingerprint(self) -> str:
        return hashlib.sha256(self._file("lock").read_bytes()).hexdigest()

    def _names(self) -> str:
        lines = self._file("in").read_text().splitlines()
        return ", ".join(line.replace("==", " ") for line in lines if not line.startswith("#"))

    def _least(self) -> str:
        return ".".join(map(str, self.python_least))


SYSTEMS = Environment(
    wanted="requirements",
    folder=ROOT / ".venv/peers",
    note="default settings, on the same server or a file on the same disk",
)
QUEUES = Environment(
    wanted="requirements-async",
    folder=ROOT / ".venv/peers-async",
    note="on the same servers; default settings but for the number of jobs at once, see the rows",
)
OBAN = Environment(
    wanted="requirements-oban",
    folder=ROOT / ".venv/peers-oban",
    python_least=(3, 12),
    note="the open one, on the same Postgres; a newer Python than ours",
)
TEMPORAL = Environment(
    wanted="requirements-temporal",
    folder=ROOT / ".venv/peers-temporal",
    may_be_missing=True,
    command="temporal",
    note="the dev server on a SQLite file (WAL, synchronous FULL), default settings otherwise",
)
ENVIRONMENTS = (SYSTEMS, QUEUES, OBAN, TEMPORAL)


def _find_interpreter(least: tuple[int, int]) -> str | None:
    """Ours, one of a newer name, or one that the same tool has put beside ours."""
    named = filter(None, (shutil.which(f"python3.{minor}") for minor in range(least[1], least[1] + 4)))
    beside = map(str, sorted(Path(sys.base_prefix).parent.glob("*/bin/python3")))
    question = f"import sys; sys.exit(sys.version_info < {least})"
    candidates = (sys.executable, *named, *beside)
    return next((each for each in candidates if _succeeds(each, "-c", question, quiet=True)), None)


def _succeeds(*command: str, quiet: bool = False) -> bool:
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL if quiet else None).returncode == 0


def _uv() -> str:
    return f"{sysconfig.get_path('scripts')}/uv"


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        for each in ENVIRONMENTS:
            each.lock()
    else:
        sys.exit("usage: python -m bench.jobs_peers lock")
