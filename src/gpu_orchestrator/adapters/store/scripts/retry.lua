-- Queue tasks anew that ended without a result, with all their retries.
-- Arguments: fence, ids
-- Answers per id the state before, '' if unknown; only failed, dead and cancelled ones are queued
local fence, ids = ARG[1], ARG[2]
local before = {}
for number, id in ipairs(ids) do
  local key = P .. 't:' .. id
  local state = redis.call('HGET', key, 'state')
  before[number] = state or ''
  if state == 'failed' or state == 'dead' or state == 'cancelled' then
    redis.call('PERSIST', key)
    redis.call('HDEL', key, 'finished', 'progress', 'callback', 'callback_tries')
    redis.call('ZREM', P .. 'callbacks', id)
    requeue(id, state, 0, {'tries', '0', 'deaths', '', 'cancel', '0', 'error', '', 'reason', 'retried by hand'})
  end
end
return answer(fence, before)
