#!lua flags=allow-oom
-- Cancel tasks: at once if they wait; else mark them, and the outcome that the worker reports first decides.
-- Arguments: fence, keep_ms, owner whose tasks may be cancelled or '' for all, ids
--   With one member of a gang all are cancelled.
-- Answers per id {state before or '' if unknown, worker, attempt, the worker's api, ids of other members of its gang that
--   this ended}
local fence, keep_ms, owner, ids = ARG[1], ARG[2], ARG[3], ARG[4]
local found, finals = {}, {}

-- The states before of all members of a gang that this call cancels: a caller may name several of them.
local CANCELLED = {}
local function cancel_gang(id, task)
  local gang, state = gang_of(id), task[1]
  for rank = 0, tonumber(task[5]) - 1 do
    local member = member_id(gang, rank)
    CANCELLED[member] = CANCELLED[member] or redis.call('HGET', P .. 't:' .. member, 'state') or nil
  end
  stop_others(gang, task[5], 'cancelled', keep_ms, {'reason', 'cancelled', 'error', ''})
end

for number, id in ipairs(ids) do
  local key = P .. 't:' .. id
  local task = redis.call('HMGET', key, 'state', 'worker', 'attempt', 'tenant', 'gang', 'epoch')
  if not may_touch(owner, task[4]) then task = {} end
  local already = #GANG_ENDED
  local api = ''
  if task[5] and not ENDS[task[1]] then
    cancel_gang(id, task)
    api = task[2] and task[2] ~= '' and redis.call('HGET', P .. 'w:' .. task[2], 'api') or ''
  elseif task[1] == 'queued' or task[1] == 'scheduled' then
    finish(id, task[1], 'cancelled', {'reason', 'cancelled'}, keep_ms)
    finals[#finals + 1] = id
    tell({'Gone', id})
  elseif task[1] == 'assigned' or task[1] == 'running' then
    redis.call('HSET', key, 'cancel', '1')
    api = redis.call('HGET', P .. 'w:' .. task[2], 'api') or ''
  end
  local also = {}
  for at = already + 1, #GANG_ENDED do
    also[#also + 1], finals[#finals + 1] = GANG_ENDED[at], GANG_ENDED[at]
  end
  found[number] = {CANCELLED[id] or task[1] or '', task[2] or '', tonumber(task[3]) or 0, api, also}
end
announce(finals)
return answer(fence, found)
