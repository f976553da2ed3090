#!lua flags=allow-oom
-- Acquire or renew leadership, or learn which process leads. Every new leader gets a new fence, which invalidates the
-- writes of earlier leaders. A leader that lost its state may lead again at once; other processes wait until its term
-- expires. A process may not know that it leads, so its name alone is enough to step down.
-- Arguments: owner, fence held so far or 0, lease_ms, release (1: step down)
-- Answers {fence or 0, now, owner, workers with a lease, expired leases {{name, epoch, 1 if suspect}, ...},
--   processes seen recently {owner, ...}}
local owner, held, lease_ms, step_down = ARG[1], ARG[2], ARG[3], ARG[4]
local key = P .. 'leader'
local row = redis.call('HMGET', key, 'owner', 'fence', 'until')
local mine = row[1] == owner and row[2] == text(held)
local over = {}
if step_down == 1 then
  redis.call('ZREM', P .. 'apis', owner)
  if row[1] == owner then redis.call('HSET', key, 'owner', '', 'until', '0', 'fence', text(redis.call('INCR', P .. 'fence'))) end
  redis.call('PUBLISH', P .. 'wake', '')
  return cmsgpack.pack({{}, {0, NOW, '', 0, over, {}}})
end
redis.call('ZADD', P .. 'apis', NOW, owner)
redis.call('ZREMRANGEBYSCORE', P .. 'apis', '-inf', NOW - lease_ms)
local apis = redis.call('ZRANGE', P .. 'apis', 0, -1)
if not mine and (row[1] == owner or not row[3] or tonumber(row[3]) <= NOW) then
  held, mine = redis.call('INCR', P .. 'fence'), true
end
if not mine then return cmsgpack.pack({{}, {0, NOW, row[1], 0, over, apis}}) end
redis.call('HSET', key, 'owner', owner, 'fence', text(held), 'until', text(NOW + lease_ms))
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'leases', '-inf', NOW)) do
  local worker = redis.call('HMGET', P .. 'w:' .. name, 'epoch', 'state')
  over[#over + 1] = {name, tonumber(worker[1]), worker[2] == 'suspect' and 1 or 0}
end
return cmsgpack.pack({{}, {held, NOW, owner, redis.call('ZCARD', P .. 'leases'), over, apis}})
