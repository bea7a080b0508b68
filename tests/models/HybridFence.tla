---------------------------- MODULE HybridFence ----------------------------
(* Fences from a store that forgets: fence = max(last + 1, clock), on a primary whose replica lags
   and is promoted (the Redis promise; `locks/fence.py`, `next_fence`).

   Time runs in ticks. A server's clock shows the true time and something between 0 and `Skew`, and
   may step within that at any moment, forwards or backwards. A replica is promoted at the earliest
   `Gap` ticks after the old primary has stopped. At most `PerTick` fences are issued in a tick.

   Fences grow if Skew < Gap and PerTick = 1; each bound is sharp. The skew must hold for every
   clock whenever it issued a fence, not only for the clocks at the failover: with `Spike`, a
   primary's clock may have been ahead by that much and have been set right in time. From then on
   its fences are a mere counter, until the true time has caught up with them. *)
EXTENDS Integers

CONSTANTS Skew, Gap, PerTick, Spike, TimeMax, Defect

ASSUME Defect \in {"none", "counter only", "clock only", "split brain"}

Servers == {1, 2}
Other(s) == 3 - s

VARIABLES
    time,      \* the true time
    ahead,     \* by how much each server's clock is ahead of it
    last,      \* by server: the last fence that it knows of
    primary,   \* the server that grants, 0 while there is none
    old,       \* the primary of before
    down,      \* since when there is none
    issued,    \* fences issued in this tick
    \* What only the invariants look at:
    highest,   \* the highest fence ever issued
    repeated,  \* whether one was issued that was not above all before
    lost       \* whether a failover has lost one

vars == <<time, ahead, last, primary, old, down, issued, highest, repeated, lost>>

Init ==
    /\ time = 1 /\ ahead \in [Servers -> 0..Skew] /\ last = [s \in Servers |-> 0]
    /\ primary = 1 /\ old = 0 /\ down = 0 /\ issued = 0
    /\ highest = 0 /\ repeated = FALSE /\ lost = FALSE

Clock(s) == time + ahead[s]
Max(a, b) == IF a > b THEN a ELSE b

NextFence(s) ==
    CASE Defect = "counter only" -> last[s] + 1
      [] Defect = "clock only" -> Clock(s)
      [] OTHER -> Max(last[s] + 1, Clock(s))

Grants(s) == s = primary \/ (s = old /\ Defect = "split brain")

Grant(s) ==
    /\ Grants(s) /\ issued < PerTick
    /\ issued' = issued + 1
    /\ last' = [last EXCEPT ![s] = NextFence(s)]
    /\ repeated' = (repeated \/ NextFence(s) <= highest)
    /\ highest' = Max(highest, NextFence(s))
    /\ UNCHANGED <<time, ahead, primary, old, down, lost>>

Replicate ==
    /\ primary # 0 /\ last[Other(primary)] # last[primary]
    /\ last' = [last EXCEPT ![Other(primary)] = last[primary]]
    /\ UNCHANGED <<time, ahead, primary, old, down, issued, highest, repeated, lost>>

Tick ==
    /\ time < TimeMax
    /\ time' = time + 1
    /\ issued' = 0
    /\ UNCHANGED <<ahead, last, primary, old, down, highest, repeated, lost>>

(* A clock that is set. *)
StepClock(s) ==
    /\ \E a \in 0..Max(Skew, IF s = primary THEN Spike ELSE 0) : a # ahead[s] /\ ahead' = [ahead EXCEPT ![s] = a]
    /\ UNCHANGED <<time, last, primary, old, down, issued, highest, repeated, lost>>

(* By the time it fails, the primary's clock is right again, whatever it was before. *)
Fail ==
    /\ primary # 0 /\ ahead[primary] <= Skew
    /\ primary' = 0 /\ old' = primary /\ down' = time
    /\ UNCHANGED <<time, ahead, last, issued, highest, repeated, lost>>

(* The old primary comes back as a replica of the new one, whose `last` will overwrite its own. *)
Promote ==
    /\ primary = 0 /\ time >= down + Gap
    /\ primary' = Other(old)
    /\ lost' = (lost \/ last[Other(old)] < highest)
    /\ UNCHANGED <<time, ahead, last, old, down, issued, highest, repeated>>

Next == Tick \/ Replicate \/ Fail \/ Promote \/ \E s \in Servers : Grant(s) \/ StepClock(s)

Spec == Init /\ [][Next]_vars

FencesGrow == ~repeated

(* Must be violated: if no failover lost anything, growing fences would be nothing to show. *)
NothingLost == ~lost
=============================================================================
