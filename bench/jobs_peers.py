"""The systems that the plane is compared with, in an environment of their own.

`bench/peers/requirements.lock` says exactly what is installed, hashes checked. After a change of
`requirements.in`: `python -m bench.jobs_peers lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import ROOT, ContenderFailed, Figures

FOLDER = Path(__file__).with_name("peers")
WANTED = FOLDER / "requirements.in"
LOCK = FOLDER / "requirements.lock"
#: Inside of an environment that git ignores already, and that `make clean` removes.
ENVIRONMENT = ROOT / ".venv/peers"
PYTHON = ENVIRONMENT / "bin/python"
READY = ENVIRONMENT / "installed"


def prepare(**_: object) -> None:
    """Install the peers, unless what the lock says is there already."""
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if READY.exists() and READY.read_text() == wanted:
        return
    print("installing Celery, DBOS and Dramatiq into an environment of their own", file=sys.stderr, flush=True)
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    python = str(PYTHON)
    made = _succeeds(sys.executable, "-m", "venv", str(ENVIRONMENT)) and (
        # uv does not read pip's configuration. Where a registry is named only there, pip does the work.
        _succeeds(_uv(), "pip", "sync", "--quiet", "--python", python, "--require-hashes", str(LOCK))
        or _succeeds(python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(LOCK))
    )
    if not made:
        raise ContenderFailed("the peers could not be installed: is the registry of pip or uv reachable?")
    READY.write_text(wanted)


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False).returncode == 0


def described() -> str:
    versions = [line.replace("==", " ") for line in WANTED.read_text().splitlines() if not line.startswith("#")]
    return f"{', '.join(versions)}: default settings, on the same Redis or a file on the same disk"


def run(module: str, what: str, amount: int, **servers: str) -> Figures:
    """The figures that `bench.peers.<module>` prints. Each server's URL is in its environment, as BENCH_<NAME>."""
    environment = {f"BENCH_{name.upper()}": url for name, url in servers.items()}
    with TemporaryDirectory(prefix="holdfast-peer-", ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [PYTHON, "-m", f"bench.peers.{module}", what, str(amount)],
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


def lock() -> None:
    subprocess.run(
        [
            _uv(), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes",
            "--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "python -m bench.jobs_peers lock",
            WANTED.relative_to(ROOT), "-o", LOCK.relative_to(ROOT),
        ],
        cwd=ROOT,
        check=True,
    )  # fmt: skip


def _uv() -> str:
    return f"{sysconfig.get_path('scripts')}/uv"


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        lock()
    else:
        sys.exit("usage: python -m bench.jobs_peers lock")
