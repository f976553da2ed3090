-- Attempts that began, and their latest line of progress.
-- Arguments: notes {id, attempt, worker, epoch, began ms before now or -1, line or ''}
-- Answers nothing
for _, note in ipairs(ARG[1]) do
  local key = P .. 't:' .. note[1]
  local task = redis.call('HMGET', key, 'state', 'attempt', 'worker', 'epoch', 'created', 'tenant')
  if holds(task, note[2], note[3], note[4]) then
    if note[5] >= 0 and task[1] == 'assigned' then
      redis.call('HSET', key, 'state', 'running', 'started', text(NOW - note[5]))
      move(note[1], 'assigned', 'running', task[5], task[6])
      emit_task('task_started', note[1], task[6], note[3], task[2], '', NOW - note[5])
    end
    if note[6] ~= '' then redis.call('HSET', key, 'progress', note[6]) end
  end
end
return answer(0, false)
