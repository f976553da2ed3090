-- Give queued tasks to workers; only the leader may, and each only if task and worker are as the leader knew them.
-- Arguments: fence, assignments {id, attempt so far, worker, its epoch, placement JSON}
-- Answers false for who does not lead, else per assignment {params, correlation id} or {why not}
local fence, assignments = ARG[1], ARG[2]
if not leads(fence) then return answer(fence, false) end
local given, epochs = {}, {}
for number, each in ipairs(assignments) do
  local id, worker = each[1], each[3]
  local key = P .. 't:' .. id
  local task = redis.call('HMGET', key, 'state', 'attempt', 'params', 'correlation', 'created')
  if not epochs[worker] then
    local row = redis.call('HMGET', P .. 'w:' .. worker, 'epoch', 'state')
    epochs[worker] = row[2] == 'online' and row[1] or 'none'
  end
  if task[1] ~= 'queued' or task[2] ~= text(each[2]) then
    given[number] = {'task moved on'}
  elseif epochs[worker] ~= text(each[4]) then
    given[number] = {'worker moved on'}
  else
    redis.call('HSET', key, 'state', 'assigned', 'attempt', text(each[2] + 1), 'worker', worker, 'epoch',
      text(each[4]), 'place', each[5], 'assigned', text(NOW), 'started', '0', 'cancel', '0', 'reason', '')
    move(id, 'queued', 'assigned', task[5])
    redis.call('SADD', P .. 'on:' .. worker, id)
    redis.call('ZADD', P .. 'of:' .. worker, NOW, id)
    given[number] = {task[3], task[4]}
  end
end
return answer(fence, given)
