#!lua flags=allow-oom
-- Store a new key. Also delete keys that expired or were revoked long ago.
-- Arguments: keep_ms, most keys, {id, digest, name, owner, scopes, -, expires ms or 0, -, -, by, limits JSON}
-- Answers 'saved' or 'full'
local keep_ms, most, row = ARG[1], ARG[2], ARG[3]
for _, id in ipairs(redis.call('ZRANGE', P .. 'keys', 0, -1)) do
  local over = redis.call('HMGET', P .. 'k:' .. id, 'expires', 'revoked')
  local expires, revoked = tonumber(over[1]), tonumber(over[2])
  if (expires > 0 and expires < NOW - keep_ms) or (revoked > 0 and revoked < NOW - keep_ms) then
    redis.call('DEL', P .. 'k:' .. id)
    redis.call('ZREM', P .. 'keys', id)
  end
end
if redis.call('ZCARD', P .. 'keys') >= most then return cmsgpack.pack({{}, 'full'}) end
redis.call('HSET', P .. 'k:' .. row[1], 'digest', row[2], 'name', row[3], 'owner', row[4], 'scopes', row[5],
  'created', text(NOW), 'expires', text(row[7]), 'revoked', '0', 'used', '0', 'by', row[10], 'limits', row[11])
redis.call('ZADD', P .. 'keys', NOW, row[1])
redis.call('INCR', P .. 'keys:version')
redis.call('PUBLISH', P .. 'keys', '')
return cmsgpack.pack({{}, 'saved'})
