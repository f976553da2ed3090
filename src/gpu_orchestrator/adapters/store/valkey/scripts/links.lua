#!lua flags=allow-oom
-- See to the links between tasks: list new tasks with what they wait for, and tell tasks that wait which of their
-- dependencies have ended. The last one lets a task begin, a failed one may cancel it. Then let go of what ended tasks
-- waited for. Each step may be repeated. Leader only.
-- Arguments: fence, keep_ms, most steps
-- Answers {1 if more is to be done, ids of tasks that were cancelled}
local fence, keep_ms, most = ARG[1], ARG[2], ARG[3]
if not leads(fence) then return answer(fence, {0, {}}) end
local FAILED = {failed = 'failed', dead = 'was given up', cancelled = 'was cancelled'}
local finals, steps = {}, 0

-- Its last dependency has ended.
local function begin(id)
  local key = P .. 't:' .. id
  local spec, created, tenant, level, begins, attempt = unpack(
    redis.call('HMGET', key, 'spec', 'created', 'tenant', 'level', 'not_before', 'attempt'), 1, 6)
  if begins and tonumber(begins) > NOW then
    redis.call('ZADD', P .. 'due:not-before', begins, id)
    return
  end
  redis.call('HSET', key, 'state', 'queued', 'after', text(NOW))
  move(id, 'scheduled', 'queued', created, tenant)
  waits(level, 1)
  tell_queued(id, spec, tonumber(attempt), NOW, tonumber(created), '')
end

local function cancel(id, other, state)
  local why = 'task ' .. other .. ', on which it depends, ' .. (FAILED[state] or 'is no longer known')
  local fields = {'reason', why, 'error', error_json('DependencyFailed', why, false)}
  finish(id, 'scheduled', 'cancelled', fields, keep_ms)
  finals[#finals + 1] = id
  local gang = redis.call('HGET', P .. 't:' .. id, 'gang')
  if gang then stop_others(id, gang, 'cancelled', keep_ms, fields) end
end

-- Tell a task that waits how this one ended.
local function hear(id, other, state)
  local row = redis.call('HMGET', P .. 't:' .. id, 'state', 'open', 'needs')
  if row[1] ~= 'scheduled' or not row[2] or tonumber(row[2]) <= 0 then return end
  local open = redis.call('HINCRBY', P .. 't:' .. id, 'open', -1)
  if state ~= 'completed' and string.sub(row[3], 1, 7) == 'cancel ' then
    cancel(id, other, state)
  elseif open == 0 then
    begin(id)
  end
end

-- List a task with its dependencies. Those that have ended are then told of as any other.
local function link(id, needs)
  local open = 0
  for other in string.gmatch(needs, ' (%S+)') do
    open = open + 1
    redis.call('SADD', P .. 'after:' .. other, id)
    pin(other, id)
    local state = redis.call('HGET', P .. 't:' .. other, 'state')
    if not state or ENDS[state] then see_to_links(other) end
  end
  redis.call('HSET', P .. 't:' .. id, 'open', text(open))
  steps = steps + open
end

local function expire(id)
  local key = P .. 't:' .. id
  local state, tenant, spec = unpack(redis.call('HMGET', key, 'state', 'tenant', 'spec'), 1, 3)
  if state and ENDS[state] and redis.call('EXISTS', P .. 'pins:' .. id) == 0 then
    let_expire(id, state, tenant, kept_for(state, spec, keep_ms))
  end
end

local function let_go(id, needs)
  for other in string.gmatch(needs, ' (%S+)') do
    redis.call('SREM', P .. 'after:' .. other, id)
    redis.call('SREM', P .. 'pins:' .. other, id)
    if not redis.call('ZSCORE', P .. 'links', other) then expire(other) end
    steps = steps + 1
  end
end

-- Return whether all that wait for an ended task were told.
local function all_told(id, state)
  for _, waiting in ipairs(redis.call('SPOP', P .. 'after:' .. id, math.max(most - steps, 1))) do
    hear(waiting, id, state)
    steps = steps + 1
  end
  return redis.call('EXISTS', P .. 'after:' .. id) == 0
end

local function see_to(id)
  local state, needs, open = unpack(redis.call('HMGET', P .. 't:' .. id, 'state', 'needs', 'open'), 1, 3)
  steps = steps + 1
  if state == 'scheduled' and open == '-1' then
    redis.call('ZREM', P .. 'links', id)
    link(id, needs)
  elseif not state or ENDS[state] then
    if not all_told(id, state) then return end
    if needs then let_go(id, needs) end
    redis.call('ZREM', P .. 'links', id)
    expire(id)
  else -- it was retried or restored
    for other in string.gmatch(needs or '', ' (%S+)') do pin(other, id) end
    redis.call('ZREM', P .. 'links', id)
  end
end

for _, id in ipairs(redis.call('ZRANGE', P .. 'links', 0, most - 1)) do
  if steps >= most then break end
  see_to(id)
end
for _, id in ipairs(GANG_ENDED) do finals[#finals + 1] = id end
announce(finals)
return answer(fence, {redis.call('EXISTS', P .. 'links'), finals})
