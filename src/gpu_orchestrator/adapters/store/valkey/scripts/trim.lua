-- Delete list entries of tasks that ended long ago; the rows themselves have expired.
-- Arguments: keep_ms, most entries that stay in a worker's list
-- Answers how many; at most a thousand of each list per call, so that other clients do not wait long
local function forget(place)
  local gone = 0
  for state, kept in pairs({completed = 1, failed = 1, cancelled = 1, dead = DEAD_KEPT}) do
    local before = NOW - ARG[1] * kept
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', place .. state, '-inf', before, 'LIMIT', 0, 1000)) do
      local key = P .. 't:' .. id
      if redis.call('EXISTS', key) == 0 then
        gone = gone + redis.call('ZREM', place .. state, id)
      elseif state == 'dead' then
        redis.call('PEXPIRE', key, ARG[1] * kept, 'NX') -- older versions kept these forever
      end
    end
  end
  return gone
end

local gone = forget(P .. 's:')
for _, owner in ipairs(redis.call('SMEMBERS', P .. 'owners')) do
  local place = P .. 'o:' .. owner .. ':'
  gone = gone + forget(place)
  if redis.call('EXISTS', place .. 'queued', place .. 'assigned', place .. 'running', place .. 'completed',
    place .. 'failed', place .. 'cancelled', place .. 'dead', place .. 'scheduled') == 0 then redis.call('SREM', P .. 'owners', owner) end
end
for _, name in ipairs(redis.call('SMEMBERS', P .. 'workers')) do
  redis.call('ZREMRANGEBYRANK', P .. 'of:' .. name, 0, -1 - ARG[2])
end
return cmsgpack.pack({{}, gone})
