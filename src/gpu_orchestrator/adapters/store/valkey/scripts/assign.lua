-- Assign queued tasks to workers, each only if task and worker have not changed since the leader decided. Leader only.
-- Arguments: fence, assignments
-- Answers false if the caller does not lead, else per assignment {params, correlation id} or {reason for the refusal}
local fence, assignments = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, false) end

local given = {}
for number, each in ipairs(assignments) do
  local id, so_far, worker, epoch = unpack(each, 1, 4)
  local key = P .. 't:' .. id
  local state, attempt, params, correlation, created, level, tenant, expires = unpack(redis.call('HMGET', key, 'state',
    'attempt', 'params', 'correlation', 'created', 'level', 'tenant', 'expires'), 1, 8)
  if state ~= 'queued' or attempt ~= text(so_far) or (expires and tonumber(expires) <= NOW) then
    given[number] = {'task moved on'}
  elseif epoch_of(worker) ~= text(epoch) then
    given[number] = {'worker moved on'}
  else
    redis.call('HSET', key, unpack(given_fields(each)))
    waits(level, -1)
    move(id, 'queued', 'assigned', created, tenant)
    give(id, worker)
    given[number] = {params, correlation}
  end
end
return answer(fence, given)
