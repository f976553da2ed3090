-- Check, before a batch is accepted, whether idempotency keys belong to tasks with different content.
-- Arguments: tasks {idempotency key, spec, params}
-- Answers per task the id of such a task, else ''
local others = {}
for number, wish in ipairs(ARG[1]) do
  local id = redis.call('GET', P .. 'idem:' .. wish[1])
  local row = id and redis.call('HMGET', P .. 't:' .. id, 'spec', 'params') or {}
  others[number] = row[1] and (row[1] ~= wish[2] or row[2] ~= wish[3]) and id or ''
end
return cmsgpack.pack({{}, others})
