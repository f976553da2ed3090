#!lua flags=allow-oom
-- Forget workers that have been offline for long, and drop the old counters of the others. Leader only.
-- Arguments: fence, retention_ms, days of counters to keep, names
-- Answers the names of the forgotten
local fence, retention_ms, days = ARG[1], ARG[2], ARG[3]
local forgotten = {}
if not leads(fence) then return answer(fence, forgotten) end
local today = math.floor(NOW / 86400000)

-- Tasks may be on it, and an operator's word (a cordon) must outlive the worker's absence.
local function is_over(name)
  local state, seen, cordoned, devices = unpack(
    redis.call('HMGET', P .. 'w:' .. name, 'state', 'seen', 'cordoned', 'cordoned_devices'), 1, 4)
  return state == 'offline' and NOW - (tonumber(seen) or 0) > retention_ms and cordoned ~= '1'
    and (not devices or devices == '' or devices == '[]') and redis.call('SCARD', P .. 'on:' .. name) == 0
end

local function drop_old_days(name)
  local old = {}
  for _, field in ipairs(redis.call('HKEYS', P .. 'd:' .. name)) do
    local of = string.match(field, '^%a+:(%d+)$')
    if of and tonumber(of) <= today - days then old[#old + 1] = field end
  end
  for at = 1, #old, 1000 do
    redis.call('HDEL', P .. 'd:' .. name, unpack(old, at, math.min(at + 999, #old)))
  end
end

for _, name in ipairs(ARG[4]) do
  if is_over(name) then
    release_devices(name)
    close_circuit(name)
    redis.call('DEL', P .. 'w:' .. name, P .. 'on:' .. name, P .. 'of:' .. name, P .. 'd:' .. name)
    redis.call('SREM', P .. 'workers', name)
    redis.call('ZREM', P .. 'leases', name)
    emit_worker('worker_status_changed', name, 'removed', 'it was offline for longer than WORKER_RETENTION')
    tell_worker(name)
    forgotten[#forgotten + 1] = name
  else
    drop_old_days(name)
  end
end
return answer(fence, forgotten)
