#!lua
-- A server that was restarted or took over from another may have lost the last moments. So that no number is given out
-- twice, they go on far above what it remembers.
--
-- Before that: whether the user may do all that write.lua does (rights.lua), and tell others.
--
-- KEYS    settings, numbers, head
-- ARGV    the server's run id, how far above, a fresh word, the channel of news
local settings, numbers, head = unpack(KEYS)
local lacking = refused(head, {'PUBLISH', ARGV[4], ''})
if lacking then
  return lacking
end
local known = redis.call('HGET', settings, 'server')
if known == ARGV[1] then
  return 0
end
redis.call('HSET', settings, 'server', ARGV[1])
if known then
  for _, name in ipairs({'event', 'letter', 'job', 'record'}) do
    if redis.call('HEXISTS', numbers, name) == 1 then
      redis.call('HINCRBY', numbers, name, ARGV[2])
    end
  end
end
-- Whoever has read the numbers before must read them again.
redis.call('SET', head, ARGV[3])
return 1
