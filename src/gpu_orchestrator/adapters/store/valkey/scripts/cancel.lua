-- Cancel tasks: at once if they wait; else mark them, and the outcome that the worker reports first decides.
-- Arguments: fence, keep_ms, owner whose tasks may be cancelled or '' for all, ids
-- Answers per id {state before or '' if unknown, worker, attempt, the worker's api}
local fence, keep_ms, owner, ids = ARG[1], ARG[2], ARG[3], ARG[4]
local found, finals = {}, {}
for number, id in ipairs(ids) do
  local key = P .. 't:' .. id
  local task = redis.call('HMGET', key, 'state', 'worker', 'attempt', 'tenant')
  if not may_touch(owner, task[4]) then task = {} end
  local api = ''
  if task[1] == 'queued' or task[1] == 'scheduled' then
    finish(id, task[1], 'cancelled', {'reason', 'cancelled'}, keep_ms)
    finals[#finals + 1] = id
    tell({'Gone', id})
  elseif task[1] == 'assigned' or task[1] == 'running' then
    redis.call('HSET', key, 'cancel', '1')
    api = redis.call('HGET', P .. 'w:' .. task[2], 'api') or ''
  end
  found[number] = {task[1] or '', task[2] or '', tonumber(task[3]) or 0, api}
end
announce(finals)
return answer(fence, found)
