#!lua
-- Replace the registry's snapshot by a higher one.
--
-- KEYS    snapshot
-- ARGV    fence, seq, at, workers
-- Answer  1 | 0: it is not higher
local fence, seq = tonumber(ARGV[1]), tonumber(ARGV[2])
local known = redis.call('HMGET', KEYS[1], 'fence', 'seq')
if known[1] then
  local known_fence, known_seq = tonumber(known[1]), tonumber(known[2])
  if fence < known_fence or (fence == known_fence and seq <= known_seq) then
    return 0
  end
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'seq', ARGV[2], 'at', ARGV[3], 'workers', ARGV[4])
return 1
