-- Goes before scripts that need it (link.py). A server refuses a command in the middle of a script when what comes before it is done,
-- and half a write is nothing that anybody could go on from: whether the user may do all that write.lua does is asked first.
--
-- `key` is any of the plane's. Answer  nothing | the error to answer with
local function refused(key, ...)
  local asked = {
    {'DEL', key}, {'EXISTS', key}, {'GET', key}, {'SET', key, ''},
    {'HDEL', key, ''}, {'HGET', key, ''}, {'HINCRBY', key, '', '1'}, {'HSET', key, '', ''},
    {'SADD', key, ''}, {'SREM', key, ''},
    {'XADD', key, '*', '', ''}, {'XDEL', key, '1'},
    {'ZADD', key, '1', ''}, {'ZRANGE', key, '0', '0'}, {'ZREM', key, ''},
    {'TYPE', key}, ...,
  }
  for _, words in ipairs(asked) do
    if not redis.acl_check_cmd(unpack(words)) then
      return redis.error_reply('NOPERM this user may not ' .. words[1] .. ' ' .. words[2])
    end
  end
end
