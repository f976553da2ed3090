#!lua flags=allow-oom
-- Forget ended tasks: take those whose rows have expired off the lists. Each call does a bounded part.
-- Arguments: keep_ms, most entries that stay in a worker's list, most entries to look at, where to go on in the owners and
--   in the workers
-- Answers {how many entries were deleted, where to go on in the owners, in the workers}
local keep_ms, most_per_worker, most, owners_at, workers_at = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local gone = 0

for _, entry in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ended', '-inf', NOW, 'LIMIT', 0, most)) do
  local id, state, owner = string.match(entry, '^(%S+) (%S+) (.*)$')
  local expires = redis.call('PEXPIRETIME', P .. 't:' .. id)
  if expires > 0 then -- kept longer, for its callback
    redis.call('ZADD', P .. 'ended', expires, entry)
  else
    redis.call('ZREM', P .. 'ended', entry)
    if expires == -2 then
      unlist(id, state, owner)
      gone = gone + 1
    end
  end
end

-- Tasks that ended before a version that wrote `ended` are found by their age. The lists of a few owners are searched
-- per call: there may be thousands.
local left = most
local function forget(place)
  for state, kept in pairs({completed = 1, failed = 1, cancelled = 1, dead = DEAD_KEPT}) do
    local before = NOW - keep_ms * kept
    local some = redis.call('ZRANGEBYSCORE', place .. state, '-inf', before, 'LIMIT', 0, math.max(left, 0))
    left = left - #some
    for _, id in ipairs(some) do
      local key = P .. 't:' .. id
      if redis.call('EXISTS', key) == 0 then
        gone = gone + redis.call('ZREM', place .. state, id)
      elseif state == 'dead' and redis.call('HEXISTS', key, 'linked') == 0 then
        redis.call('PEXPIRE', key, keep_ms * kept, 'NX') -- older versions kept these forever
      end
    end
  end
end

forget(P .. 's:')
left = most
local owners = redis.call('SSCAN', P .. 'owners', owners_at, 'COUNT', 50)
for _, owner in ipairs(owners[2]) do
  local place = P .. 'o:' .. owner .. ':'
  forget(place)
  if redis.call('EXISTS', place .. 'queued', place .. 'assigned', place .. 'running', place .. 'completed',
    place .. 'failed', place .. 'cancelled', place .. 'dead', place .. 'scheduled') == 0 then redis.call('SREM', P .. 'owners', owner) end
end
local workers = redis.call('SSCAN', P .. 'workers', workers_at, 'COUNT', 50)
for _, name in ipairs(workers[2]) do
  redis.call('ZREMRANGEBYRANK', P .. 'of:' .. name, 0, -1 - most_per_worker)
end
return cmsgpack.pack({{}, {gone, owners[1], workers[1]}})
