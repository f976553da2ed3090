-- Check, before a batch is accepted, whether idempotency keys belong to tasks with different content.
-- Arguments: tasks {idempotency key, spec, params, needs}
-- Answers per task the id of such a task, else ''
local others = {}
for number, wish in ipairs(ARG[1]) do
  local id = redis.call('GET', P .. 'idem:' .. wish[1])
  local row = id and redis.call('HMGET', P .. 't:' .. id, 'spec', 'needs') or {}
  local spec, needs = row[1], row[2] or ''
  others[number] = spec and (spec ~= wish[2] or needs ~= wish[4] or not same_params(P .. 't:' .. id, wish[3])) and id or ''
end
return cmsgpack.pack({{}, others})
