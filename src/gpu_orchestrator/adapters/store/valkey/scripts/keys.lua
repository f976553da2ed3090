-- Read all keys if they changed since the caller read them; store when some were last used.
-- Arguments: version the caller knows, used {{id, ms}, ...}
-- Answers {version, false if the caller knows it, else rows as in `key_save`, oldest first}
for _, each in ipairs(ARG[2]) do
  local key = P .. 'k:' .. each[1]
  if redis.call('EXISTS', key) == 1 and tonumber(redis.call('HGET', key, 'used') or 0) < each[2] then
    redis.call('HSET', key, 'used', text(each[2]))
  end
end
local version = tonumber(redis.call('GET', P .. 'keys:version') or 0)
if version == ARG[1] then return cmsgpack.pack({{}, {version, false}}) end
local rows = {}
for _, id in ipairs(redis.call('ZRANGE', P .. 'keys', 0, -1)) do
  local row = redis.call('HMGET', P .. 'k:' .. id, 'digest', 'name', 'owner', 'scopes', 'created', 'expires', 'revoked',
    'used', 'by', 'limits')
  rows[#rows + 1] = {id, row[1], row[2], row[3], row[4], tonumber(row[5]), tonumber(row[6]), tonumber(row[7]),
    tonumber(row[8]), row[9], row[10] or ''}
end
return cmsgpack.pack({{}, {version, rows}})
