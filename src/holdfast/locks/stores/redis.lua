-- Every change of a lock is one run of this script, for many locks at once.
--
-- Keys. P is the prefix; a cluster has one fence and one history per hash slot, marked {tag}.
--   <lock>             string, expires  "<token>:<fence>:<holder>"; any other value is a foreign holder's
--   {<lock>}:queue     list, expires    tokens of the waiters in order of entry
--   {<lock>}:waiters   hash, expires    token -> [alive until (ms), ttl ms, queue ms, fences, channel, holder]
--                                       (a lock whose name has braces of its own: <lock>:queue, <lock>:waiters)
--   P fence            string           the highest fence handed out
--   P history          stream, capped   one entry per run; field = lock, value = "<event><fence>:<holder>\n<note>",
--                                       event g = granted, r = released, e = evicted
--   P wake:<instance>  channel          "<token> <lock>": that waiter was granted that lock
--
-- KEYS    fence, history, then one lock per item
-- ARGV    holder, wake channel (or ""), then one item per lock:    answer, one line per item:
--   A <ttl ms> <queue ms> <fences> <token>   acquire               G<fence> | B<remaining ms> <holder> | E<error>
--   R <token>                                release               1 | 0
--   N <ttl ms> <token>                       renew                 O owned | T taken | N gone
--   E <fence> <reason>                       evict                 1 | 0
--   L                                        look                  H<fence> <ms> <waiters> <digest> <holder> | -
local HISTORY_MAX = 20000

local call, try = redis.call, redis.pcall
local match, sub, find, format = string.match, string.sub, string.find, string.format
local caller_holder, caller_channel = ARGV[1], ARGV[2]

local now_us -- read once, when first needed: a release with nobody waiting does not need it
local fence_last -- likewise, and written once at the end
local fence_moved = false
local events = {}

local function clock_us()
  if not now_us then
    local time = call('TIME')
    now_us = time[1] * 1000000 + time[2]
  end
  return now_us
end

local function clock_ms()
  return math.floor(clock_us() / 1000)
end

local function note(lock, event)
  events[#events + 1] = lock
  events[#events + 1] = event
end

local function queue_of(lock)
  -- In the slot of its lock: the same hash tag, or the whole name as the tag.
  local tag = find(lock, '}', 1, true) and lock or '{' .. lock .. '}'
  return tag .. ':queue', tag .. ':waiters'
end

-- False if the lock is free. A value of another type is somebody else's key: held, not ours.
local function value_of(lock)
  local value = try('GET', lock)
  return type(value) == 'table' and '?' or value
end

-- "<fence>:<holder>" if the value was written for this token.
local function owned(value, token)
  local length = #token + 1
  return value and sub(value, 1, length) == token .. ':' and sub(value, length + 1)
end

local function described(value)
  local token, fence, holder = match(value, '^([^:]+):(%d+):(.*)$')
  if token then
    return token, fence, holder
  end
  return value, '0', 'foreign'
end

-- Returns the fence, or nothing and the error if there is no memory for another lock. Other
-- errors end the run; they can only come before the first write.
local function grant(lock, token, holder, ttl_ms, fences)
  if not fence_last then
    -- Read and raised in one command; the end of the run raises it further where more was granted.
    local last = try('SET', KEYS[1], format('%.0f', clock_us()), 'GET')
    if type(last) == 'table' then
      if find(last.err, 'OOM', 1, true) ~= 1 then
        error(last)
      end
      return nil, last.err
    end
    fence_last = tonumber(last or 0) or 0
    if fence_last > clock_us() then
      call('SET', KEYS[1], last) -- the clock was set back: whatever fails next, the counter was not
    end
  end
  local first = math.max(fence_last + 1, clock_us())
  local fence = format('%.0f', first)
  local set = try('SET', lock, token .. ':' .. fence .. ':' .. holder, 'PX', ttl_ms)
  if set.err then
    if find(set.err, 'OOM', 1, true) ~= 1 then
      error(set)
    end
    return nil, set.err
  end
  fence_last = first + fences - 1
  fence_moved = fence_last ~= clock_us()
  note(lock, 'g' .. fence .. ':' .. holder)
  return fence
end

-- The lock is free: grant it to the first live waiter. The one who is calling is alive, and gets
-- its whole ttl; another gets its lock for no longer than it said it would be alive.
-- Returns the token, fence, holder and ttl of the new holder; nothing if nobody waits.
local function hand_over(lock, caller, caller_ttl_ms)
  local queue, waiters = queue_of(lock)
  if call('EXISTS', queue) == 0 then
    return
  end
  while true do
    local token = call('LPOP', queue)
    if not token then
      return
    end
    local entry = call('HGET', waiters, token)
    if entry then
      call('HDEL', waiters, token)
      local alive_ms, ttl_ms, queue_ms, fences, channel, holder = unpack(cjson.decode(entry))
      if token == caller then
        return token, grant(lock, token, holder, caller_ttl_ms, fences), holder, caller_ttl_ms
      end
      if alive_ms > clock_ms() then
        local hold_ms = math.min(ttl_ms, queue_ms)
        local fence = grant(lock, token, holder, hold_ms, fences)
        if channel ~= '' then
          call('PUBLISH', channel, token .. ' ' .. lock)
        end
        return token, fence, holder, hold_ms
      end
    end
  end
end

-- Enter the queue, or keep the place and renew the mark. The queue lives as long as its
-- longest mark, so an abandoned one vanishes.
local function enter(lock, token, ttl_ms, queue_ms, fences)
  local queue, waiters = queue_of(lock)
  local entry = { clock_ms() + queue_ms, tonumber(ttl_ms), tonumber(queue_ms), tonumber(fences), caller_channel, caller_holder }
  local added = try('HSET', waiters, token, cjson.encode(entry))
  if type(added) == 'table' then
    return added.err
  end
  if added == 1 then
    call('RPUSH', queue, token)
  end
  if call('PTTL', queue) < queue_ms + 1000 then
    call('PEXPIRE', queue, queue_ms + 1000)
    call('PEXPIRE', waiters, queue_ms + 1000)
  end
end

local function acquire(lock, item)
  local ttl_ms, queue_ms, fences, token = match(item, '^A (%d+) (%d+) (%d+) (.+)$')
  local queue = queue_of(lock)
  if call('EXISTS', lock, queue) == 0 then -- free, and nobody waits: the usual case, in one read
    local fence, why = grant(lock, token, caller_holder, ttl_ms, fences)
    return fence and 'G' .. fence or 'E' .. why
  end
  local value = value_of(lock)
  local mine = owned(value, token)
  if mine then
    call('PEXPIRE', lock, ttl_ms)
    return 'G' .. match(mine, '^%d+')
  end
  local holder, remaining_ms
  if value then
    holder = match(value, '^[^:]+:%d+:(.*)$') or 'foreign'
    remaining_ms = call('PTTL', lock)
  else
    local winner, fence
    winner, fence, holder, remaining_ms = hand_over(lock, token, ttl_ms)
    if winner == token then
      return 'G' .. fence
    elseif not winner then
      return 'G' .. grant(lock, token, caller_holder, ttl_ms, fences) -- all who waited are dead
    end
  end
  if queue_ms ~= '0' then
    local why = enter(lock, token, ttl_ms, tonumber(queue_ms), fences)
    if why then
      return 'E' .. why
    end
  end
  return 'B' .. remaining_ms .. ' ' .. holder
end

local function release(lock, item)
  local token = sub(item, 3)
  local mine = owned(value_of(lock), token)
  if mine then
    call('DEL', lock)
    note(lock, 'r' .. mine)
    hand_over(lock)
    return '1'
  end
  local queue, waiters = queue_of(lock)
  if call('HDEL', waiters, token) == 1 then
    call('LREM', queue, 1, token)
  end
  return '0'
end

local function renew(lock, item)
  local ttl_ms, token = match(item, '^N (%d+) (.+)$')
  local value = value_of(lock)
  if owned(value, token) then
    call('PEXPIRE', lock, ttl_ms)
    return 'O'
  end
  return value and 'T' or 'N'
end

local function evict(lock, item)
  local fence, reason = match(item, '^E (%d+) (.*)$')
  local value = value_of(lock)
  if not value then
    return '0'
  end
  local _, held_fence, holder = described(value)
  if held_fence ~= fence then
    return '0'
  end
  call('DEL', lock)
  note(lock, 'e' .. fence .. ':' .. holder .. '\n' .. reason)
  hand_over(lock)
  return '1'
end

local function look(lock)
  local value = value_of(lock)
  if not value then
    return '-'
  end
  local token, fence, holder = described(value)
  local _, waiters = queue_of(lock)
  local alive = 0
  for _, entry in ipairs(call('HVALS', waiters)) do
    if cjson.decode(entry)[1] > clock_ms() then
      alive = alive + 1
    end
  end
  local digest = sub(redis.sha1hex(token), 1, 16)
  return format('H%s %d %d %s %s', fence, call('PTTL', lock), alive, digest, holder)
end

local verbs = { A = acquire, R = release, N = renew, E = evict, L = look }
local answers = {}
for i = 3, #KEYS do
  local item = ARGV[i]
  answers[i - 2] = verbs[sub(item, 1, 1)](KEYS[i], item)
end
if fence_moved then
  call('SET', KEYS[1], format('%.0f', fence_last))
end
if #events > 0 then
  call('XADD', KEYS[2], 'MAXLEN', '~', HISTORY_MAX, '*', unpack(events))
end
return table.concat(answers, '\n')
