-- Store a new key. Also delete keys that expired or were revoked long ago, and the callback secret of an owner whose last
-- key goes, unless tasks of it are left or its key may come from the settings.
-- Arguments: keep_ms, most keys, {id, digest, name, owner, scopes, -, expires ms or 0, -, -, by, limits JSON,
--   the worker that it is for, '' for the first that uses it, '*' for any}
-- Answers 'saved' or 'full'
local keep_ms, most, row = ARG[1], ARG[2], ARG[3]
local CONFIGURED = {admin = true, worker = true}
local has_key, lost_key = {[row[4]] = true}, {}
for _, id in ipairs(redis.call('ZRANGE', P .. 'keys', 0, -1)) do
  local over = redis.call('HMGET', P .. 'k:' .. id, 'expires', 'revoked', 'owner')
  local expires, revoked, owner = tonumber(over[1]), tonumber(over[2]), over[3] or ''
  if (expires > 0 and expires < NOW - keep_ms) or (revoked > 0 and revoked < NOW - keep_ms) then
    redis.call('DEL', P .. 'k:' .. id)
    redis.call('ZREM', P .. 'keys', id)
    lost_key[owner] = true
  else
    has_key[owner] = true
  end
end
for owner in pairs(lost_key) do
  if not has_key[owner] and not CONFIGURED[owner] and redis.call('SISMEMBER', P .. 'owners', owner) == 0 then
    redis.call('DEL', P .. 'callback-secret:' .. owner)
  end
end
if redis.call('ZCARD', P .. 'keys') >= most then return cmsgpack.pack({{}, 'full'}) end
redis.call('HSET', P .. 'k:' .. row[1], 'digest', row[2], 'name', row[3], 'owner', row[4], 'scopes', row[5],
  'created', text(NOW), 'expires', text(row[7]), 'revoked', '0', 'used', '0', 'by', row[10], 'limits', row[11],
  'worker', row[12])
redis.call('ZADD', P .. 'keys', NOW, row[1])
redis.call('INCR', P .. 'keys:version')
redis.call('PUBLISH', P .. 'keys', '')
return cmsgpack.pack({{}, 'saved'})
