#!lua flags=no-writes
-- Names of keys, as SCAN gives them: by a server that has all of the plane's.
--
-- KEYS    head, and one that there never is: while a cluster moves the slot, nobody begins this (write.lua)
-- ARGV    the cursor, the pattern, how many to look at
return redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
