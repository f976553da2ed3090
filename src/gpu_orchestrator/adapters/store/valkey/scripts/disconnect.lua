#!lua flags=allow-oom
-- Mark a worker suspect because its connection is lost: it gets no new tasks and has a short grace to come back.
-- Arguments: fence, grace_ms, {name, epoch or 0 if the session ended before it was known, connection},
--   leaving (1: it said that it leaves)
-- Answers whether that was its current connection
local fence, grace_ms, each, leaving = ARG[1], ARG[2], ARG[3], ARG[4]
local key = P .. 'w:' .. each[1]
local row = redis.call('HMGET', key, 'epoch', 'connection', 'state')
local present = (each[2] == 0 or row[1] == text(each[2])) and row[2] == each[3] and row[3] == 'online'
if present then
  redis.call('HSET', key, 'state', 'suspect', 'connection', '')
  if leaving == 1 then redis.call('HSET', key, 'leaving', '1') end
  redis.call('ZADD', P .. 'leases', 'LT', NOW + grace_ms, each[1])
  tell_worker(each[1])
  emit_worker('worker_status_changed', each[1], 'suspect', 'its connection is lost')
end
return answer(fence, present)
