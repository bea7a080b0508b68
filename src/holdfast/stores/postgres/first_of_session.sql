-- Version 2: of a session, the one whose turn it is. Without it each write of the session reads all who wait in it.

CREATE INDEX holdfast_jobs_first_of_session ON holdfast_jobs (tenant, session)
    WHERE session <> '' AND state = 'SCHEDULED' AND NOT behind;
