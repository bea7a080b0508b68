#!lua
-- One write of a plane: all of it, if nobody has written since it was decided; else nothing. (Keys: keys.py)
--
-- KEYS    head, turn, done, fronts, ready, events, and one that there never is: in a cluster that moves the slot a key may be
--         elsewhere, and the script would be stopped where it comes to that
-- ARGV    the head it was decided on, its own word, the plane, turn ms, done ms, channel,
--         how much is to be told, and each word of that;
--         how many sessions are to be arranged, and for each its name, its queue and who of it is working;
--         how many events there are, the number of the first, what histories of jobs and of runs begin with, and for each
--         its job, its run and its row;
--         then the commands: the number of words in each, and the words
-- Answer  'written' | 'moved': somebody has written since | 'wait': it is another plane's turn
--         or an error: another program has put something of its own under one of these names, or the user may not do all of it
--         any more (rights.lua)
--
-- Who is overtaken has the next turn: without that, a plane with large batches might never get through beside one with
-- small ones. A turn ends with its write, or by itself.
local call = redis.call
local head, turn, done, fronts, ready, stream = unpack(KEYS)
local expected, word, plane, turn_ms, done_ms, channel = unpack(ARGV, 1, 6)

local lacking = refused(head)
if lacking then
  return lacking
end
local whose = call('GET', turn)
if whose and whose ~= plane then
  return 'wait'
end
if (call('GET', head) or '') ~= expected then
  call('SET', turn, plane, 'PX', turn_ms)
  return 'moved'
end

-- Of a script that fails in the middle all before that stays: what would fail is looked for first.
local KINDS = {HDEL = 'hash', HINCRBY = 'hash', HSET = 'hash', SADD = 'set', SREM = 'set', XDEL = 'stream', ZADD = 'zset', ZREM = 'zset'}
local looked_at = {}
local function foreign(key, kind)
  if looked_at[key] then  -- most commands are about the same few keys
    return nil
  end
  looked_at[key] = true
  local found = call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    return {err = 'WRONGTYPE ' .. string.gsub(key, '%c', '.') .. ' is a ' .. found .. ', and not of this plane'}
  end
end

local at = 8
local told = tonumber(ARGV[7])
local first_told = at
at = at + told
local sessions = tonumber(ARGV[at])
local first_session = at + 1
at = first_session + 3 * sessions

local events, first_number, of_job, of_run = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3]
at = at + 4
local wrong = foreign(fronts, 'hash') or foreign(ready, 'zset') or foreign(stream, 'stream')
local next_command = at + 3 * events
while not wrong and next_command <= #ARGV do
  local kind = KINDS[ARGV[next_command + 1]]
  wrong = kind and foreign(ARGV[next_command + 2], kind)
  next_command = next_command + 1 + tonumber(ARGV[next_command])
end
if wrong then
  return wrong
end
for number = first_number, first_number + events - 1 do
  local job, run = ARGV[at], ARGV[at + 1]
  local n = string.format('%d', number)
  call('XADD', stream, n .. '-0', 'e', ARGV[at + 2])
  if job ~= '' then
    call('ZADD', of_job .. job, n, n)
  end
  if run ~= '' then
    call('ZADD', of_run .. run, n, n)
  end
  at = at + 3
end

local last = #ARGV
while at <= last do
  local words = tonumber(ARGV[at])
  local answer = call(unpack(ARGV, at + 1, at + words))
  if answer == 0 and ARGV[at + 1] == 'HINCRBY' then
    call('HDEL', ARGV[at + 2], ARGV[at + 3])  -- of nothing there is no need to know how many
  end
  at = at + 1 + words
end

-- Of a session only the one whose turn it is stands in the list of who may be dispatched, and none while one is at work.
for i = 0, sessions - 1 do
  local name, queue, working = unpack(ARGV, first_session + 3 * i, first_session + 3 * i + 2)
  local front = call('HGET', fronts, name)
  local next_one = false
  if call('EXISTS', working) == 0 then
    local first = call('ZRANGE', queue, 0, 0)[1]
    -- One digit, eight bytes, the id, NUL; the rest is its member there.
    next_one = first and string.sub(first, string.find(first, '\0', 10, true) + 1)
  end
  if front ~= next_one then
    if front then
      call('ZREM', ready, front)
      call('HDEL', fronts, name)
    end
    if next_one then
      call('ZADD', ready, 0, next_one)
      call('HSET', fronts, name, next_one)
    end
  end
end

call('SET', head, word)
call('SET', done, word, 'PX', done_ms)
if whose then
  call('DEL', turn)
end
for i = first_told, first_told + told - 1 do
  -- A hint: if it is refused, the write is done all the same, and must not be answered with an error.
  redis.pcall('PUBLISH', channel, ARGV[i])
end
return 'written'
