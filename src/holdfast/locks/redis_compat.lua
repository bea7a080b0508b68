-- A lock that redis-py's own Lock can share: the key holds exactly the token.
--
--   KEYS[1]  the lock: string, value = token; with a ttl unless the lock has no timeout
--   KEYS[2]  {lock}:holdfast: hash, lives for a day after its last use
--              fence     the last fence granted
--              request   the acquire that it was granted to; callers may choose tokens, and choose the same
--              released  the request whose release was carried out last
--
--   ARGV  operation, token, request, then:
--     acquire    ttl in ms, or "" for none  -> fence as text, or "" if somebody else holds it
--     undo                                  -> 1 if this very request had got it, else 0
--     release                               -> 1, or 0 if not owned
--     extend     ms, 1 to replace the ttl or 0 to add to it -> 1, or 0
--     reacquire  ms                         -> 1, or 0
local REMEMBER_MS = 86400000

local operation, token, request = ARGV[1], ARGV[2], ARGV[3]
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then -- a key of another type: somebody else's, as SET NX would say of it
  return operation == 'acquire' and '' or held
end

if operation == 'acquire' then
  if held and (held ~= token or redis.call('HGET', KEYS[2], 'request') ~= request) then
    return ''
  end
  if held then
    -- The same request again: its reply was lost, and the client sent it once more.
    return redis.call('HGET', KEYS[2], 'fence')
  end
  local time = redis.call('TIME')
  local clock = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', KEYS[2], 'fence') or '0')
  local fence = string.format('%.0f', math.max(last + 1, clock))
  if ARGV[4] == '' then
    redis.call('SET', KEYS[1], token)
  else
    redis.call('SET', KEYS[1], token, 'PX', ARGV[4])
  end
  redis.call('HSET', KEYS[2], 'fence', fence, 'request', request)
  redis.call('PEXPIRE', KEYS[2], REMEMBER_MS)
  return fence
end

if operation == 'undo' and redis.call('HGET', KEYS[2], 'request') ~= request then
  return 0
end

if operation == 'undo' or operation == 'release' then
  if held == token then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[2], 'released', request)
    redis.call('PEXPIRE', KEYS[2], REMEMBER_MS)
    return 1
  end
  -- A release sent twice was carried out the first time: that is a success, not a lost lock.
  return redis.call('HGET', KEYS[2], 'released') == request and 1 or 0
end

if held ~= token then
  return 0
end
if operation == 'reacquire' then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
  return 1
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[5] == '1' and ARGV[4] or left + ARGV[4])
return 1
