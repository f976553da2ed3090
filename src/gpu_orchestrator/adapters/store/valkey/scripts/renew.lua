-- Extend the leases of workers whose epoch and connection are unchanged.
-- Arguments: lease_ms, renewals {name, epoch, connection}
-- Answers per renewal false if the epoch or connection changed, true if an operator removed the worker, or {wish, its
--   active attempts {{id, attempt, 1 if to be cancelled, 1 if it has begun}, ...}}. The wish of an operator is repeated
--   with every renewal, because the message about it may have been lost: '' | 'drain' | 'leave'
local lease_ms = ARG[1]
local renewed = {}
for number, each in ipairs(ARG[2]) do
  local key = P .. 'w:' .. each[1]
  local row = redis.call('HMGET', key, 'epoch', 'state', 'connection', 'draining', 'leaving')
  if row[1] == text(each[2]) and row[2] == 'online' and row[3] == each[3] then
    redis.call('ZADD', P .. 'leases', NOW + lease_ms, each[1])
    redis.call('HSET', key, 'seen', text(NOW))
    local active = {}
    for _, id in ipairs(redis.call('SMEMBERS', P .. 'on:' .. each[1])) do
      local task = redis.call('HMGET', P .. 't:' .. id, 'attempt', 'cancel', 'state')
      active[#active + 1] = {id, tonumber(task[1]), task[2] == '1' and 1 or 0, task[3] == 'running' and 1 or 0}
    end
    renewed[number] = {row[5] == '1' and 'leave' or row[4] == '1' and 'drain' or '', active}
  else
    renewed[number] = not row[1]
  end
end
return answer(0, renewed)
