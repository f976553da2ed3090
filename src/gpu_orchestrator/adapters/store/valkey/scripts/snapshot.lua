#!lua flags=allow-oom
-- Read everything that a new leader must know in one step, and clear the list of news. Leases are extended once,
-- because no process could expire them while there was no leader.
-- Arguments: fence, lease_ms
-- Answers false if the caller does not lead, else {now, worker names, tasks {id, spec, attempt, after, created, deaths,
--   state, worker, placement}}
local fence, lease_ms = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, false) end
redis.call('DEL', P .. 'news')
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', NOW + lease_ms)) do
  if redis.call('HGET', P .. 'w:' .. name, 'state') == 'online' then
    redis.call('ZADD', P .. 'leases', NOW + lease_ms, name)
  end
end

-- For rows that were stored before levels existed.
local function level_of(priority)
  priority = priority or 50
  return priority >= 90 and '3' or priority >= 75 and '2' or priority >= 50 and '1' or '0'
end

local tasks, levels = {}, {}
for _, state in ipairs({'queued', 'assigned', 'running'}) do
  for _, id in ipairs(redis.call('ZRANGE', P .. 's:' .. state, 0, -1)) do
    local row = redis.call('HMGET', P .. 't:' .. id, 'spec', 'attempt', 'after', 'created', 'deaths', 'worker', 'place',
      'level')
    tasks[#tasks + 1] = {id, row[1], tonumber(row[2]), tonumber(row[3]) or 0, tonumber(row[4]), row[5] or '', state,
      row[6] or '', row[7] or ''}
    if state == 'queued' then
      local level = row[8] or level_of(cjson.decode(row[1]).priority)
      levels[level] = (levels[level] or 0) + 1
    end
  end
end
redis.call('DEL', P .. 'levels')
for level, waiting in pairs(levels) do redis.call('HSET', P .. 'levels', level, text(waiting)) end
return answer(fence, {NOW, redis.call('SMEMBERS', P .. 'workers'), tasks})
