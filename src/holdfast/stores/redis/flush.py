"""What came of a batch of writes, as commands. Pure: `writer` sends them, all in one script."""

from __future__ import annotations

from holdfast.core.effect import UNSETTLED
from holdfast.stores.batch import BatchLedger, RecordPlace
from holdfast.stores.redis.commands import Commands, Word
from holdfast.stores.redis.index import add_job, list_record, remove_record, replace_job
from holdfast.stores.redis.keys import Keys, inbox_member, joined
from holdfast.stores.redis.load import Loaded, Numbers
from holdfast.stores.redis.rows import (
    effect_row,
    event_row,
    letter_row,
    new_letter_row,
    record_row,
    standing_of,
)


def flush(keys: Keys, loaded: Loaded) -> Commands:
    ledger = loaded.ledger
    commands = Commands()
    last_job = _flush_jobs(commands, keys, loaded)
    _flush_beside_jobs(commands, keys, ledger)
    last_letter = _flush_letters(commands, keys, ledger, loaded.numbers)
    last_record = loaded.numbers.record
    for place in ledger.written_records:
        last_record = _flush_record(commands, keys, loaded, place, last_record)
    if ledger.events:
        commands.put(keys.numbers, "at", ledger.now)
    numbers = Numbers(ledger.last_number, last_letter, last_job, last_record)
    for name, number in numbers._asdict().items():
        if number != getattr(loaded.numbers, name):
            commands.put(keys.numbers, name, number)
    return commands


def sessions(keys: Keys, ledger: BatchLedger) -> list[tuple[str, str, str]]:
    """Those in which it may be somebody else's turn now: their names, queues, and who of them is at work."""
    stirred = set(ledger.stirred_sessions)
    for job_id in (*ledger.replaced, *ledger.new_jobs):
        job = ledger.jobs[job_id]
        if job.session:
            stirred.add((job.tenant, job.session))
    return [(joined(*each), keys.queue(*each), keys.working(*each)) for each in stirred]


def _flush_jobs(commands: Commands, keys: Keys, loaded: Loaded) -> int:
    """Returns the number of the last job that came."""
    ledger, number = loaded.ledger, loaded.numbers.job
    for job_id, look_at in ledger.new_jobs.items():
        number += 1
        add_job(commands, keys, ledger.jobs[job_id], look_at, number)
    for job_id, (_, look_at) in ledger.replaced.items():
        replace_job(commands, keys, loaded.before[job_id], ledger.jobs[job_id], look_at)
    for job_id in ledger.payloads:
        commands.put(keys.payloads, job_id, ledger.jobs[job_id].payload)
    for tenant, key, digest, job_id in ledger.new_keys:
        commands.put(keys.keys, joined(tenant, key), joined(digest, job_id))
        commands.put(keys.key_of, job_id, joined(tenant, key))
    for (tenant, state), delta in ledger.counts.items():
        commands.count(keys.counts, joined(tenant, state.value), delta)
    return number


def _flush_beside_jobs(commands: Commands, keys: Keys, ledger: BatchLedger) -> None:
    for worker, job_id, fence in ledger.settled:
        commands.drop(keys.inbox(worker), inbox_member(job_id, fence))
    for worker, job_id, fence in ledger.sent:
        commands.list(keys.inbox(worker), inbox_member(job_id, fence), fence)
    for origin, key in ledger.written_effects:
        effect = ledger.effects[origin][key]
        member = joined(origin, key)
        commands.put(keys.effects(origin), key, effect_row(effect))
        commands.list(keys.effects_of(effect.tenant), member, effect.prepared_at)
        commands.also("SADD", keys.effected, origin)
        for state in UNSETTLED:
            if state is effect.state:
                commands.list(keys.open(effect.tenant, state), member, effect.prepared_at)
            else:
                commands.drop(keys.open(effect.tenant, state), member)


def _flush_letters(commands: Commands, keys: Keys, ledger: BatchLedger, numbers: Numbers) -> int:
    number = numbers.letter
    for letter in ledger.new_letters:
        number += 1
        commands.put(keys.letters, number, new_letter_row(letter))
        commands.list(keys.letters_of(letter.tenant), number, number)
        commands.list(keys.job_letters(letter.job_id), number, number)
    for replayed in ledger.replays:
        commands.put(keys.letters, replayed, letter_row(ledger.letters[replayed]))
    return number


def _flush_record(commands: Commands, keys: Keys, loaded: Loaded, place: RecordPlace, number: int) -> int:
    """`number` is that of the last record that came; returns what it is now."""
    record, before = loaded.ledger.written_records[place], loaded.standings.get(place)
    if record is None:
        if before is not None:
            remove_record(commands, keys, place, before)
        return number
    name, row = joined(*place), record_row(record)
    commands.put(keys.records, name, row)
    commands.put(keys.bodies, name, record.body)
    list_record(commands, keys, place, before, standing_of(row))
    if before is None:
        number += 1
        commands.list(keys.filed, name, number)
    return number


def told(ledger: BatchLedger) -> list[Word]:
    """The events, as the script wants them: of each its job, its run, its row."""
    words: list[Word] = []
    for event in ledger.events:
        words += (event.job_id, event.run, event_row(event))
    return words
