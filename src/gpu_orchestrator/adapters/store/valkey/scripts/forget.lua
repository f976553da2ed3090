#!lua flags=allow-oom
-- Forget ended tasks before their time, because there are too many or they are too large: the oldest completed ones
-- first, then cancelled, failed and dead ones. Tasks whose callback is due are left, and those that others need.
-- Arguments: why, most tasks to forget, bytes of the store to free, bytes of results elsewhere to free (0 for none),
--   how long ago a task must have ended, in ms: a client may be about to read it; how many tasks to skip, which earlier
--   calls left
-- Answers {tasks forgotten, about how many bytes of the store were freed, bytes of results elsewhere, 1 if this begins,
--   tasks that were looked at and left}
local why, most, store_bytes, result_bytes, before, skip = ARG[1], ARG[2], ARG[3], ARG[4], NOW - ARG[5], ARG[6]
local ROW = 1500 -- about what a task takes beside its parameters and result
local SAID_MS = 10000
local tasks, freed, results, left = 0, 0, 0, 0

local function forget(id)
  local key = P .. 't:' .. id
  local state, owner, worker, at, finished, linked = unpack(
    redis.call('HMGET', key, 'state', 'tenant', 'worker', 'result_at', 'finished', 'linked'), 1, 6)
  if not ENDS[state or ''] or redis.call('ZSCORE', P .. 'callbacks', id) or tonumber(finished or 0) > before
    or (linked and redis.call('PTTL', key) == -1) then
    left = left + 1
    return
  end
  freed = freed + ROW + redis.call('HSTRLEN', key, 'params') + redis.call('HSTRLEN', key, 'result')
  redis.call('DEL', key)
  unlist(id, state, owner)
  redis.call('ZREM', P .. 'ended', ended_entry(id, state, owner))
  if worker and worker ~= '' then redis.call('ZREM', P .. 'of:' .. worker, id) end
  for _, name in ipairs({id, id .. VALUES}) do
    if redis.call('HEXISTS', P .. 'logs:sizes', name) == 1 then forget_log(name) end
  end
  if at then
    redis.call('ZADD', P .. 'results', 0, at) -- it is deleted next
    results = results + tonumber(string.match(at, '^%S+ (%d+) '))
  end
  tasks = tasks + 1
end

local function done()
  if tasks >= most then return true end
  if result_bytes > 0 then return results >= result_bytes end
  return store_bytes > 0 and freed >= store_bytes
end

if result_bytes > 0 then
  for _, at in ipairs(redis.call('ZRANGEBYSCORE', P .. 'results', '(0', '+inf', 'LIMIT', skip, most)) do
    if done() then break end
    forget(string.match(at, '^%S+ %d+ (.+)%.%d+%.%w+$'))
  end
else
  for _, state in ipairs({'completed', 'cancelled', 'failed', 'dead'}) do
    local size = redis.call('ZCARD', P .. 's:' .. state)
    local page = redis.call('ZRANGE', P .. 's:' .. state, skip, skip + 2 * most - 1)
    for _, id in ipairs(page) do
      if done() then break end
      forget(id)
    end
    if done() or #page == 2 * most then break end -- the next call goes on here
    skip = math.max(skip - size, 0)
  end
end

local begins = false
if tasks > 0 then
  count('forgotten', tasks)
  begins = redis.call('EXISTS', P .. 'forgetting') == 0
  if begins then emit('tasks_forgotten', '', cjson.encode({reason = why})) end
  redis.call('SET', P .. 'forgetting', why, 'PX', SAID_MS)
end
return answer(0, {tasks, freed, results, begins and 1 or 0, left})
