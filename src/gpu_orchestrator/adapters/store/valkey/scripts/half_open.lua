#!lua flags=allow-oom
-- Let workers whose circuit has rested long enough have one task at a time. Leader only.
-- Arguments: fence, names
-- Answers nothing
local fence, names = ARG[1], ARG[2]
for _, name in ipairs(leads(fence) and names or {}) do
  local key = P .. 'w:' .. name
  local circuit, until_ms = unpack(redis.call('HMGET', key, 'circuit', 'circuit_until'), 1, 2)
  if circuit == 'open' and tonumber(until_ms) <= NOW then
    redis.call('HSET', key, 'circuit', 'half')
    forget_outcomes(name)
    emit_worker('worker_status_changed', name, 'circuit_half_open', 'it gets one task at a time until one succeeds')
    tell_worker(name)
  end
end
return answer(fence, false)
