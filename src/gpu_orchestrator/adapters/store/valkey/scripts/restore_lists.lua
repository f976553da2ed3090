-- Rebuild the lists of restored tasks from their rows. A task's row is authoritative; lists copied a moment earlier
-- or later could disagree with it.
-- Arguments: ids
-- Answers how many of them exist
local tasks = 0
for _, id in ipairs(ARG[1]) do
  local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'created', 'tenant', 'worker', 'level',
    'not_before', 'expires', 'result_at', 'open', 'linked', 'epoch', 'kept_at')
  local open, linked = row[9], row[10]
  if row[1] then
    enlist(id, row[1], row[2], row[3])
    if active(row[1]) and row[11] ~= DONE then redis.call('SADD', P .. 'on:' .. row[4], id) end
    if row[1] == 'queued' then waits(row[5], 1) end
    if row[1] == 'scheduled' and (not open or open == '0') then
      redis.call('ZADD', P .. 'due:not-before', row[6], id)
    elseif row[1] == 'scheduled' then
      redis.call('HSET', P .. 't:' .. id, 'open', '-1')
    end
    if linked then see_to_links(id) end
    if row[7] and (row[1] == 'queued' or row[1] == 'scheduled' or active(row[1])) then
      redis.call('ZADD', P .. 'due:expires', row[7], id)
    end
    local until_ms = redis.call('PEXPIRETIME', P .. 't:' .. id)
    if until_ms > 0 then redis.call('ZADD', P .. 'ended', until_ms, ended_entry(id, row[1], row[3])) end
    if row[8] then add_result(row[8], until_ms) end
    if row[12] then add_result(row[12], NOW + 10 * 365 * 86400000) end
    tasks = tasks + 1
  end
end
return answer(0, tasks)
