-- Take callbacks that are due. Each is due again after `for_ms` unless its result is stored by then.
-- Arguments: most callbacks, for_ms
-- Answers {id, earlier tries, row {field, value, ...}} each
local most, for_ms = ARG[1], ARG[2]
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'callbacks', '-inf', NOW, 'LIMIT', 0, most)) do
  local row = redis.call('HGETALL', P .. 't:' .. id)
  if #row == 0 then
    redis.call('ZREM', P .. 'callbacks', id)
  else
    redis.call('ZADD', P .. 'callbacks', NOW + for_ms, id)
    local tries = redis.call('HINCRBY', P .. 't:' .. id, 'callback_tries', 1)
    found[#found + 1] = {id, tries - 1, row}
  end
end
return cmsgpack.pack({{}, found})
