#!lua flags=no-writes
-- Jobs in full, all of one moment.
--
-- KEYS    jobs, payloads, results, and the key of the command, if there is one
-- ARGV    the size of payload that is left out, being larger (empty: none is); then 'IDS' and ids, or a command that gives ids
-- Answer  ids, their rows, payloads and results
local call = redis.call
local CHUNK = 1000
local ids
local largest = tonumber(table.remove(ARGV, 1))
if ARGV[1] == 'IDS' then
  ids = ARGV
  table.remove(ids, 1)
else
  ids = call(unpack(ARGV))
end

local function small_payloads()
  local values = {}
  for i, id in ipairs(ids) do
    values[i] = call('HSTRLEN', KEYS[2], id) <= largest and call('HGET', KEYS[2], id)
  end
  return values
end

local function values_of(key)
  local values = {}
  for start = 1, #ids, CHUNK do
    local part = call('HMGET', key, unpack(ids, start, math.min(start + CHUNK - 1, #ids)))
    for _, value in ipairs(part) do
      values[#values + 1] = value
    end
  end
  return values
end

return {ids, values_of(KEYS[1]), largest and small_payloads() or values_of(KEYS[2]), values_of(KEYS[3])}
