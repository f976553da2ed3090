#!lua flags=allow-oom
-- Store the start of attempts, and their latest line of progress.
-- Arguments: notes {id, attempt, worker, epoch, started this many ms ago or -1, line or ''}
-- Answers nothing
local CREATED, TENANT, PLACE = 5, 6, 7 -- columns of a task's row here, after STATE, ATTEMPT, WORKER and EPOCH
for _, note in ipairs(ARG[1]) do
  local id, attempt, worker, epoch, ago_ms, line = unpack(note, 1, 6)
  local key = P .. 't:' .. id
  local task = redis.call('HMGET', key, 'state', 'attempt', 'worker', 'epoch', 'created', 'tenant', 'place')
  if holds(task, attempt, worker, epoch) then
    if ago_ms >= 0 and task[STATE] == 'assigned' then
      redis.call('HSET', key, 'state', 'running', 'started', text(NOW - ago_ms))
      move(id, 'assigned', 'running', task[CREATED], task[TENANT])
      emit_start(id, task[TENANT], worker, task[ATTEMPT], task[PLACE], NOW - ago_ms)
    end
    if line ~= '' then redis.call('HSET', key, 'progress', line) end
  end
end
return answer(0, false)
