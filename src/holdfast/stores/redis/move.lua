#!lua
-- Let what was filled in beside the plane's keys take their place, all at once.
--
-- KEYS    head, turn, settings
-- ARGV    whose turn it must be, a fresh word, what the names there and the names here begin with, how many are here,
--         those; then the names there. All without what they begin with
-- Answer  1 | 0: the turn has run out, and somebody may have written
local head, turn, settings = unpack(KEYS)
local whose, word, from, to = unpack(ARGV, 1, 4)
if redis.call('GET', turn) ~= whose then
  return 0
end
local here = tonumber(ARGV[5])
for i = 6, 5 + here do
  redis.call('UNLINK', to .. ARGV[i])
end
for i = 6 + here, #ARGV do
  redis.call('RENAME', from .. ARGV[i], to .. ARGV[i])
end
-- The limits of the topics are the plane's: its first start works out anew when to look at what.
redis.call('HDEL', settings, 'topics')
redis.call('SET', head, word)
return 1
