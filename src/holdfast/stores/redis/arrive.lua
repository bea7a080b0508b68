#!lua
-- Some of what was filled in beside the plane's keys takes their place. Asking again changes nothing.
--
-- KEYS    settings, and one that there never is (write.lua)
-- ARGV    the arrival that it belongs to, what the names there and the names here begin with, the names without it
-- Answer  1 | 0: that arrival is over
if redis.call('HGET', KEYS[1], 'arriving') ~= ARGV[1] then
  return 0
end
local from, to = ARGV[2], ARGV[3]
for i = 4, #ARGV do
  if redis.call('EXISTS', from .. ARGV[i]) == 1 then
    redis.call('RENAME', from .. ARGV[i], to .. ARGV[i])
  end
end
return 1
