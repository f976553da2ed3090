-- Begin a term: clear the list of news, which the tasks that are read from now on include, and extend leases once,
-- because no process could expire them while there was no leader. Those of suspect workers too: they may have had no
-- server to come back to. `snapshot_page` then reads the tasks.
-- Arguments: fence, lease_ms
-- Answers false if the caller does not lead, else {now, worker names, waiting by priority level {level, number, ...}}
local fence, lease_ms = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, false) end
redis.call('DEL', P .. 'news')
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', NOW + lease_ms)) do
  local state = redis.call('HGET', P .. 'w:' .. name, 'state')
  if state == 'online' or state == 'suspect' then
    redis.call('ZADD', P .. 'leases', NOW + lease_ms, name)
  end
end
return answer(fence, {NOW, redis.call('SMEMBERS', P .. 'workers'), redis.call('HGETALL', P .. 'levels')})
