#!lua flags=allow-oom
-- Revoke a key from now on.
-- Arguments: id
-- Answers whether the key exists
local key = P .. 'k:' .. ARG[1]
local revoked = redis.call('HGET', key, 'revoked')
if not revoked then return cmsgpack.pack({{}, false}) end
if revoked == '0' then
  redis.call('HSET', key, 'revoked', text(NOW))
  redis.call('INCR', P .. 'keys:version')
  redis.call('PUBLISH', P .. 'keys', '')
end
return cmsgpack.pack({{}, true})
