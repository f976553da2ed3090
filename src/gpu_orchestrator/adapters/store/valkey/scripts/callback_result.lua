#!lua flags=allow-oom
-- Store the result of a callback: delivered, to be retried, or given up.
-- Arguments: id, when the task ended, text for the task's row, retry in ms (-1: never), 1 if it was given up
-- Answers nothing. If the task ran again meanwhile, its newer callback stays due
local id, finished, word, again_ms, given_up = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local key = P .. 't:' .. id
local row = redis.call('HMGET', key, 'finished', 'tenant')
if row[1] ~= finished then return answer(0, false) end
redis.call('HSET', key, 'callback', word)
if again_ms >= 0 then
  redis.call('ZADD', P .. 'callbacks', NOW + again_ms, id)
  redis.call('PEXPIRE', key, again_ms + 600000, 'GT') -- the row must still exist at the retry
else
  redis.call('ZREM', P .. 'callbacks', id)
  redis.call('HDEL', key, 'callback_tries')
end
if given_up == 1 then
  emit('callback_failed', row[2], cjson.encode({task_id = id, reason = word}))
end
return answer(0, false)
