-- Let go of the workers of a server that ends as planned: they get no new tasks until they have connected again, and a
-- term that is long enough for a restart. What they run is left to them.
-- Arguments: fence, hold_ms, workers {name, epoch or 0 if the session ended before it was known, connection}
-- Answers per worker whether that was its current connection
local fence, hold_ms = ARG[1], ARG[2]
local handed = {}
for number, each in ipairs(ARG[3]) do
  local key = P .. 'w:' .. each[1]
  local row = redis.call('HMGET', key, 'epoch', 'connection', 'state')
  handed[number] = (each[2] == 0 or row[1] == text(each[2])) and row[2] == each[3] and row[3] == 'online'
  if handed[number] then
    redis.call('HSET', key, 'state', 'suspect', 'connection', '')
    redis.call('ZADD', P .. 'leases', 'GT', NOW + hold_ms, each[1])
    tell_worker(each[1])
    emit_worker('worker_status_changed', each[1], 'suspect', 'its server ends; it connects to another, or again')
  end
end
return answer(fence, handed)
