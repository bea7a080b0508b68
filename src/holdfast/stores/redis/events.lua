#!lua flags=no-writes
-- Events of a job or a run, all of one moment.
--
-- KEYS    events, the history that has their numbers
-- ARGV    after, limit
-- Answer  entries of the stream
local found = {}
for _, number in ipairs(redis.call('ZRANGE', KEYS[2], '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  local entry = redis.call('XRANGE', KEYS[1], number .. '-0', number .. '-0')[1]
  if entry then
    found[#found + 1] = entry
  end
end
return found
