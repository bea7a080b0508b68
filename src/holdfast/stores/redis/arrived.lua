#!lua
-- All of it is in its place: let planes write.
--
-- KEYS    head, turn, settings
-- ARGV    the arrival, a fresh word
-- Answer  1 | 0: that arrival was over before
local head, turn, settings = unpack(KEYS)
if redis.call('HGET', settings, 'arriving') ~= ARGV[1] then
  return 0
end
-- The limits of the topics are the plane's: its first start works out anew when to look at what.
redis.call('HDEL', settings, 'arriving', 'topics')
redis.call('SET', head, ARGV[2])
redis.call('DEL', turn)
return 1
