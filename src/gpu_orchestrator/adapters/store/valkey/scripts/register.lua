-- Register a worker: it resumes its epoch, or gets a new one and loses the attempts that it had before.
-- Arguments: fence, lease_ms, keep_ms, most workers, {name, instance, spec JSON, api, connection, resume epoch,
--   id of the key that it joined with}
-- Answers {'resumed' | 'new' | 'taken' | 'full', epoch}
local fence, lease_ms, keep_ms, most, hello = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local name, instance = hello[1], hello[2]
local key = P .. 'w:' .. name
local row = redis.call('HMGET', key, 'epoch', 'instance', 'state', 'connection')
local lease = tonumber(redis.call('ZSCORE', P .. 'leases', name) or 0)

local function greet(kind, epoch)
  redis.call('HSET', key, 'name', name, 'epoch', text(epoch), 'instance', instance, 'state', 'online', 'spec', hello[3],
    'api', hello[4], 'connection', hello[5], 'joined_with', hello[7] or '', 'seen', text(NOW))
  redis.call('HSETNX', key, 'registered', text(NOW))
  redis.call('ZADD', P .. 'leases', NOW + lease_ms, name)
  redis.call('SADD', P .. 'workers', name)
  tell_worker(name)
  if kind == 'new' then emit_worker('worker_registered', name, 'online')
  elseif row[3] ~= 'online' then emit_worker('worker_status_changed', name, 'online', 'it is back') end
  return answer(fence, {kind, epoch})
end

local present = row[3] == 'online' or row[3] == 'suspect'
if present and row[2] == instance and row[1] == text(hello[6]) then return greet('resumed', hello[6]) end
if present and row[2] ~= instance and row[4] ~= '' and lease > NOW then return answer(fence, {'taken', 0}) end
if not present and redis.call('ZCARD', P .. 'leases') >= most then return answer(fence, {'full', 0}) end
if present then lose(name, 'worker ' .. name .. ' started anew', keep_ms) end
set_alerts(name, {})
redis.call('HDEL', key, 'report', 'leaving')
return greet('new', redis.call('INCR', P .. 'epoch'))
