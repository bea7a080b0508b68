#!lua flags=no-writes
-- Records, all of one moment: a row must not come with the body of another version.
--
-- KEYS    records, bodies
-- ARGV    their names
-- Answer  the rows, the bodies
local CHUNK = 1000

local function values_of(key)
  local values = {}
  for start = 1, #ARGV, CHUNK do
    local part = redis.call('HMGET', key, unpack(ARGV, start, math.min(start + CHUNK - 1, #ARGV)))
    for _, value in ipairs(part) do
      values[#values + 1] = value
    end
  end
  return values
end

return {values_of(KEYS[1]), values_of(KEYS[2])}
