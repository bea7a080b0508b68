#!lua flags=no-writes
-- Who may be dispatched: of the next urgency, one job of each tenant, then another of each, and so on.
--
-- KEYS    ready
-- ARGV    the urgency before (one byte; empty: from the first on), now (eight bytes), limit, the number of turns, for each its
--         urgency and tenant; the number of topics to be left out, and those; likewise of tenants, and of limits
-- Answer  nothing; or: the urgency, the tenant to go on with ('' if all had their turn), and the rounds, each a list of members
--
-- Tenants are walked through by jumps, from where the last list ended, for there may be more of them than fit. Members are
-- read in the order of a tenant's queue; which of a round goes first is for the caller to say.
local call = redis.call
local ready = KEYS[1]
local CHUNK = 20

local at = 4
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
local before, now, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local turns, topics, tenants, limits = pairs_of(), set_of(), set_of(), set_of()

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

-- A tenant's jobs that may begin, in order, a few at a time.
local function queue_of(tenant)
  local start = urgency .. tenant .. '\0'
  local low, high = '[' .. start, '[' .. start .. now .. '\255'
  local chunk, i = {}, 0
  return function()
    while true do
      i = i + 1
      if i > #chunk then
        chunk, i = call('ZRANGE', ready, low, high, 'BYLEX', 'LIMIT', 0, CHUNK), 1
        if #chunk == 0 then
          return nil
        end
        low = '(' .. chunk[#chunk]
      end
      local id_end = string.find(chunk[i], '\0', #start + 9, true)
      local topic_end = string.find(chunk[i], '\0', id_end + 1, true)
      local topic, key = string.sub(chunk[i], id_end + 1, topic_end - 1), string.sub(chunk[i], topic_end + 1)
      if not topics[topic] and not limits[key] then
        return chunk[i]
      end
    end
  end
end

local start = turns[urgency] or ''
local queues, round, turn = {}, {}, ''
local member = first('(' .. urgency .. start .. '\0\255', '[' .. urgency .. '\255')
local has_wrapped = false
while #round < limit do
  if not member and not has_wrapped then
    has_wrapped = true
    member = first('[' .. urgency, '[' .. urgency .. '\255')
  end
  if not member or (has_wrapped and is_after(tenant_of(member), start)) then
    break
  end
  local tenant = tenant_of(member)
  if not tenants[tenant] then
    local queue = queue_of(tenant)
    local head = queue()
    if head then
      queues[#queues + 1] = queue
      round[#round + 1] = head
      if #round == limit then
        turn = tenant
      end
    end
  end
  member = first('(' .. urgency .. tenant .. '\0\255', '[' .. urgency .. '\255')
end

local answer, total = {urgency, turn}, 0
while #round > 0 do
  answer[#answer + 1] = round
  total = total + #round
  if total >= limit then
    break
  end
  round = {}
  local left = {}
  for _, queue in ipairs(queues) do
    local next_one = queue()
    if next_one then
      left[#left + 1] = queue
      round[#round + 1] = next_one
    end
  end
  queues = left
end
return answer
