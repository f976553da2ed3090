#!lua flags=allow-oom
-- Queue scheduled tasks whose time has come, and end waiting tasks that have expired. Leader only.
-- Arguments: fence, keep_ms, most tasks of each kind
-- Answers {1 if more are due, ids of those that ended, 1 if schedules are due}
local fence, keep_ms, most = ARG[1], ARG[2], ARG[3]
if not leads(fence) then return answer(fence, {0, {}, 0}) end
local EXPIRED = 'it did not begin before it expired; submit it again, or retry it: a retry does not expire'
local finals = {}

local function due(name)
  local ids = redis.call('ZRANGEBYSCORE', P .. 'due:' .. name, '-inf', NOW, 'LIMIT', 0, most)
  if #ids > 0 then redis.call('ZREM', P .. 'due:' .. name, unpack(ids)) end
  return ids
end

-- One that runs now is left alone; `requeue` makes it due again.
local function expire(id)
  local state, gang = unpack(redis.call('HMGET', P .. 't:' .. id, 'state', 'gang'), 1, 2)
  if state == 'queued' or state == 'scheduled' then
    local fields = {'reason', 'expired', 'error', error_json('Expired', EXPIRED, false)}
    finish(id, state, 'failed', fields, keep_ms)
    if gang then stop_others(id, gang, 'failed', keep_ms, fields) end
    count('tasks_expired')
    finals[#finals + 1] = id
    tell({'Gone', id})
  end
end

local function begin(id)
  local key = P .. 't:' .. id
  local state, spec, after, created, tenant, level = unpack(
    redis.call('HMGET', key, 'state', 'spec', 'after', 'created', 'tenant', 'level'), 1, 6)
  if state == 'scheduled' then
    redis.call('HSET', key, 'state', 'queued')
    move(id, 'scheduled', 'queued', created, tenant)
    waits(level, 1)
    tell_queued(id, spec, 0, tonumber(after), tonumber(created), '')
  end
end

local expired = due('expires')
for _, id in ipairs(expired) do expire(id) end
local begun = due('not-before')
for _, id in ipairs(begun) do begin(id) end
for _, id in ipairs(GANG_ENDED) do finals[#finals + 1] = id end
announce(finals)
local schedules = redis.call('ZRANGEBYSCORE', P .. 'due:schedules', '-inf', NOW, 'LIMIT', 0, 1)
return answer(fence, {(#expired == most or #begun == most) and 1 or 0, finals, #schedules})
