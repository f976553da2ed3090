-- Give queued tasks to workers, each only if task and worker are as the leader knew them; only the leader may.
-- Arguments: fence, assignments
-- Answers false for who does not lead, else per assignment {params, correlation id} or {why not}
local fence, assignments = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, false) end

local given = {}
for number, each in ipairs(assignments) do
  local id, worker = each[1], each[3]
  local key = P .. 't:' .. id
  local task = redis.call('HMGET', key, 'state', 'attempt', 'params', 'correlation', 'created', 'level', 'tenant')
  if task[1] ~= 'queued' or task[2] ~= text(each[2]) then
    given[number] = {'task moved on'}
  elseif epoch_of(worker) ~= text(each[4]) then
    given[number] = {'worker moved on'}
  else
    redis.call('HSET', key, unpack(given_fields(each)))
    waits(task[6], -1)
    move(id, 'queued', 'assigned', task[5], task[7])
    give(id, worker)
    given[number] = {task[3], task[4]}
  end
end
return answer(fence, given)
