#!lua flags=allow-oom
-- Store outcomes of attempts. An outcome counts only if its worker holds the attempt; else it is late and dropped.
-- Arguments: fence, keep_ms, outcomes {id, attempt, worker, epoch, kind, payload JSON or text, retryable, delay_ms,
--   duration ms, wanted, last line of progress or '', where the result is if it is not in the payload, else ''};
--   kind is done | failed | died | refused | cancelled,
--   circuit breaker {window ms, fewest outcomes or 0 for none, percent that failed, pause ms, longest pause ms}
-- Answers per outcome {1 counted | 0 late, the task's new state, columns of its row if it is final and wanted, ids of the
--   other members of its gang that ended by it, in the same state}
local fence, keep_ms, outcomes, breaker = ARG[1], ARG[2], ARG[3], ARG[4]
local WINDOW_MS, FEWEST, PERCENT, PAUSE_MS, LONGEST_MS = unpack(breaker, 1, 5)
-- The other columns of a task's row here; the first are STATE, ATTEMPT, WORKER and EPOCH.
local TRIES, RETRIES, CANCEL, STARTED, TENANT, MILLI, ASSIGNED, CREATED, LEVEL, SPEC = 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
local PLACE, LINKED, GANG, STOPS = 15, 16, 17, 18
local day = text(math.floor(NOW / 86400000))
local told, finals, went, seen = {}, {}, {}, {}

local function counted(worker, kind, ms)
  local counts = went[worker] or {}
  went[worker] = counts
  add(counts, kind .. ':' .. day, 1)
  add(counts, kind, 1)
  add(counts, 'ms', ms)
end

-- Whether an outcome says that an attempt went wrong for a reason that may lie with the worker.
local NOT_THE_WORKER = {'BadParameters', 'OutOfMemory', 'Timeout', 'SoftLimitReached', 'ValueTooLarge', 'ResultTooLarge',
  'ModelUnloaded', 'WorkerLeft', 'Temporary'}
local function is_bad(kind, payload)
  if kind ~= 'failed' then return kind == 'died' end
  for _, each in ipairs(NOT_THE_WORKER) do
    local start = '{"type":"' .. each .. '"'
    if string.sub(payload, 1, #start) == start then return false end
  end
  return true
end

-- Note how an attempt went, for the worker's circuit. Nothing is counted while nothing fails. Tasks that name where they
-- run do not count: nobody can compare them, and one tenant could close a worker to the others with them.
local MOST_OWNERS = 8
local function is_counted(name)
  seen[name] = seen[name] or {ok = 0, bad = 0, by = {}, known = redis.call('EXISTS', P .. 'b:' .. name) == 1
    or redis.call('SISMEMBER', P .. 'circuits', name) == 1}
  return seen[name]
end
local function note_outcome(worker, kind, payload, task)
  if FEWEST == 0 or (kind ~= 'done' and kind ~= 'failed' and kind ~= 'died') then return end
  local bad = is_bad(kind, payload)
  local here, all = is_counted(worker), is_counted('')
  if not bad and not here.known and not all.known then return end
  local spec = task[SPEC] or ''
  if string.find(spec, '"worker_labels"', 1, true) or string.find(spec, '"worker"', 1, true) then return end
  for _, each in ipairs({here, all}) do
    if bad then each.bad = each.bad + 1 else each.ok = each.ok + 1 end
  end
  if bad then
    here.known, all.known = true, true
    here.by[task[TENANT] or ''] = true
  end
end

-- Add what was noted to the window, which begins with the first failure. Return how many were well, how many were not, and
-- how many owners these were of.
local function in_window(name)
  local key, each = P .. 'b:' .. name, seen[name]
  if not each.known then return 0, 0, 0 end
  local ok, bad = redis.call('HINCRBY', key, 'ok', each.ok), redis.call('HINCRBY', key, 'bad', each.bad)
  for owner in pairs(each.by) do
    if redis.call('HLEN', key) < MOST_OWNERS then redis.call('HSET', key, 'by:' .. owner, '1') end
  end
  if redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, WINDOW_MS) end
  return ok, bad, redis.call('HLEN', key) - 2
end

-- Open a worker's circuit if most tasks fail there, of two owners if there are two, and elsewhere at most half as many of
-- a hundred; at most half of the workers rest at a time. A half open circuit is closed by the first task that succeeds.
local function judge_circuit(name, all_ok, all_bad)
  local ok, bad, owners = in_window(name)
  local circuit, state = unpack(redis.call('HMGET', P .. 'w:' .. name, 'circuit', 'state'), 1, 2)
  if not state or circuit == 'open' or ok + bad == 0 then return end
  if circuit == 'half' and ok > 0 then
    close_circuit(name)
    emit_worker('worker_status_changed', name, 'online', 'a task succeeded there again')
    return tell_worker(name)
  end
  local is_enough = circuit == 'half' or ok + bad >= FEWEST
  if not is_enough or bad * 100 < PERCENT * (ok + bad) then return end
  if owners < 2 and redis.call('SCARD', P .. 'owners') > 1 then return end
  local other_ok, other_bad = math.max(all_ok - ok, 0), math.max(all_bad - bad, 0)
  if circuit ~= 'half' then
    if other_bad * 2 * (ok + bad) > bad * (other_ok + other_bad) then return end
    if (redis.call('SCARD', P .. 'circuits') + 1) * 2 > redis.call('ZCARD', P .. 'leases') then return end
  end
  open_circuit(name, bad .. ' of ' .. ok + bad .. ' tasks failed', PAUSE_MS, LONGEST_MS)
end

-- A runner that died had started, though the start may not be stored yet.
local function begin(id, task)
  if task[STATE] == 'assigned' then
    local key = P .. 't:' .. id
    redis.call('HSET', key, 'state', 'running', 'started', text(NOW))
    move(id, 'assigned', 'running', redis.call('HGET', key, 'created'), task[TENANT])
    emit_start(id, task[TENANT], task[WORKER], task[ATTEMPT], task[PLACE])
  end
end

-- A short attempt ends before its start was stored: write both events, in order. Returns when it started.
local function begun(id, task, kind, ms)
  if task[STARTED] and task[STARTED] ~= '0' then return task[STARTED] end
  local at = NOW - ms
  if kind == 'done' or kind == 'failed' then
    emit_start(id, task[TENANT], task[WORKER], task[ATTEMPT], task[PLACE], at)
  end
  return text(at)
end

local function cancelled(id, task, started)
  local to = finish(id, task[STATE], 'cancelled', {'reason', 'cancelled', 'started', started}, keep_ms)
  return task[GANG] and end_gang(id, task[GANG], to, keep_ms) or to
end

local function again(id, task, delay_ms, tries, fields)
  if task[GANG] then return gang_again(id, task[STATE], task[GANG], delay_ms, tries, keep_ms, fields) end
  return requeue(id, task[STATE], delay_ms, fields)
end

-- Return what a worker's latest report says that a task used on one device.
local function measured(worker, device, id)
  local report = redis.call('HGET', P .. 'w:' .. worker, 'report')
  for _, reading in ipairs(report and report ~= '' and cjson.decode(report).readings or {}) do
    for _, held in ipairs(reading.index == device and reading.held or {}) do
      if held.task == id then return held.used_mib end
    end
  end
  return 0
end

-- Return the task's deaths with a new one: where it ran out of memory, and with how much. The next attempt goes elsewhere
-- or reserves more.
local function with_memory_death(id, task)
  local earlier = redis.call('HGET', P .. 't:' .. id, 'deaths')
  local deaths = earlier and earlier ~= '' and cjson.decode(earlier) or {}
  local death = {worker = task[WORKER], attempt = tonumber(task[ATTEMPT]), kind = 'memory', at = NOW,
    evidence = 'ran out of memory'}
  local place = task[PLACE] and task[PLACE] ~= '' and cjson.decode(task[PLACE]) or {}
  if place.devices and #place.devices > 0 then
    death.devices, death.reserved_mib, death.used_mib = {}, place.memory_mib or 0, 0
    for at, device in ipairs(place.devices) do
      death.devices[at] = device.index
      death.used_mib = math.max(death.used_mib, measured(task[WORKER], device.index, id))
    end
  end
  deaths[#deaths + 1] = death
  return cjson.encode(deaths)
end

local function failed(id, task, payload, retryable, delay_ms, started)
  local tries = tonumber(task[TRIES]) + 1
  if task[CANCEL] == '1' then return cancelled(id, task, started) end
  local fields = {'tries', text(tries), 'error', payload, 'started', started, 'reason'}
  if string.find(payload, '"type":"OutOfMemory"', 1, true) then
    redis.call('HSET', P .. 't:' .. id, 'deaths', with_memory_death(id, task))
  end
  if retryable and tries <= tonumber(task[RETRIES]) then
    fields[#fields + 1] = 'waits for a retry'
    return again(id, task, delay_ms, tries, fields)
  end
  fields[#fields + 1] = retryable and 'no retries left' or 'failed; not retried'
  local to = finish(id, task[STATE], retryable and 'dead' or 'failed', fields, keep_ms)
  return task[GANG] and end_gang(id, task[GANG], to, keep_ms) or to
end

-- Note the task under the key of the result cache, if it asked for that. The search spares most tasks the decoding.
local function remember_result(id, task, kept_ms)
  local asked = string.find(task[SPEC], '"cache_key"', 1, true) and cjson.decode(task[SPEC])
  if not asked or type(asked.cache_key) ~= 'string' or asked.cache_key == '' then return end
  local ms = math.floor(math.min(asked.cache_s * 1000, kept_ms))
  if ms > 0 then redis.call('SET', P .. 'res:' .. task[TENANT] .. ':' .. asked.cache_key, id, 'PX', text(ms)) end
end

-- A result that is elsewhere is a file or object that was written before; this commits it. Nobody runs a completed task
-- again, so its parameters are dropped if they are large.
local FAR_MS = 10 * 365 * 86400000
local function completed(id, task, payload, result_at, started)
  if task[GANG] then
    local kept = {'kept', payload, 'started', started}
    if result_at ~= '' then
      kept[5], kept[6] = 'kept_at', result_at
      add_result(result_at, NOW + FAR_MS)
    end
    return member_done(id, task[STATE], task[GANG], kept, keep_ms)
  end
  local fields = {'result', payload, 'error', '', 'reason', '', 'started', started}
  if result_at ~= '' then
    fields[#fields + 1], fields[#fields + 2] = 'result_at', result_at
  end
  local state, kept_ms = finish(id, task[STATE], 'completed', fields, keep_ms,
    {task[CREATED], task[TENANT], task[WORKER], task[ATTEMPT], started, '', task[LEVEL], task[SPEC],
      task[LINKED]})
  if result_at ~= '' then add_result(result_at, NOW + kept_ms) end
  remember_result(id, task, kept_ms)
  local key = P .. 't:' .. id
  if redis.call('HSTRLEN', key, 'params') > LARGE_PARAMS then redis.call('HDEL', key, 'params') end
  return state
end

-- Apply the outcome of an attempt that counts; return the task's new state.
local function settle(id, task, each)
  local _, attempt, worker, _, kind, payload, retryable, delay_ms, ms, _, _, result_at = unpack(each, 1, 12)
  if kind == 'died' then
    begin(id, task)
    counted(worker, 'failed', 0)
    return died(id, worker, 'runner', payload, delay_ms, keep_ms)
  end
  release(id, worker, attempt, task[TENANT], task[MILLI], task[ASSIGNED])
  if task[STOPS] then return member_stopped(id, task[STATE], task[GANG], task[STOPS], keep_ms) end
  local started = begun(id, task, kind, ms)
  if kind == 'done' then
    counted(worker, 'done', ms)
    return completed(id, task, payload, result_at or '', started)
  elseif kind == 'failed' then
    counted(worker, 'failed', 0)
    return failed(id, task, payload, retryable, delay_ms, started)
  elseif kind == 'cancelled' or task[CANCEL] == '1' then
    return cancelled(id, task, started)
  end
  return again(id, task, delay_ms, nil, {'reason', payload, 'started', started})
end

for number, each in ipairs(outcomes) do
  local id, attempt, worker, epoch, _, _, _, _, _, wanted, line = unpack(each, 1, 11)
  local key = P .. 't:' .. id
  local task = redis.call('HMGET', key, 'state', 'attempt', 'worker', 'epoch', 'tries', 'retries', 'cancel', 'started',
    'tenant', 'milli', 'assigned', 'created', 'level', 'spec', 'place', 'linked', 'gang', 'stops')
  if not holds(task, attempt, worker, epoch) then
    count('late')
    told[number] = {0, task[STATE] or 'gone', {}}
  else
    if line and line ~= '' then redis.call('HSET', key, 'progress', line) end
    if not task[STOPS] then note_outcome(worker, each[5], each[6], task) end
    local before = #GANG_ENDED
    local state = settle(id, task, each)
    local is_final = ENDS[state]
    if is_final then finals[#finals + 1] = id end
    local also = {}
    for at = before + 1, #GANG_ENDED do
      also[#also + 1], finals[#finals + 1] = GANG_ENDED[at], GANG_ENDED[at]
    end
    told[number] = {1, state, (wanted and is_final) and (shown(key)) or {}, also}
  end
end
for worker, counts in pairs(went) do write('d:' .. worker, counts) end
if seen[''] and seen[''].known then
  local all_ok, all_bad = in_window('')
  for worker in pairs(seen) do
    if worker ~= '' and seen[worker].known then judge_circuit(worker, all_ok, all_bad) end
  end
end
announce(finals)
return answer(fence, told)
