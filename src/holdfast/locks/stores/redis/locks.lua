-- Every change of a lock is one run of this script, for many locks at once.
--
-- Keys. P is the prefix; a cluster has one fence and one history per hash slot, marked {tag}.
--   <lock>             string, expires  "<token>:<fence>:<holder>"; any other value is a foreign holder's
--   {<lock>}:queue     list, expires    tokens of the waiters in order of entry
--   {<lock>}:waiters   hash, expires    token -> [alive until (ms), ttl ms, queue ms, fences, channel, holder]
--                                       (a lock whose name has braces of its own: <lock>:queue, <lock>:waiters)
--   P fence            string           a number that no fence handed out is above
--   P history          stream, capped   one entry per run; field = lock, value = "<event><fence>:<holder>\n<note>",
--                                       event g = granted, r = released, e = evicted
--   P wake:<instance>  channel          "<token> <lock>": that waiter was granted that lock
--
-- KEYS    fence, history, then one lock per item; in a cluster the queue and waiters of each lock as well, so that
--         a server that has only some of them turns the run away before it begins (runs that only renew: the
--         locks alone)
-- ARGV    holder, wake channel (or ""), then one item per lock:    answer, one line per item:
--   A <ttl ms> <queue ms> <fences> <token>   acquire               G<fence> | B<remaining ms> <holder> | E<error>
--   R <token>                                release               1 | 0
--   N <ttl ms> <token>                       renew                 O owned | T taken | N gone
--   E <fence> <reason>                       evict                 1 | 0
--   L                                        look                  H<fence> <ms> <waiters> <digest> <holder> | -
--
-- A run begins at the loop below. The acquire of a free lock and the release of one that nobody waits
-- for are written out there, and so is every grant: to make the functions for all else would take
-- a third of such a run, so they are made when first needed.
local HISTORY_MAX = '20000'

-- The verbs as functions of (lock, item). Each returns its answer, its event for the history, and whom
-- the loop shall grant the lock to: token, holder, ttl ms, fences, channel to wake. A caller that
-- is granted the lock itself has no answer yet.
local function make_verbs()
  local call, try = redis.call, redis.pcall
  local match, sub = string.match, string.sub
  local caller_holder, caller_channel = ARGV[1], ARGV[2]
  local time = call('TIME')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

  local function queue_of(lock)
    local tag = string.find(lock, '}', 1, true) and lock or '{' .. lock .. '}'
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

  -- The lock is free: whom to grant it to, the first live waiter; nothing if nobody waits. The one
  -- who is calling gets its whole ttl and needs no wake; another gets the lock for no longer than it
  -- said it would be alive. A place is lost by silence, also that of the one who calls now.
  local function next_waiter(lock, caller, caller_ttl_ms)
    local queue, waiters = queue_of(lock)
    while true do
      local token = call('LPOP', queue)
      if not token then
        return
      end
      local entry = call('HGET', waiters, token)
      if entry then
        call('HDEL', waiters, token)
        local alive_ms, ttl_ms, queue_ms, fences, channel, holder = unpack(cjson.decode(entry))
        if alive_ms > now_ms then
          if token == caller then
            return token, holder, caller_ttl_ms, fences, ''
          end
          return token, holder, math.min(ttl_ms, queue_ms), fences, channel
        end
      end
    end
  end

  -- The holder of the lock goes: whom to grant it to. For a successor the lock is not deleted but overwritten: a server
  -- that is giving its slot away could not make it again.
  local function successor(lock)
    local token, holder, ttl_ms, fences, channel = next_waiter(lock)
    if not token then
      call('DEL', lock)
    end
    return token, holder, ttl_ms, fences, channel
  end

  -- Enter the queue, or keep the place and renew the mark. The queue lives as long as its
  -- longest mark, so an abandoned one vanishes.
  local function enter(lock, token, ttl_ms, queue_ms, fences)
    local queue, waiters = queue_of(lock)
    local entry = { now_ms + queue_ms, tonumber(ttl_ms), queue_ms, tonumber(fences), caller_channel, caller_holder }
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
    local value = value_of(lock)
    local mine = owned(value, token)
    if mine then
      call('PEXPIRE', lock, ttl_ms)
      return 'G' .. match(mine, '^%d+')
    end
    local winner, holder, remaining_ms, winner_fences, channel
    if value then
      holder = match(value, '^[^:]+:%d+:(.*)$') or 'foreign'
      remaining_ms = call('PTTL', lock)
    else
      winner, holder, remaining_ms, winner_fences, channel = next_waiter(lock, token, ttl_ms)
      if not winner then -- all who waited are dead
        return nil, nil, token, caller_holder, ttl_ms, fences, ''
      elseif winner == token then
        return nil, nil, token, holder, ttl_ms, winner_fences, ''
      end
    end
    local why = queue_ms ~= '0' and enter(lock, token, ttl_ms, tonumber(queue_ms), fences)
    local answer = why and 'E' .. why or 'B' .. remaining_ms .. ' ' .. holder
    return answer, nil, winner, holder, remaining_ms, winner_fences, channel
  end

  local function release(lock, item)
    local token = sub(item, 3)
    local mine = owned(value_of(lock), token)
    if mine then
      return '1', 'r' .. mine, successor(lock)
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
    return '1', 'e' .. fence .. ':' .. holder .. '\n' .. reason, successor(lock)
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
      if cjson.decode(entry)[1] > now_ms then
        alive = alive + 1
      end
    end
    local digest = sub(redis.sha1hex(token), 1, 16)
    return string.format('H%s %d %d %s %s', fence, call('PTTL', lock), alive, digest, holder)
  end

  return { A = acquire, R = release, N = renew, E = evict, L = look }
end

local call, try = redis.call, redis.pcall
local match, sub, find, format = string.match, string.sub, string.find, string.format
local keys, items = KEYS, ARGV
local last_item = #items
local verbs
local answers, events, events_n = {}, {}, 0
local fence_last -- the highest fence that is taken; read when the first lock is granted
local fence_kept, fence_text -- the number in P fence, and how it is written

for i = 3, last_item do
  local lock, item = keys[i], items[i]
  local verb, decided = sub(item, 1, 1), false
  local answer, event, token, holder, ttl_ms, fences, channel
  -- In the slot of its lock: the same hash tag, or the whole name as the tag.
  local queue = (find(lock, '}', 1, true) and lock or '{' .. lock .. '}') .. ':queue'
  if verb == 'A' then
    if call('EXISTS', lock, queue) == 0 then
      decided = true
      ttl_ms, fences, token = match(item, '^A (%d+) %d+ (%d+) (.+)$')
      holder, channel = items[1], ''
    end
  elseif verb == 'R' then
    local value, owner = try('GET', lock), sub(item, 3) .. ':'
    if value and not value.err and sub(value, 1, #owner) == owner and call('EXISTS', queue) == 0 then
      decided = true
      call('DEL', lock)
      answer, event = '1', 'r' .. sub(value, #owner + 1)
    end
  end
  if not decided then
    verbs = verbs or make_verbs()
    answer, event, token, holder, ttl_ms, fences, channel = verbs[verb](lock, item)
  end
  if event then
    events[events_n + 1], events[events_n + 2] = lock, event
    events_n = events_n + 2
  end

  if token then
    local refused
    if not fence_last then
      local time = call('TIME')
      local now_us = time[1] * 1000000 + time[2]
      -- Read and raised in one command, by one for each item: a fence is in the store before it is
      -- handed out, whatever ends the run.
      fence_kept = now_us + last_item - 3
      fence_text = format('%.0f', fence_kept)
      local last = try('SET', keys[1], fence_text, 'GET')
      if type(last) == 'table' then
        refused = last
      else
        fence_last = math.max(tonumber(last or 0) or 0, now_us - 1)
      end
    end
    local fence
    if not refused then
      if fence_last + fences > fence_kept then -- the clock was set back, or an item takes several
        fence_kept = fence_last + fences * (last_item - i + 1)
        fence_text = format('%.0f', fence_kept)
        call('SET', keys[1], fence_text)
      end
      fence = fence_last + 1 == fence_kept and fence_text or format('%.0f', fence_last + 1)
      local set = try('SET', lock, token .. ':' .. fence .. ':' .. holder, 'PX', ttl_ms)
      refused = set.err and set
    end
    if not refused then
      fence_last = fence_last + fences
      events[events_n + 1], events[events_n + 2] = lock, 'g' .. fence .. ':' .. holder
      events_n = events_n + 2
      answer = answer or 'G' .. fence
      if channel ~= '' then
        try('PUBLISH', channel, token .. ' ' .. lock) -- a hint: if it is refused, the lock is granted all the same
      end
    elseif find(refused.err, 'OOM', 1, true) == 1 then
      answer = 'E' .. refused.err -- no memory for another lock; who releases one is still served
    else
      error(refused) -- it can only come before the first write
    end
  end
  answers[i - 2] = answer
end

if events_n > 0 then
  call('XADD', keys[2], 'MAXLEN', '~', HISTORY_MAX, '*', unpack(events))
end
return table.concat(answers, '\n')
