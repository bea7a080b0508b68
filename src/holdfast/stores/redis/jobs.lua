#!lua flags=no-writes
-- Jobs in full, all of one moment.
--
-- KEYS    jobs, payloads, results
-- ARGV    'IDS' and ids; or a command that gives ids
-- Answer  ids, their rows, payloads and results
local call = redis.call
local CHUNK = 1000
local ids
if ARGV[1] == 'IDS' then
  ids = ARGV
  table.remove(ids, 1)
else
  ids = call(unpack(ARGV))
end
local answer = {ids}
for i, key in ipairs(KEYS) do
  local values = {}
  for start = 1, #ids, CHUNK do
    local part = call('HMGET', key, unpack(ids, start, math.min(start + CHUNK - 1, #ids)))
    for _, value in ipairs(part) do
      values[#values + 1] = value
    end
  end
  answer[i + 1] = values
end
return answer
