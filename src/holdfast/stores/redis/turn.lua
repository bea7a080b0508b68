#!lua
-- Keep the turn for a while longer, or give it up: if it is still the caller's.
--
-- KEYS    turn
-- ARGV    whose it must be, for how many ms more (0: it is given up)
-- Answer  1 | 0: it has run out, and somebody may have written since
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
