#!lua flags=allow-oom
-- Remove workers whose lease expired (checked again here) or that left; their attempts go back to the queue.
-- Arguments: fence, keep_ms, checked (1: only if the lease expired and the caller leads), workers {name, epoch, why}
-- Answers per worker whether it was removed
local fence, keep_ms, checked = ARG[1], ARG[2], ARG[3]
local gone = {}
if checked == 1 and not leads(fence) then return answer(fence, gone) end
for number, each in ipairs(ARG[4]) do
  local name, key = each[1], P .. 'w:' .. each[1]
  local row = redis.call('HMGET', key, 'epoch', 'state')
  local lease = tonumber(redis.call('ZSCORE', P .. 'leases', name) or 0)
  local due = checked == 0 or lease <= NOW
  gone[number] = row[1] == text(each[2]) and row[2] ~= 'offline' and due
  if gone[number] then
    redis.call('HSET', key, 'state', 'offline', 'connection', '', 'why', each[3])
    redis.call('ZREM', P .. 'leases', name)
    if checked == 1 then count('expired') end
    emit_worker('worker_status_changed', name, 'offline', each[3])
    set_alerts(name, {})
    set_models(name, {})
    lose(name, each[3], keep_ms)
    tell_worker(name)
  end
end
return answer(fence, gone)
