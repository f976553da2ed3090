-- Note a file that lies outside the store, if its owner may have so many.
-- Arguments: id, owner, name, bytes, SHA-256, where it is as in `results`, for how many ms it is kept, most bytes and most
--   files of an owner
-- Answers {1 if it was noted, bytes and number of the owner's other files, when it expires}
local id, owner, name, bytes, digest, at, keep_ms, most_bytes, most = unpack(ARG, 1, 9)
local list, used, count = P .. 'files:' .. owner, 0, 0
redis.call('ZREMRANGEBYSCORE', list, '-inf', NOW)
for _, each in ipairs(redis.call('ZRANGE', list, 0, -1)) do
  used, count = used + tonumber(string.match(each, '^%d+')), count + 1
end
if used + bytes > most_bytes or count >= most then return cmsgpack.pack({{}, {0, used, count, 0}}) end
local until_ms = NOW + keep_ms
redis.call('HSET', P .. 'file:' .. id, 'owner', owner, 'name', name, 'bytes', text(bytes), 'sha256', digest, 'at', at,
  'created', text(NOW))
redis.call('PEXPIREAT', P .. 'file:' .. id, until_ms)
redis.call('ZADD', list, until_ms, text(bytes) .. ' ' .. id)
redis.call('PEXPIREAT', list, until_ms + 1000, 'NX')
redis.call('PEXPIREAT', list, until_ms + 1000, 'GT')
if at ~= '' then redis.call('ZADD', P .. 'results', until_ms, at) end
return cmsgpack.pack({{}, {1, used, count, until_ms}})
