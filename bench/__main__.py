"""`python -m bench`: measure, print the table, keep it in bench/report.md. Exits 1 if a goal is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from bench import (
    guards,
    handoff,
    importing,
    jobs_calls,
    jobs_full_store,
    jobs_latency,
    jobs_nats,
    jobs_postgres,
    jobs_redis,
    jobs_redispatch,
    jobs_throughput,
    jobs_workers,
    policy,
    postgres_free,
    redis_free,
    redis_threads,
    renewal,
    sqlite_file,
    workflow_chain,
)
from bench.harness import ROOT, ContenderFailed, Sample, repeat
from bench.places import Places
from bench.subject import Subject
from bench.table import MISSED, Row, as_text

SUBJECTS: Sequence[Subject] = (
    redis_free.FIFTY_TASKS,
    redis_free.ONE_TASK,
    redis_threads.THREADS,
    handoff.BETWEEN,
    handoff.INSIDE,
    renewal.RENEWAL,
    postgres_free.POSTGRES,
    sqlite_file.SQLITE,
    guards.POSTGRES,
    guards.SQLITE,
    importing.IMPORT,
    jobs_throughput.THROUGHPUT,
    jobs_postgres.POSTGRES,
    jobs_redis.REDIS,
    jobs_nats.NATS,
    jobs_calls.POSTGRES,
    jobs_calls.REDIS,
    jobs_workers.WORKERS,
    jobs_latency.LATENCY,
    jobs_full_store.FULL_STORE,
    jobs_redispatch.REDISPATCH,
    workflow_chain.CHAIN,
    policy.POLICY,
)
REPORT = ROOT / "bench/report.md"


def main() -> int:
    names = [subject.name for subject in SUBJECTS]
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure locks and jobs against others.")
    parser.add_argument("--only", metavar="NAME", choices=names, type=_spelled, action="append", help=", ".join(names))
    parser.add_argument("--repetitions", metavar="N", type=int, help="instead of each subject's own number")
    parser.add_argument("--quick", action="store_true", help="a third of the repetitions, smaller stores: a first look")
    asked = parser.parse_args()

    started = time.monotonic()
    places = Places()
    rows: list[Row] = []
    chosen = [subject for subject in SUBJECTS if not asked.only or subject.name in asked.only]
    try:
        for subject in chosen:
            repetitions = asked.repetitions or max(1, subject.repetitions // 3 if asked.quick else subject.repetitions)
            rows += measured(subject, repetitions, places, quick=asked.quick)
        peers = dict.fromkeys(environment for subject in chosen for environment in subject.peers)
        conditions = [*places.described(), *(environment.described() for environment in peers)]
    finally:
        places.close()

    spent = time.monotonic() - started
    report = "\n".join([as_text(rows), "", *(f"- {line}" for line in conditions), f"- measured in {spent:.0f} s"])
    print(report)
    partial = bool(asked.only or asked.quick or asked.repetitions)
    if not partial:
        REPORT.write_text(f"# Benchmarks\n\n{HOW_TO_READ}\n\n{report}\n")
    return int(any(row.verdict.startswith(MISSED) for row in rows))


HOW_TO_READ = (
    "Made by `make bench`. A ratio is computed inside a repetition and is the median of all of them; "
    "the absolute figures belong to this machine on this day."
)


def measured(subject: Subject, repetitions: int, places: Places, *, quick: bool) -> list[Row]:
    """The subject's rows; a single one that says why, if it could not be measured."""
    samples: list[Sample] = []
    started = time.monotonic()
    try:
        place = {"url": places.url(subject.server), "seconds": subject.seconds, **subject.arguments}
        place.update(subject.quick_arguments if quick else {})
        if subject.bus:
            place["bus_url"] = places.url(subject.bus)
        for environment in subject.peers:
            environment.install()
        if subject.prepare is not None:
            subject.prepare(**place)
        used = [subject.server, subject.bus]
        for sample in repeat(subject.contenders, repetitions, place, before=lambda: places.clean(*used)):
            samples.append(sample)
            shown = "; ".join(f"{name} {_brief(figures)}" for name, figures in sorted(sample.items()))
            took = time.monotonic() - started
            print(f"{subject.name} {len(samples)}/{repetitions} ({took:.0f} s): {shown}", file=sys.stderr, flush=True)
    except ContenderFailed as failure:
        print(failure, file=sys.stderr, flush=True)
        return [Row(work=subject.name, ours="could not be measured", verdict=MISSED)]
    return subject.rows(samples)


def _spelled(name: str) -> str:
    return name.replace("_", "-")


def _brief(figures: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in figures.items())


if __name__ == "__main__":
    sys.exit(main())
