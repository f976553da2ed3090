#!lua flags=allow-oom
-- Change one model of the registry.
-- Arguments: most models, change, name, value: declare (JSON) | measure (JSON) | pin (worker) | unpin (worker, '*' for
--   all) | forget. A model that nobody declared is known once it is measured or pinned
-- Answers 'saved', 'full', or 'unknown' for a model to unpin or forget
local most, change, name, value = ARG[1], ARG[2], ARG[3], ARG[4]
local key = P .. 'm:' .. name
local is_known = redis.call('EXISTS', key) == 1
if not is_known and (change == 'unpin' or change == 'forget') then return cmsgpack.pack({{}, 'unknown'}) end
if not is_known and redis.call('ZCARD', P .. 'models') >= most then return cmsgpack.pack({{}, 'full'}) end

local function pins_with(worker, pinned)
  local kept = {}
  for each in string.gmatch(redis.call('HGET', key, 'pins') or '', '%S+') do
    if each ~= worker and not (worker == '*' and not pinned) then kept[#kept + 1] = each end
  end
  if pinned then kept[#kept + 1] = worker end
  return table.concat(kept, ' ')
end

if change == 'forget' then
  redis.call('DEL', key)
  redis.call('ZREM', P .. 'models', name)
else
  redis.call('HSETNX', key, 'created', text(NOW))
  redis.call('ZADD', P .. 'models', 0, name)
  if change == 'declare' then
    if redis.call('HGET', key, 'declared') ~= value then redis.call('HDEL', key, 'measured') end
    redis.call('HSET', key, 'declared', value)
  elseif change == 'measure' then
    redis.call('HSET', key, 'measured', value)
  else
    redis.call('HSET', key, 'pins', pins_with(value, change == 'pin'))
  end
end
redis.call('INCR', P .. 'models:version')
redis.call('PUBLISH', P .. 'models', '')
return cmsgpack.pack({{}, 'saved'})
