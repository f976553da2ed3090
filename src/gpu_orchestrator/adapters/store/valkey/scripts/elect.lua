#!lua flags=allow-oom
-- Acquire or renew leadership, or learn which process leads. Every new leader gets a new fence, which invalidates the
-- writes of earlier leaders. A leader that lost its state may lead again at once; other processes wait until its term
-- expires. A process may not know that it leads, so its name alone is enough to step down.
-- A fence is never given twice, even if a failover lost the last elections: it is the store's time in microseconds, and
-- more than every fence that the store or the caller has seen, in case the clock of another primary is behind.
-- Arguments: owner, fence held so far or 0, lease_ms, release (1: step down), highest fence seen so far
-- Answers {fence or 0, now, owner, workers with a lease, expired leases {{name, epoch, 1 if suspect}, ...},
--   processes seen recently {owner, ...}, highest fence given so far}
local owner, held, lease_ms, step_down, seen = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5]
local key = P .. 'leader'
local row = redis.call('HMGET', key, 'owner', 'fence', 'until')
local highest = math.max(tonumber(redis.call('GET', P .. 'fence') or 0), seen)
local function new_fence()
  highest = math.max(highest + 1, clock[1] * 1000000 + clock[2])
  redis.call('SET', P .. 'fence', text(highest))
  return highest
end
local mine = row[1] == owner and row[2] == text(held)
local over = {}
if step_down == 1 then
  redis.call('ZREM', P .. 'apis', owner)
  if row[1] == owner then redis.call('HSET', key, 'owner', '', 'until', '0', 'fence', text(new_fence())) end
  redis.call('PUBLISH', P .. 'wake', '')
  return cmsgpack.pack({{}, {0, NOW, '', 0, over, {}, highest}})
end
redis.call('ZADD', P .. 'apis', NOW, owner)
redis.call('ZREMRANGEBYSCORE', P .. 'apis', '-inf', NOW - lease_ms)
local apis = redis.call('ZRANGE', P .. 'apis', 0, -1)
if not mine and (row[1] == owner or not row[3] or tonumber(row[3]) <= NOW) then
  held, mine = new_fence(), true
end
if not mine then return cmsgpack.pack({{}, {0, NOW, row[1], 0, over, apis, highest}}) end
-- `gangs`: this leader knows gangs, as those of older versions do not.
redis.call('HSET', key, 'owner', owner, 'fence', text(held), 'until', text(NOW + lease_ms), 'gangs', text(held))
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', NOW)) do
  local worker = redis.call('HMGET', P .. 'w:' .. name, 'epoch', 'state')
  over[#over + 1] = {name, tonumber(worker[1]), worker[2] == 'suspect' and 1 or 0}
end
return cmsgpack.pack({{}, {held, NOW, owner, redis.call('ZCARD', P .. 'leases'), over, apis, highest}})
