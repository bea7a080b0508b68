-------------------------------- MODULE Lock --------------------------------
(* Leases, fences and a guarded resource (promises P1 and P3 of the design).

   Each grant is one tenure of somebody: a read-modify-write under one lease. Leases lapse at any
   moment, and nobody ever notices: the trust window makes that rare, so nothing here may rest on
   it. Whatever was sent may arrive at any later moment, out of order, again and again, or never;
   whoever is paused before sending is the same as a message that is late. Who has which tenure
   plays no part: six grants are three clients of two rounds each, and any other six.

   `locks/fence.py` is `Accepts` below. `Defect` takes one rule away; each must then be missed. *)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS Grants, Defect

ASSUME Defect \in {"none", "split fence", "no fence", "unfenced read", "no seq", "strict fence", "blind release"}

VARIABLES
    owner,   \* the store: the tenure that has the lock, 0 if it is free
    last,    \* the store: the last fence it has given out
    tenure,  \* the tenures, in the order of their grants
    mark,    \* the resource: the highest (fence, seq) it has accepted
    value,   \* the resource: the set of updates in it
    \* What only the invariants look at:
    live,    \* tenures that have neither lapsed nor been given back
    latest   \* the (fence, seq) accepted last

vars == <<owner, last, tenure, mark, value, live, latest>>

Tenures == 1..Len(tenure)

Below(p, q) == p[1] < q[1] \/ (p[1] = q[1] /\ p[2] < q[2])
Higher(p, q) == IF Below(p, q) THEN q ELSE p

Init ==
    /\ owner = 0 /\ last = 0 /\ tenure = <<>> /\ live = {}
    /\ mark = <<0, 0>> /\ value = {}
    /\ latest = <<0, 0>>

----------------------------------------------------------------------------
(* The lock store. *)

Began(fence) == [at |-> IF fence = 0 THEN "unnumbered" ELSE "reading", fence |-> fence, seq |-> 1, seen |-> {}]

(* The fence is issued in the same step as the grant. *)
Acquire ==
    /\ owner = 0 /\ Len(tenure) < Grants
    /\ owner' = Len(tenure) + 1
    /\ live' = live \union {owner'}
    /\ last' = IF Defect = "split fence" THEN last ELSE last + 1
    /\ tenure' = Append(tenure, Began(IF Defect = "split fence" THEN 0 ELSE last + 1))
    /\ UNCHANGED <<mark, value, latest>>

(* Only where the fence is split from the grant: first SETNX, then INCR. *)
TakeNumber(t) ==
    /\ tenure[t].at = "unnumbered"
    /\ last' = last + 1
    /\ tenure' = [tenure EXCEPT ![t] = Began(last + 1)]
    /\ UNCHANGED <<owner, mark, value, live, latest>>

Lapse ==
    /\ owner # 0
    /\ owner' = 0
    /\ live' = live \ {owner}
    /\ UNCHANGED <<last, tenure, mark, value, latest>>

(* Sent when the update was acknowledged; whoever was not told lets the lease lapse. *)
Release(t) ==
    /\ tenure[t].at = "done"
    /\ owner = t \/ (owner # 0 /\ Defect = "blind release")
    /\ owner' = 0
    /\ UNCHANGED <<last, tenure, mark, value, live, latest>>

----------------------------------------------------------------------------
(* The resource. Equality is the same operation again: it is answered and changes nothing. *)

Repeats(pair) == pair = mark /\ Defect # "no seq"

Accepts(pair) ==
    CASE Defect = "no fence" -> pair[1] # mark[1] \/ pair[2] > mark[2]
      [] Defect = "no seq" -> pair[1] >= mark[1]
      [] Defect = "strict fence" -> pair[1] > mark[1]
      [] OTHER -> Below(mark, pair)

Admit(pair, after) ==
    IF Repeats(pair)
    THEN UNCHANGED <<mark, latest, value>>
    ELSE mark' = Higher(mark, pair) /\ latest' = pair /\ value' = after

(* The read is the first operation of a tenure. It raises the mark whether or not its answer arrives. *)
Read(t) ==
    LET pair == <<tenure[t].fence, 1>> IN
    /\ tenure[t].at = "reading"
    /\ IF Defect = "unfenced read"
       THEN UNCHANGED <<mark, latest, value>>
       ELSE (Accepts(pair) \/ Repeats(pair)) /\ Admit(pair, value)
    /\ tenure' \in {tenure, [tenure EXCEPT ![t].at = "writing", ![t].seen = value]}
    /\ UNCHANGED <<owner, last, live>>

(* Whoever waits in vain for the answer to its first write (seq 2) sends another one (seq 3), from
   what it has read: it does not know of the first. When it does that shows only when the other
   one arrives. *)
Sent(t, seq) == tenure[t].at = "writing" \/ (tenure[t].at = "done" /\ seq <= tenure[t].seq)

Update(t, seq) == <<t, seq>>

Write(t, seq) ==
    LET pair == <<tenure[t].fence, seq>>
        reached == IF seq > tenure[t].seq THEN seq ELSE tenure[t].seq
    IN
    /\ Sent(t, seq)
    /\ Accepts(pair) \/ Repeats(pair)
    /\ Admit(pair, tenure[t].seen \union {Update(t, seq)})
    /\ \/ /\ tenure' = [tenure EXCEPT ![t].seq = reached]
          /\ UNCHANGED live
       \/ \* It is told, and gives the lock back.
          /\ tenure[t].at = "writing" /\ seq = reached
          /\ tenure' = [tenure EXCEPT ![t].at = "done", ![t].seq = reached]
          /\ live' = live \ {t}
    /\ UNCHANGED <<owner, last>>

----------------------------------------------------------------------------

Next ==
    \/ Acquire
    \/ Lapse
    \/ \E t \in Tenures :
        \/ TakeNumber(t)
        \/ Release(t)
        \/ Read(t)
        \/ \E seq \in {2, 3} : Write(t, seq)

Spec == Init /\ [][Next]_vars

(* A later grant has a higher fence. *)
FencesGrow ==
    \A t \in Tenures : \A s \in 1..(t - 1) :
        (tenure[s].fence # 0 /\ tenure[t].fence # 0) => tenure[s].fence < tenure[t].fence

(* Whatever was accepted last carries the highest (fence, seq) of all that was accepted. *)
AcceptedGrow == latest = mark

(* What somebody was told is in stays in. *)
NoUpdateLost == \A t \in Tenures : tenure[t].at = "done" => Update(t, tenure[t].seq) \in value

(* At most one tenure at a time has neither lapsed nor been given back. *)
OneHolder == Cardinality(live) <= 1

(* Whatever nothing has overtaken is accepted: the holder is never shut out by its own mark. *)
HolderServed ==
    owner # 0 => \A seq \in {2, 3} :
        LET pair == <<tenure[owner].fence, seq>> IN (Sent(owner, seq) /\ Below(mark, pair)) => Accepts(pair)
=============================================================================
