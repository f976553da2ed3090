#!lua flags=allow-oom
-- Extend the leases of workers whose epoch and connection are unchanged.
-- Arguments: lease_ms, renewals {name, epoch, connection}
-- Answers per renewal false, or its active attempts {{id, attempt, 1 if to be cancelled}, ...}
local lease_ms = ARG[1]
local renewed = {}
for number, each in ipairs(ARG[2]) do
  local key = P .. 'w:' .. each[1]
  local row = redis.call('HMGET', key, 'epoch', 'state', 'connection')
  if row[1] == text(each[2]) and row[2] == 'online' and row[3] == each[3] then
    redis.call('ZADD', P .. 'leases', NOW + lease_ms, each[1])
    redis.call('HSET', key, 'seen', text(NOW))
    local active = {}
    for _, id in ipairs(redis.call('SMEMBERS', P .. 'on:' .. each[1])) do
      local task = redis.call('HMGET', P .. 't:' .. id, 'attempt', 'cancel')
      active[#active + 1] = {id, tonumber(task[1]), task[2] == '1' and 1 or 0}
    end
    renewed[number] = active
  else
    renewed[number] = false
  end
end
return answer(0, renewed)
