#!lua flags=allow-oom
-- Take results that are not in their task's row and whose task has been forgotten; the caller deletes them.
-- Arguments: most results
-- Answers where each is, as in `results`
local due = {}
for _, at in ipairs(redis.call('ZRANGEBYSCORE', P .. 'results', '-inf', NOW, 'LIMIT', 0, ARG[1])) do
  local bytes, id = string.match(at, '^%S+ (%d+) (.+)%.%d+%.%w+$')
  local key = P .. 't:' .. id
  if redis.call('HGET', key, 'result_at') == at then -- the row is kept longer, for its callback
    redis.call('ZADD', P .. 'results', math.max(redis.call('PEXPIRETIME', key), NOW + 1000), at)
  else
    redis.call('ZREM', P .. 'results', at)
    if string.sub(id, 1, 5) ~= 'file-' then redis.call('DECRBY', P .. 'results:bytes', bytes) end
    due[#due + 1] = at
  end
end
return cmsgpack.pack({{}, due})
