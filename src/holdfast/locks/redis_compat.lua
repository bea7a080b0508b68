-- A lock that redis-py's own Lock can share: the key holds exactly the token.
--
--   KEYS[1]  the lock: string, value = token; with a ttl unless the lock has no timeout
--   KEYS[2]  {lock}:holdfast: hash, lives for a day after its last use
--              fence     the last fence granted
--              released  the token whose release was carried out last
--
--   ARGV  operation, token, then:
--     acquire   ttl in ms, or 0 for none   → fence as text, or "" if somebody else holds it
--     release                              → 1, or 0 if not owned
--     extend    ms, 1 to replace the ttl or 0 to add to it → 1, or 0
local REMEMBER_MS = 86400000

local operation, token = ARGV[1], ARGV[2]
local held = redis.call('GET', KEYS[1])

if operation == 'acquire' then
  if held == token then
    -- The same request again: its reply was lost, and the client sent it once more.
    return redis.call('HGET', KEYS[2], 'fence') or '0'
  end
  if held then
    return ''
  end
  local time = redis.call('TIME')
  local clock = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', KEYS[2], 'fence') or '0')
  local fence = string.format('%.0f', math.max(last + 1, clock))
  if ARGV[3] == '0' then
    redis.call('SET', KEYS[1], token)
  else
    redis.call('SET', KEYS[1], token, 'PX', ARGV[3])
  end
  redis.call('HSET', KEYS[2], 'fence', fence)
  redis.call('PEXPIRE', KEYS[2], REMEMBER_MS)
  return fence
end

if operation == 'release' then
  if held == token then
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[2], 'released', token)
    redis.call('PEXPIRE', KEYS[2], REMEMBER_MS)
    return 1
  end
  -- A release sent twice was carried out the first time: that is a success, not a lost lock.
  return redis.call('HGET', KEYS[2], 'released') == token and 1 or 0
end

if held ~= token then
  return 0
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[4] == '1' and ARGV[3] or left + ARGV[3])
return 1
