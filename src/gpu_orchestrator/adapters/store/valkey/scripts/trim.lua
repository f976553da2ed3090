-- Forget what ended long ago: the rows went by their own expiry, here go their places in the lists.
-- Arguments: keep_ms, most of each list that may stay per worker
-- Answers how many; no more than a thousand of each list at once, so that nobody waits long
local function forget(place)
  local gone = 0
  for state, kept in pairs({completed = 1, failed = 1, cancelled = 1, dead = DEAD_KEPT}) do
    local before = NOW - ARG[1] * kept
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', place .. state, '-inf', before, 'LIMIT', 0, 1000)) do
      local key = P .. 't:' .. id
      if redis.call('EXISTS', key) == 0 then
        gone = gone + redis.call('ZREM', place .. state, id)
      elseif state == 'dead' then
        redis.call('PEXPIRE', key, ARG[1] * kept, 'NX') -- older versions kept these for ever
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
    place .. 'failed', place .. 'cancelled', place .. 'dead') == 0 then redis.call('SREM', P .. 'owners', owner) end
end
for _, name in ipairs(redis.call('SMEMBERS', P .. 'workers')) do
  redis.call('ZREMRANGEBYRANK', P .. 'of:' .. name, 0, -1 - ARG[2])
end
return cmsgpack.pack({{}, gone})
