#!lua
-- A server that was restarted or took over from another may have lost the last moments. So that no number is given out
-- twice, they go on far above what it remembers.
--
-- Before that: whether the user may do all that write.lua does. It would find out in the middle of it.
--
-- KEYS    settings, numbers, head
-- ARGV    the server's run id, how far above, a fresh word, the channel of news
local settings, numbers, head = unpack(KEYS)
local asked = {
  {'DEL', head}, {'EXISTS', head}, {'GET', head}, {'SET', head, ''},
  {'HDEL', head, ''}, {'HGET', head, ''}, {'HINCRBY', head, '', '1'}, {'HSET', head, '', ''},
  {'SADD', head, ''}, {'SREM', head, ''},
  {'XADD', head, '*', '', ''}, {'XDEL', head, '1'},
  {'ZADD', head, '1', ''}, {'ZRANGE', head, '0', '0'}, {'ZREM', head, ''},
  {'TYPE', head}, {'PUBLISH', ARGV[4], ''},
}
for _, words in ipairs(asked) do
  if not redis.acl_check_cmd(unpack(words)) then
    return redis.error_reply('NOPERM this user may not ' .. words[1] .. ' ' .. words[2])
  end
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
