#!lua
-- Decide that what was filled in beside the plane's keys takes their place. From here on it does, whoever brings it to its
-- end, and until then nobody writes: the turn is nobody's, and does not run out.
--
-- KEYS    turn, settings, and one that there never is (write.lua)
-- ARGV    whose turn it must be, the name of this arrival, the keys that are here
-- Answer  1 | 0: the turn has run out, and somebody may have written
local turn, settings = unpack(KEYS)
if redis.call('GET', turn) ~= ARGV[1] then
  return 0
end
for i = 3, #ARGV do
  redis.call('UNLINK', ARGV[i])
end
redis.call('HSET', settings, 'arriving', ARGV[2])
redis.call('SET', turn, 'arriving')
return 1
