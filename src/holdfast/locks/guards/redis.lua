-- Checks and raises the mark of a resource and runs at most one command, atomically.
--
-- KEYS[1]  the mark: a hash of fence, seq, answer. Never expires: a lost mark admits stale writes.
-- ARGV     fence, seq, once_per_fence (1 or 0), answer_bytes_max, then the command, if any
--
-- Answers  {0, fence, seq}  refused: the mark is higher
--          {1, reply}       accepted
--          {2, reply}       accepted before; this is the reply of then
--          {3}              accepted before; its reply was not kept
-- An error of the command is answered as it is, and the mark stays as it was.

local mark = redis.call('HMGET', KEYS[1], 'fence', 'seq', 'answer')
local fence, seq = tonumber(ARGV[1]), tonumber(ARGV[2])
local last_fence, last_seq = tonumber(mark[1] or 0), tonumber(mark[2] or 0)

if fence == last_fence and seq == last_seq then
  if mark[3] then return {2, cmsgpack.unpack(mark[3])} end
  return {3}
end
local higher = fence > last_fence or (fence == last_fence and seq > last_seq and ARGV[3] == '0')
if not higher then return {0, mark[1], mark[2]} end

-- Raised before the command: if memory ran out in between, the other order would run it unfenced.
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'seq', ARGV[2])
if mark[3] then redis.call('HDEL', KEYS[1], 'answer') end
if #ARGV == 4 then return {1} end

-- Twice protected: redis.pcall answers an error of the command, while unpack raises its own.
local ran, reply = pcall(function() return redis.pcall(unpack(ARGV, 5)) end)
if not ran then reply = {err = 'ERR ' .. tostring(reply)} end
if type(reply) == 'table' and reply.err then
  redis.call('DEL', KEYS[1])
  if mark[1] then redis.call('HSET', KEYS[1], 'fence', mark[1], 'seq', mark[2]) end
  if mark[3] then redis.call('HSET', KEYS[1], 'answer', mark[3]) end
  return reply
end
local kept = cmsgpack.pack(reply)
if #kept <= tonumber(ARGV[4]) then redis.call('HSET', KEYS[1], 'answer', kept) end
return {1, reply}
