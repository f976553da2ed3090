-- Check, before a batch is accepted, whether idempotency keys belong to tasks with different content.
-- Arguments: tasks {idempotency key, spec, params}
-- Answers per task the id of such a task, else ''
local others = {}
for number, wish in ipairs(ARG[1]) do
  local id = redis.call('GET', P .. 'idem:' .. wish[1])
  local spec = id and redis.call('HGET', P .. 't:' .. id, 'spec')
  others[number] = spec and (spec ~= wish[2] or not same_params(P .. 't:' .. id, wish[3])) and id or ''
end
return cmsgpack.pack({{}, others})
