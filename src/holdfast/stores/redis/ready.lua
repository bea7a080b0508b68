#!lua flags=no-writes
-- Who may be dispatched: of the next urgency, one job of each tenant, then another of each, and so on.
--
-- KEYS    ready
-- ARGV    the urgency before (one byte; empty: from the first on), now (eight bytes), limit, how many may be passed over;
--         the number of turns, for each its urgency and tenant; the number of topics to be left out, and those; likewise of
--         tenants, and of limits; the number of lists of demands that are met, for each the number of topics, those, the number of
--         sets of labels, and for each the number of labels, and those; then where the walk was broken off, as it was told
-- Answer  nothing; or: the urgency, the tenant to go on with ('' if all had their turn), where the walk was broken off (nothing
--         if it was not), and the rounds, each a list of members
--
-- Tenants are walked through by jumps, from where the last list ended, for there may be more of them than fit. Members are
-- read in the order of a tenant's queue; which of a round goes first is for the caller to say.
--
-- What is left out may be any number of jobs. After some of them the walk is broken off, so that others have their turn with
-- the server, and goes on from there: the urgency, whether tenants are still walked through for the first time ('first'), again
-- from the beginning ('again') or no more ('done'), the tenant that was the last, and each queue that is not at its end: tenant, place.
local call = redis.call
local ready = KEYS[1]
local CHUNK = 20

local at = 5
local function pairs_of()
  local found = {}
  for i = 1, tonumber(ARGV[at]) do
    found[ARGV[at + 2 * i - 1]] = ARGV[at + 2 * i]
  end
  at = at + 1 + 2 * tonumber(ARGV[at])
  return found
end
local function set_of()
  local found = {}
  for i = 1, tonumber(ARGV[at]) do
    found[ARGV[at + i]] = true
  end
  at = at + 1 + tonumber(ARGV[at])
  return found
end
-- By topic: for each label the sets that it is in; the same for topics that have the same sets.
local function met_of()
  local found, many = {}, tonumber(ARGV[at])
  at = at + 1
  for _ = 1, many do
    local sets_with = {}
    for topic in pairs(set_of()) do
      found[topic] = sets_with
    end
    local sets = tonumber(ARGV[at])
    at = at + 1
    for _ = 1, sets do
      local set = set_of()
      for label in pairs(set) do
        sets_with[label] = sets_with[label] or {}
        table.insert(sets_with[label], set)
      end
    end
  end
  return found
end
local before, now, limit, passes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local turns, topics, tenants, limits, met = pairs_of(), set_of(), set_of(), set_of(), met_of()

local function has_all(set, wanted)
  for _, label in ipairs(wanted) do
    if not set[label] then
      return false
    end
  end
  return true
end

-- Whether one set has all labels, which each end with NUL. Only sets are looked at that have the rarest of them.
local function is_met(sets_with, labels)
  local wanted, rarest = {}, nil
  for label in string.gmatch(labels, '([^%z]+)') do
    local sets = sets_with[label]
    if not sets then
      return false
    end
    wanted[#wanted + 1] = label
    if not rarest or #sets < #rarest then
      rarest = sets
    end
  end
  for _, set in ipairs(rarest or {}) do
    if has_all(set, wanted) then
      return true
    end
  end
  return not rarest
end

local function is_left_out(topic, key, labels)
  return topics[topic] or limits[key] or (met[topic] and not is_met(met[topic], labels))
end

-- The first member from `low` on that is below `high`; `low` and `high` as ZRANGE wants them.
local function first(low, high)
  return call('ZRANGE', ready, low, high, 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- '\255' is above whatever may follow: names are UTF-8.
local found = first(before == '' and '-' or '(' .. before .. '\255', '+')
if not found then
  return {}
end
local urgency = string.sub(found, 1, 1)

local function tenant_of(member)
  return string.sub(member, 2, string.find(member, '\0', 2, true) - 1)
end

-- Bytes compare as in the sorted set, whatever the server's locale.
local function is_after(a, b)
  for i = 1, math.max(#a, #b) do
    local x, y = string.byte(a, i) or -1, string.byte(b, i) or -1
    if x ~= y then
      return x > y
    end
  end
  return false
end

-- A tenant's jobs that may begin, in order, a few at a time. `next` gives none where the queue is at its end, and where too many
-- were passed over: then `from` is where to go on.
local function queue_of(tenant, from)
  local start = urgency .. tenant .. '\0'
  local queue, high = {tenant = tenant, from = from or '[' .. start, is_over = false}, '[' .. start .. now .. '\255'
  local chunk, i = {}, 0
  function queue.next()
    while passes > 0 do
      i = i + 1
      if i > #chunk then
        chunk, i = call('ZRANGE', ready, queue.from, high, 'BYLEX', 'LIMIT', 0, CHUNK), 1
        if #chunk == 0 then
          queue.is_over = true
          return nil
        end
      end
      queue.from = '(' .. chunk[i]
      local id_end = string.find(chunk[i], '\0', #start + 9, true)
      local topic_end = string.find(chunk[i], '\0', id_end + 1, true)
      local key_end = string.find(chunk[i], '\0', topic_end + 1, true) or #chunk[i] + 1
      local topic, key = string.sub(chunk[i], id_end + 1, topic_end - 1), string.sub(chunk[i], topic_end + 1, key_end - 1)
      if not is_left_out(topic, key, string.sub(chunk[i], key_end)) then
        return chunk[i]
      end
      passes = passes - 1
    end
  end
  return queue
end

local queues, round = {}, {}
local function take(queue)
  round[#round + 1] = queue.next()
  if not queue.is_over then
    queues[#queues + 1] = queue
  end
end

local start, turn = turns[urgency] or '', ''
local walk, tenant = 'first', start
if ARGV[at] == urgency then
  walk, tenant = ARGV[at + 1], ARGV[at + 2]
  for i = at + 3, #ARGV, 2 do
    take(queue_of(ARGV[i], ARGV[i + 1]))
  end
end
while walk ~= 'done' and #round < limit and passes > 0 do
  local member = first('(' .. urgency .. tenant .. '\0\255', '[' .. urgency .. '\255')
  if not member and walk == 'first' then
    walk, member = 'again', first('[' .. urgency, '[' .. urgency .. '\255')
  end
  if not member or (walk == 'again' and is_after(tenant_of(member), start)) then
    walk = 'done'
  else
    tenant = tenant_of(member)
    local found = #round
    if not tenants[tenant] then
      take(queue_of(tenant))
    end
    if #round == found then
      passes = passes - 1
    elseif #round == limit then
      turn = tenant
    end
  end
end

local stopped = {}
local answer, total = {urgency, turn, stopped}, 0
while #round > 0 do
  answer[#answer + 1] = round
  total = total + #round
  if total >= limit then
    break
  end
  local left = queues
  queues, round = {}, {}
  for _, queue in ipairs(left) do
    take(queue)
  end
end
if total < limit and passes <= 0 then
  stopped[1], stopped[2], stopped[3] = urgency, walk, tenant
  for _, queue in ipairs(queues) do
    stopped[#stopped + 1] = queue.tenant
    stopped[#stopped + 1] = queue.from
  end
end
return answer
