-- Queue tasks anew that ended without a result, with all their retries.
-- Arguments: fence, owner whose tasks may be touched or '' for all, ids
-- Answers per id the state before, '' if unknown; only failed, dead and cancelled ones are queued
local fence, owner, ids = ARG[1], ARG[2], ARG[3]
local before = {}
for number, id in ipairs(ids) do
  local key = P .. 't:' .. id
  local row = redis.call('HMGET', key, 'state', 'tenant')
  local state = may_touch(owner, row[2]) and row[1]
  before[number] = state or ''
  if state == 'failed' or state == 'dead' or state == 'cancelled' then
    redis.call('PERSIST', key)
    redis.call('HDEL', key, 'finished', 'progress', 'callback', 'callback_tries')
    redis.call('ZREM', P .. 'callbacks', id)
    requeue(id, state, 0, {'tries', '0', 'deaths', '', 'cancel', '0', 'error', '', 'reason', 'retried by hand'})
  end
end
return answer(fence, before)
