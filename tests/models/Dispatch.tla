------------------------------ MODULE Dispatch ------------------------------
(* The walk of one job from SCHEDULED to its end, with the bus apart from the store (promises P4 to
   P7 of the design; `flow/dispatch.py`, `flow/execute.py`, `flow/record.py`, `core/recovery.py`).

   Jobs do not meet in these rules, so one is enough; any worker may take any delivery, which is
   more than they may in truth. The store replaces the job only from the version that the writer
   has read; the bus loses, delays, repeats and reorders. The job's lock is left out: it may lapse
   at any moment, so nothing here may rest on it. Time is left out as well: the reconciler may find
   any job overdue, and a worker's lease may lapse while it works; the worker then goes on as a
   zombie and reports when it likes, as often as it likes.

   Faults are bounded, as an outage is. `Defect` takes one rule away; each must then be missed. *)
EXTENDS Integers, Sequences

CONSTANTS Schedulers, AttemptsMax, UnstartedMax, FaultsMax, Defect

ASSUME Defect \in {"none", "publish first", "publish unanswered", "blind rollback", "rollback takes fence back",
                   "blind dispatch", "fence reused", "outcome unfenced", "no dispatch timeout", "no lease expiry"}

VARIABLES
    job,         \* the row in the store
    scheduler,   \* what each scheduler is doing, and the row as it knows it
    bus,         \* the fences of all deliveries that were ever published
    running,     \* what the workers run, as far as they know: one entry per started attempt
    faults,      \* how many have happened
    \* What only the invariants look at:
    dispatched,  \* the fences whose DISPATCHED was committed
    sent,        \* how often each fence was published
    ends,        \* how often each started attempt has ended: by its outcome, or given up for lost
    verdict      \* the first terminal state, "" before

vars == <<job, scheduler, bus, running, faults, dispatched, sent, ends, verdict>>

Terminal == {"SUCCEEDED", "FAILED", "CANCELLED"}
Fences == 1..(FaultsMax + (AttemptsMax + 1) * (UnstartedMax + 1))

Idle == [at |-> "idle"]

Init ==
    /\ job = [state |-> "SCHEDULED", version |-> 1, fence |-> 0, attempts |-> 0, unstarted |-> 0]
    /\ scheduler = [s \in Schedulers |-> Idle]
    /\ bus = {} /\ running = {} /\ faults = 0
    /\ dispatched = {} /\ sent = [f \in Fences |-> 0] /\ ends = <<>> /\ verdict = ""

Replace(row) ==
    /\ job' = [row EXCEPT !.version = job.version + 1]
    /\ verdict' = IF verdict = "" /\ row.state \in Terminal THEN row.state ELSE verdict

Fault == faults < FaultsMax /\ faults' = faults + 1

Becomes(s, state) == scheduler' = [scheduler EXCEPT ![s] = state]

----------------------------------------------------------------------------
(* A scheduler: look, write DISPATCHED, publish, and roll back if that failed. *)

Dispatching(row) ==
    [row EXCEPT !.state = "DISPATCHED",
                !.fence = IF Defect = "fence reused" /\ row.fence > 0 THEN row.fence ELSE row.fence + 1]

Put(row) ==
    /\ bus' = bus \union {row.fence}
    /\ sent' = [sent EXCEPT ![row.fence] = @ + 1]

Look(s) ==
    /\ scheduler[s].at = "idle" /\ job.state = "SCHEDULED"
    /\ Becomes(s, [at |-> "writing", row |-> Dispatching(job)])
    /\ IF Defect = "publish first" THEN Put(Dispatching(job)) ELSE UNCHANGED <<bus, sent>>
    /\ UNCHANGED <<job, running, faults, dispatched, ends, verdict>>

Unmoved(s) == job.version = scheduler[s].row.version \/ Defect = "blind dispatch"

Committed(s) ==
    /\ Replace(scheduler[s].row)
    /\ dispatched' = dispatched \union {scheduler[s].row.fence}

(* Written; or somebody else has moved the job on, and there is nothing to do. *)
WriteDispatched(s) ==
    /\ scheduler[s].at = "writing"
    /\ IF Unmoved(s)
       THEN /\ Committed(s)
            /\ Becomes(s, IF Defect = "publish first" THEN Idle ELSE [at |-> "publishing", row |-> job'])
       ELSE /\ Becomes(s, Idle)
            /\ UNCHANGED <<job, dispatched, verdict>>
    /\ UNCHANGED <<bus, running, faults, sent, ends>>

(* The store did not answer: written or not, nothing is published. *)
WriteUnanswered(s) ==
    /\ scheduler[s].at = "writing" /\ Fault
    /\ \/ Unmoved(s) /\ Committed(s)
       \/ UNCHANGED <<job, dispatched, verdict>>
    /\ Becomes(s, IF Defect = "publish unanswered" THEN [at |-> "publishing", row |-> scheduler[s].row] ELSE Idle)
    /\ UNCHANGED <<bus, running, sent, ends>>

Publish(s) ==
    /\ scheduler[s].at = "publishing"
    /\ Put(scheduler[s].row)
    /\ Becomes(s, Idle)
    /\ UNCHANGED <<job, running, faults, dispatched, ends, verdict>>

(* The publish failed, or it was applied and its answer lost: the scheduler cannot tell. *)
PublishFails(s) ==
    /\ scheduler[s].at = "publishing" /\ Fault
    /\ Put(scheduler[s].row) \/ UNCHANGED <<bus, sent>>
    /\ Becomes(s, [at |-> "rolling back", row |-> scheduler[s].row])
    /\ UNCHANGED <<job, running, dispatched, ends, verdict>>

(* From the very version that this dispatch wrote, else not at all. The fence stays: a delivery that
   got through after all carries it. *)
RollBack(s) ==
    LET row == scheduler[s].row IN
    /\ scheduler[s].at = "rolling back"
    /\ IF job.version = row.version \/ Defect = "blind rollback"
       THEN Replace([row EXCEPT !.state = "SCHEDULED",
                                !.fence = IF Defect = "rollback takes fence back" THEN @ - 1 ELSE @])
       ELSE UNCHANGED <<job, verdict>>
    /\ Becomes(s, Idle)
    /\ UNCHANGED <<bus, running, faults, dispatched, sent, ends>>

(* Killed wherever it stands, between the write and the publish too; or its rollback failed. *)
Die(s) ==
    /\ scheduler[s].at # "idle" /\ Fault
    /\ Becomes(s, Idle)
    /\ UNCHANGED <<job, bus, running, dispatched, sent, ends, verdict>>

----------------------------------------------------------------------------
(* Bus, workers, reconciler. Reading the job and replacing it by its version is one step here. *)

(* The delivery stays: it may come again. One that does not fit changes nothing, and one that is
   lost is never taken. *)
Start(fence) ==
    /\ job.state = "DISPATCHED" /\ job.fence = fence
    /\ Replace([job EXCEPT !.state = "RUNNING", !.attempts = @ + 1])
    /\ ends' = Append(ends, 0)
    /\ running' = running \union {[attempt |-> Len(ends'), fence |-> fence]}
    /\ UNCHANGED <<scheduler, bus, faults, dispatched, sent>>

End(attempt) == ends' = [ends EXCEPT ![attempt] = @ + 1]

(* The outcome counts if the job is RUNNING under the reporter's fence; zombies report like anybody. *)
Report(r) ==
    /\ job.state = "RUNNING"
    /\ job.fence = r.fence \/ Defect = "outcome unfenced"
    /\ End(r.attempt)
    /\ \/ Replace([job EXCEPT !.state = "SUCCEEDED"])
       \/ Replace([job EXCEPT !.state = IF job.attempts < AttemptsMax THEN "SCHEDULED" ELSE "FAILED"])
    /\ UNCHANGED <<scheduler, bus, running, faults, dispatched, sent>>

(* Nobody took it in time: again, or, once too often, no more. *)
Requeue ==
    /\ job.state = "DISPATCHED" /\ Defect # "no dispatch timeout"
    /\ LET unstarted == job.unstarted + 1 IN
       IF unstarted >= UnstartedMax * (job.attempts + 1)
       THEN Replace([job EXCEPT !.state = "FAILED", !.unstarted = unstarted])
       ELSE Replace([job EXCEPT !.state = "SCHEDULED", !.unstarted = unstarted])
    /\ UNCHANGED <<scheduler, bus, running, faults, dispatched, sent, ends>>

(* The worker's lease has lapsed, dead or not. *)
GiveUp ==
    /\ job.state = "RUNNING" /\ Defect # "no lease expiry"
    /\ End(Len(ends))
    /\ Replace([job EXCEPT !.state = IF job.attempts < AttemptsMax THEN "SCHEDULED" ELSE "FAILED"])
    /\ UNCHANGED <<scheduler, bus, running, faults, dispatched, sent>>

Cancel ==
    /\ job.state \in {"SCHEDULED", "DISPATCHED"}
    /\ Replace([job EXCEPT !.state = "CANCELLED"])
    /\ UNCHANGED <<scheduler, bus, running, faults, dispatched, sent, ends>>

----------------------------------------------------------------------------

(* What goes on by itself, as long as it can. No fault and no cancellation is among it. *)
Progress(s) == Look(s) \/ WriteDispatched(s) \/ Publish(s) \/ RollBack(s)
Recovery == Requeue \/ GiveUp

Next ==
    \/ \E s \in Schedulers :
        \/ Look(s) \/ WriteDispatched(s) \/ WriteUnanswered(s)
        \/ Publish(s) \/ PublishFails(s) \/ RollBack(s) \/ Die(s)
    \/ \E fence \in bus : Start(fence)
    \/ \E r \in running : Report(r)
    \/ Requeue \/ GiveUp \/ Cancel

Spec == Init /\ [][Next]_vars /\ \A s \in Schedulers : WF_vars(Progress(s)) /\ WF_vars(Recovery)

(* A delivery is on the bus only if its DISPATCHED was committed before. *)
StateBeforePublish == bus \subseteq dispatched

(* A fence is published once, so a delivery names one dispatch. *)
OnePublishPerFence == \A f \in Fences : sent[f] <= 1

(* A started attempt ends once: by its own outcome, or given up for lost; and no other ends for it. *)
OneEndPerAttempt == \A a \in DOMAIN ends : ends[a] <= 1

TerminalIsFinal == verdict # "" => job.state = verdict

(* No job is lost. *)
EveryJobEnds == <>(job.state \in Terminal)
=============================================================================
