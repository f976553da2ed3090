-- What workers say an attempt came to. Counts only from who holds the attempt; the rest is late and dropped.
-- Arguments: fence, keep_ms, outcomes {id, attempt, worker, epoch, kind, payload JSON or text, retryable, delay_ms,
--   duration ms, wanted}; kind is done | failed | died | refused | cancelled
-- Answers per outcome {1 counted | 0 late, state of the task now, its row if it is final and wanted}
local fence, keep_ms, outcomes = ARG[1], ARG[2], ARG[3]
local day = text(math.floor(NOW / 86400000))
local told, finals = {}, {}

local function counted(worker, kind, ms)
  local key = P .. 'd:' .. worker
  redis.call('HINCRBY', key, kind .. ':' .. day, 1)
  redis.call('HINCRBY', key, kind, 1)
  if ms > 0 then redis.call('HINCRBY', key, 'ms', ms) end
end

-- A runner that died had begun, though nobody had written that down yet.
local function begin(id, task)
  if task[1] == 'assigned' then
    local key = P .. 't:' .. id
    redis.call('HSET', key, 'state', 'running', 'started', text(NOW))
    move(id, 'assigned', 'running', redis.call('HGET', key, 'created'))
    emit_task('task_started', id, task[9], task[3], task[2])
  end
end

-- A short attempt ends before its beginning was written down: both are told, in order.
local function begun(id, task, kind, ms)
  if task[8] ~= '0' and task[8] then return end
  local at = NOW - ms
  redis.call('HSET', P .. 't:' .. id, 'started', text(at))
  if kind == 'done' or kind == 'failed' then emit_task('task_started', id, task[9], task[3], task[2], '', at) end
end

local function failed(id, task, payload, retryable, delay_ms)
  local tries = tonumber(task[5]) + 1
  if task[7] == '1' then return finish(id, task[1], 'cancelled', {'reason', 'cancelled'}, keep_ms) end
  if retryable and tries <= tonumber(task[6]) then
    return requeue(id, task[1], delay_ms, {'tries', text(tries), 'error', payload, 'reason', 'waits for a retry'})
  end
  local state = retryable and 'dead' or 'failed'
  local why = retryable and 'no retries left' or 'the error is final'
  finish(id, task[1], state, {'tries', text(tries), 'error', payload, 'reason', why}, keep_ms)
end

for number, each in ipairs(outcomes) do
  local id, attempt, worker, kind, payload = each[1], each[2], each[3], each[5], each[6]
  local key = P .. 't:' .. id
  local task = redis.call('HMGET', key, 'state', 'attempt', 'worker', 'epoch', 'tries', 'retries', 'cancel', 'started',
    'tenant')
  if not holds(task, attempt, worker, each[4]) then
    count('late')
    told[number] = {0, task[1] or 'gone', {}}
  else
    if kind == 'died' then
      begin(id, task)
      died(id, worker, 'runner', payload, each[8], keep_ms)
      counted(worker, 'failed', 0)
    else
      release(id, worker, attempt)
      begun(id, task, kind, each[9])
      if kind == 'done' then
        finish(id, task[1], 'completed', {'result', payload, 'error', '', 'reason', ''}, keep_ms)
        counted(worker, 'done', each[9])
      elseif kind == 'failed' then
        failed(id, task, payload, each[7], each[8])
        counted(worker, 'failed', 0)
      elseif kind == 'cancelled' then
        finish(id, task[1], 'cancelled', {'reason', 'cancelled'}, keep_ms)
      elseif task[7] == '1' then
        finish(id, task[1], 'cancelled', {'reason', 'cancelled'}, keep_ms)
      else
        requeue(id, task[1], each[8], {'reason', payload})
      end
    end
    local state = redis.call('HGET', key, 'state')
    if state ~= 'queued' then finals[#finals + 1] = id end
    told[number] = {1, state, (each[10] and state ~= 'queued') and redis.call('HGETALL', key) or {}}
  end
end
announce(finals)
return answer(fence, told)
