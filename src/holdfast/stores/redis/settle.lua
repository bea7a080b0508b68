#!lua
-- Whether a write whose answer was lost has been applied. If not, it never will be: the head that it names is replaced.
--
-- KEYS    head, done
-- ARGV    the word of that write, a fresh word
if redis.call('GET', KEYS[2]) == ARGV[1] then
  return 1
end
redis.call('SET', KEYS[1], ARGV[2])
return 0
