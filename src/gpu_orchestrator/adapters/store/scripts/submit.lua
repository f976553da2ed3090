-- Take new tasks into the queue; for those whose idempotency key is known, the task of that key. A leader that has
-- decided already where some of them go says so, and they are queued and given in one write.
-- Arguments: fence, remember_ms, known (1: the leader's dispatcher asks and has these tasks),
--   tasks {id, spec, params, retries, idempotency key or '', correlation id, tenant}, assignments as of `assign`
-- Answers {per task {id, created, 1 new | 0 known | -1 the key belongs to a task with another content},
--   per assignment {params, correlation id} or {why not}}
local fence, remember_ms, tasks, assignments = ARG[1], ARG[2], ARG[4], ARG[5]
local taken = {}
local led = leads(fence)
local known_to_leader = led and ARG[3] == 1
for number, task in ipairs(tasks) do
  local id, idem = task[1], task[5]
  local known = idem ~= '' and redis.call('GET', P .. 'idem:' .. idem)
  local row = known and redis.call('HMGET', P .. 't:' .. known, 'created', 'spec', 'params')
  if row and row[1] then
    local same = row[2] == task[2] and row[3] == task[3]
    taken[number] = {known, tonumber(row[1]), same and 0 or -1}
  else
    redis.call('HSET', P .. 't:' .. id, 'spec', task[2], 'params', task[3], 'state', 'queued', 'attempt', '0',
      'tries', '0', 'retries', text(task[4]), 'created', text(NOW), 'correlation', task[6], 'tenant', task[7])
    list(id, 'queued', NOW, task[7])
    if idem ~= '' then redis.call('SET', P .. 'idem:' .. idem, id, 'PX', remember_ms) end
    if not known_to_leader then tell_queued(id, task[2], 0, 0, NOW, '') end
    taken[number] = {id, NOW, 1}
  end
end
count('submitted', #tasks)
return answer(fence, {taken, led and assign(assignments) or {}})
